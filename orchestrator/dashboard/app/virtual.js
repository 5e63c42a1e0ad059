// Rows of one height, of which only those in view are in the page.
//
// Owns the place and the focus: the place stays when rows are added in front, follows the end, and comes to the selected row; keys go from
// row to row, and the row with the focus stays in the page. Never knows what a row shows.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { bindMove } from "./keys.js";
import { useNarrow } from "./parts.js";
import { html } from "./ui.js";

/** Rows that are drawn before and after those in view; of a page few, since its rows have many parts. */
const MARGIN = 10;
const PAGE_MARGIN = 2;
/** So near to the end, new rows are followed. */
const NEAR_PX = 40;
/** The height of a row that scrolls with the page, as in `app.css`. */
const [WIDE_REM, NARROW_REM] = [3.75, 9.5];

/** @typedef {{ seq: number } | { id: string }} AnyRow */

/** @param {AnyRow} row */
const keyOf = (row) => ("seq" in row ? row.seq : row.id);

/**
 * Which rows are drawn. Pure.
 * @param {number} top @param {number} height @param {number} rowHeight @param {number} count @param {number} [margin]
 */
export function visible(top, height, rowHeight, count, margin = MARGIN) {
  const from = Math.max(0, Math.floor(top / rowHeight) - margin);
  const to = Math.min(count, Math.ceil((top + height) / rowHeight) + margin);
  return { from: Math.min(from, count), to: Math.max(to, 0) };
}

/** What of the rows is in view: of those in a box, or in the window. @param {HTMLElement} element @param {boolean} isPage */
function viewOf(element, isPage) {
  if (!isPage) return { top: element.scrollTop, height: element.clientHeight };
  return { top: Math.max(0, -element.getBoundingClientRect().top), height: innerHeight };
}

const nothing = () => {};

/**
 * `rows` have a `seq` or an `id`, by which they are found again. The row `selected` comes into view, and has the focus when it is closed.
 * One row is active: the one that had the focus last, else the first one in view. Keys go to the `target` of the next row, a selector; rows
 * without one are scrolled by keys. With `isPage` the rows scroll with the page. `onTop` is called when the first row comes into view.
 * @template {AnyRow} Row
 * @param {{
 *   rows: Row[], rowHeight: number, label: string, draw: (row: Row, index: number, isActive: boolean) => any, isPage?: boolean,
 *   selected?: number | null, target?: string, onMove?: (row: Row) => void,
 *   isFollowing?: boolean, onFollow?: (isFollowing: boolean) => void, onTop?: () => void
 * }} props
 */
