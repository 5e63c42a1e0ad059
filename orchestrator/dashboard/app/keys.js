// Keys of the keyboard: one table of what they do, which people can switch off.
//
// Single keys do nothing in fields, and nothing at all once they are switched off (WCAG 2.1.4).

import { signal } from "@preact/signals";
import { goUp } from "./router.js";
import { T } from "./texts.js";

/** @typedef {{ key: string, text: string, run: () => void }} Shortcut */

const STORED = "gantry.keys";

/** Whether single keys are used. */
export const isOn = signal(localStorage.getItem(STORED) !== "off");

/** Whether the list of keys is open. */
export const isListOpen = signal(false);

/** Whether the search over everything is open. */
export const isPaletteOpen = signal(false);

/** The only key that works in fields, too. */
const PALETTE = "Ctrl K";

/** @param {boolean} on */
export function setOn(on) {
  localStorage.setItem(STORED, on ? "on" : "off");
  isOn.value = on;
}

const focusFilter = () => /** @type {HTMLElement | null} */ (document.querySelector("input[type=search]"))?.focus();

/** @type {import("@preact/signals").Signal<Shortcut[]>} */
export const shortcuts = signal([
  { key: "?", text: T.keys.help, run: () => void (isListOpen.value = true) },
  { key: "/", text: T.keys.filter, run: focusFilter },
  { key: PALETTE, text: T.keys.palette, run: () => void (isPaletteOpen.value = true) },
  { key: "Escape", text: T.keys.back, run: goUp },
]);

/**
 * Adds keys while a page is open; the result removes them. For useLayoutEffect: what is drawn can be pressed at once.
 * @param {Shortcut[]} added
 */
export function bind(added) {
  shortcuts.value = [...shortcuts.value, ...added];
  return () => void (shortcuts.value = shortcuts.value.filter((one) => !added.includes(one)));
}

/** Keys that go to the next row of a list and to the previous one. @param {(step: number) => void} move */
export const bindMove = (move) => bind([
  { key: "j", text: T.keys.next, run: () => move(1) },
  { key: "k", text: T.keys.previous, run: () => move(-1) },
]);

/** The same for rows that are all in the page, by their links. @param {string} selector */
export const bindRows = (selector) => bindMove((step) => {
  const rows = /** @type {HTMLElement[]} */ ([...document.querySelectorAll(selector)]);
  const at = rows.indexOf(/** @type {HTMLElement} */ (document.activeElement));
  rows[at < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, at + step))]?.focus();
});

const FIELDS = "input:not([type=checkbox], [type=radio]), textarea, select, [contenteditable]";

/** Keys that go on while they are held down. */
const REPEATED = new Set(["j", "k"]);

/** @param {KeyboardEvent} event */
export const isPaletteKey = ({ key, ctrlKey, metaKey, altKey, shiftKey }) => (ctrlKey || metaKey) && !altKey && !shiftKey && key.toLowerCase() === "k";

/** @param {KeyboardEvent} event */
function onKey(event) {
  if (!event.defaultPrevented && !event.isComposing && isPaletteKey(event) && !document.querySelector("dialog[open]")) {
    // Browsers have their own search on this key.
    event.preventDefault();
    shortcuts.value.find(({ key }) => key === PALETTE)?.run();
    return;
  }
  if (event.defaultPrevented || event.isComposing || event.ctrlKey || event.metaKey || event.altKey) return;
  if (!isOn.value && event.key.length === 1) return;
  if (document.querySelector("dialog[open]") || (event.target instanceof Element && event.target.closest(FIELDS))) return;
  const found = shortcuts.value.findLast(({ key }) => key === event.key);
  if (!found || (event.repeat && !REPEATED.has(event.key))) return;
  event.preventDefault();
  found.run();
}

export const startKeys = () => addEventListener("keydown", onKey);