export function VirtualRows({ rows, rowHeight, label, draw, isPage = false, selected = null, target = "", onMove = nothing, isFollowing = false, onFollow = nothing, onTop = nothing }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [view, setView] = useState({ top: 0, height: 600 });
  const [active, setActive] = useState(/** @type {number | string | null} */ (selected));
  /** The first row in view and how far it is scrolled, to find the place again. */
  const anchor = useRef(/** @type {{ key: number | string, offset: number } | null} */ (null));
  const indexOf = (/** @type {number | string | null} */ key) => (key === null ? -1 : rows.findIndex((row) => keyOf(row) === key));

  // --- the place

  const read = () => {
    const element = box.current;
    // Nothing can be said about the place in an empty or a hidden list.
    if (!element || rows.length === 0 || element.clientHeight === 0) return;
    const { top, height } = viewOf(element, isPage);
    const row = rows[Math.floor(top / rowHeight)];
    anchor.current = row ? { key: keyOf(row), offset: top % rowHeight } : null;
    // Within a row, nothing is drawn again.
    const first = Math.ceil(top / rowHeight) * rowHeight;
    setView((before) => (before.top === first && before.height === height ? before : { top: first, height }));
    onFollow(element.scrollHeight - top - height < NEAR_PX);
    if (top < rowHeight * MARGIN) onTop();
  };

  const restore = () => {
    const element = box.current;
    // Browsers keep the place of a page.
    if (!element || element.clientHeight === 0 || isPage) return;
    const height = element.clientHeight;
    setView((before) => (before.height === height ? before : { ...before, height }));
    if (isFollowing) element.scrollTop = element.scrollHeight;
    else if (anchor.current) {
      const { key, offset } = anchor.current;
      const index = rows.findIndex((row) => keyOf(row) >= key);
      if (index >= 0) element.scrollTop = index * rowHeight + offset;
    }
  };
  useLayoutEffect(restore, [rows.length, rows[0] && keyOf(rows[0]), isFollowing]);

  // The list may have been hidden, which forgets the place; what is above it may be of another height.
  const resized = useRef(nothing);
  resized.current = () => (restore(), read());
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    const onChange = () => resized.current();
    const observer = new ResizeObserver(onChange);
    observer.observe(isPage ? document.body : element);
    if (isPage) for (const name of ["scroll", "resize"]) addEventListener(name, onChange);
    return () => (observer.disconnect(), removeEventListener("scroll", onChange), removeEventListener("resize", onChange));
  }, []);

  const chosen = indexOf(selected);
  useEffect(() => {
    const element = box.current;
    if (!element || chosen < 0) return;
    const top = chosen * rowHeight;
    if (top < element.scrollTop || top + rowHeight > element.scrollTop + element.clientHeight) element.scrollTop = top - element.clientHeight / 3;
  }, [selected, chosen < 0]);

  // --- the focus

  /** The row that is to have the focus once it is drawn. */
  const toFocus = useRef(/** @type {number | string | null} */ (null));
  const focusRow = () => {
    const element = toFocus.current === null ? null : box.current?.querySelector(`[aria-posinset="${indexOf(toFocus.current) + 1}"] ${target}`);
    if (!(element instanceof HTMLElement) || element.offsetParent === null) return;
    toFocus.current = null;
    element.focus({ preventScroll: !isPage });
  };
  useLayoutEffect(focusRow);
  const closed = useRef(selected);
  useEffect(() => {
    if (selected !== null) setActive(selected);
    else if (target && document.activeElement === document.body) {
      // What was closed had the focus.
      toFocus.current = closed.current;
      focusRow();
    }
    closed.current = selected;
  }, [selected]);
  const onFocusIn = (/** @type {any} */ event) => {
    const row = rows[Number(event.target.closest("[aria-posinset]")?.ariaPosInSet) - 1];
    if (row) setActive(keyOf(row));
  };

  /** @param {number} step */
  const move = (step) => {
    const from = indexOf(active);
    const next = rows[from < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, from + step))];
    if (!next) return;
    toFocus.current = keyOf(next);
    setActive(keyOf(next));
    onMove(next);
    focusRow();
  };
  const mover = useRef(move);
  mover.current = move;
  useLayoutEffect(() => (target ? bindMove((step) => mover.current(step)) : undefined), []);
  const onKeyDown = (/** @type {any} */ event) => {
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step === 0 || isPage || !target || !event.target.closest(target) || event.altKey || event.ctrlKey || event.metaKey) return;
    event.preventDefault();
    move(step);
  };

  const { from, to } = visible(view.top, view.height, rowHeight, rows.length, isPage ? PAGE_MARGIN : MARGIN);
  const named = indexOf(active);
  const current = named >= 0 ? named : Math.min(rows.length - 1, Math.ceil(view.top / rowHeight));
  const at = (/** @type {Row} */ row, /** @type {number} */ index) => html`
    <div key=${keyOf(row)} class="virtual-row" role="listitem" aria-setsize=${rows.length} aria-posinset=${index + 1}
      style=${{ transform: `translateY(${index * rowHeight}px)`, height: `${rowHeight}px` }}>${draw(row, index, index === current)}</div>`;
  // In one list and in order, so that the row with the focus stays the same element.
  const drawn = rows.slice(from, to).map((row, index) => at(row, from + index));
  const kept = rows[current];
  if (kept && current < from) drawn.unshift(at(kept, current));
  if (kept && current >= to) drawn.push(at(kept, current));
  return html`
    <div class=${isPage ? "rows" : "virtual"} ref=${box} role="list" aria-label=${label} tabindex=${isPage ? undefined : target ? -1 : 0}
      onScroll=${read} onFocusIn=${onFocusIn} onKeyDown=${onKeyDown}>
      <div class="virtual-space" style=${{ height: `${rows.length * rowHeight}px` }}>
        ${drawn}
      </div>
    </div>
  `;
}

/**
 * Rows that open something by a link, and scroll with the page.
 * @template {AnyRow} Row
 * @param {{ rows: Row[], label: string, draw: (row: Row) => any }} props
 */
export function PageRows({ rows, label, draw }) {
  const rem = parseFloat(getComputedStyle(document.documentElement).fontSize);
  const rowHeight = Math.round((useNarrow() ? NARROW_REM : WIDE_REM) * rem);
  return html`<${VirtualRows} rows=${rows} rowHeight=${rowHeight} label=${label} draw=${draw} target="a.open" isPage />`;
}
