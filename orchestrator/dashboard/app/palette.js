// The search over everything (Ctrl K): pages, commands, jobs and routines in one list, by keyboard alone.
//
// Owns what is in the list. A combobox: the focus stays in the field, and the option that Enter chooses is named by it.

import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { get } from "./api.js";
import { encodePath } from "./diff.js";
import { shortId } from "./format.js";
import { isPaletteKey } from "./keys.js";
import { go, listedFor, routes } from "./router.js";
import { generation, logOut, who } from "./session.js";
import { chooseTheme } from "./shell.js";
import { STATES, T } from "./texts.js";
import { Icon, Text, browserZone, chooseZone, html, useLoad } from "./ui.js";

/** @typedef {{ id: string, icon: string, text: string, note?: string, run: () => void }} Item */
/** @typedef {{ name: keyof typeof T.palette.groups, items: Item[] }} Group */

export const title = T.palette.title;

const WAIT_MS = 200;
const LIMIT = 8;
/** A shorter text is in too many jobs. */
const MIN_CHARS = 2;
/** Pages without a place in the navigation. */
const OTHER_PAGES = new Set(["runs", "schedule"]);
/** A part of an id, as the server takes it. */
const ID_PART = /^…?[0-9a-f-]{4,36}$/i;

/** Those whose text has all words of a search. Pure. @template {{ text: string }} Row @param {Row[]} rows @param {string} text */
export function matching(rows, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return rows.filter((row) => words.every((word) => row.text.toLowerCase().includes(word)));
}

/** The pages and the commands that match. @param {string} text @returns {Group[]} */
function localGroups(text) {
  const role = who.value?.role;
  const listed = [...listedFor(role), ...routes.filter(({ name }) => OTHER_PAGES.has(name))];
  const pages = listed.map(({ path, name }) => ({ id: `page-${name}`, icon: "event", text: T[/** @type {"now"} */ (name)].title, run: () => go(path) }));
  if (role === "admin") {
    pages.push(...Object.entries(T.admin.tabs).map(([tab, name]) => ({ id: `page-admin-${tab}`, icon: "event", text: `${T.admin.title}: ${name}`, run: () => go(`/admin/${tab}`) })));
  }
  /** @type {Item[]} */
  const commands = role === "viewer" ? [] : [
    { id: "new", icon: "event", text: T.newJob.title, run: () => go("/jobs/new") },
    { id: "new-routine", icon: "event", text: T.editRoutine.new, run: () => go("/routines/new") },
  ];
  for (const [name, word] of Object.entries(T.themes)) commands.push({ id: `theme-${name}`, icon: "event", text: T.palette.theme(word), run: () => chooseTheme(name) });
  for (const name of new Set([browserZone, "UTC"])) commands.push({ id: `zone-${name}`, icon: "event", text: T.palette.zone(name), run: () => chooseZone(name) });
  commands.push({ id: "logout", icon: "event", text: T.logOut, run: () => void logOut() });
  return [{ name: "pages", items: matching(pages, text) }, { name: "commands", items: matching(commands, text) }];
}

/** Waits, unless it is not wanted any more. @param {AbortSignal} signal */
const pause = (signal) => new Promise((resolve, reject) => {
  const timer = setTimeout(resolve, WAIT_MS);
  signal.addEventListener("abort", () => (clearTimeout(timer), reject(signal.reason)));
});

/** What the server finds; one list that fails leaves the others. @param {string} text @param {AbortSignal} signal */
async function search(text, signal) {
  if (text.length < MIN_CHARS) return { text, groups: [], failed: [] };
  await pause(signal);
  /** @type {string[]} */
  const failed = [];
  const attempt = (/** @type {string} */ name, /** @type {Promise<any>} */ read) => read.then(({ items }) => items, (error) => {
    if (!signal.aborted) failed.push(T.palette.failed(name, error.message));
    return [];
  });
  const id = ID_PART.test(text) ? text.replace("…", "") : null;
  const [byId, byText, routines, documents] = await Promise.all([
    id ? attempt(T.palette.groups.jobs, get("/api/jobs", { query: { id, limit: LIMIT }, signal })) : [],
    attempt(T.palette.groups.jobs, get("/api/jobs", { query: { q: text, limit: LIMIT }, signal })),
    attempt(T.palette.groups.routines, get("/api/routines", { query: { q: text, limit: LIMIT }, signal })),
    attempt(T.palette.groups.memory, get("/api/memory/search", { query: { q: text, limit: LIMIT }, signal })),
  ]);
  /** @type {Map<string, import("./store.js").Job>} */
  const jobs = new Map([...byId, ...byText].map((job) => [job.id, job]));
  /** @type {Group[]} */
  const groups = [
    { name: "jobs", items: [...jobs.values()].slice(0, LIMIT).map((job) => ({ id: job.id, icon: job.state, text: job.title || job.prompt_preview, note: `${STATES[job.state]} ${shortId(job.id)}`, run: () => go(`/jobs/${job.id}`) })) },
    { name: "routines", items: routines.map((/** @type {any} */ one) => ({ id: one.id, icon: "event", text: one.name, run: () => go(`/routines/${one.id}`) })) },
    { name: "memory", items: documents.map((/** @type {any} */ { path }) => ({ id: `memory-${path}`, icon: "event", text: path, run: () => go(`/memory/${encodePath(path)}`) })) },
  ];
  return { text, groups, failed: [...new Set(failed)] };
}

/** Which option is chosen, and how the keys change that. @param {Item[]} items @param {(item: Item) => void} choose @param {() => void} close */
function useChoice(items, choose, close) {
  const [chosen, setChosen] = useState(/** @type {string | null} */ (null));
  const found = items.findIndex(({ id }) => id === chosen);
  const at = found < 0 ? 0 : found;
  const current = items[at];
  function onKeyDown(/** @type {KeyboardEvent} */ event) {
    if (event.isComposing) return;
    const step = event.key === "ArrowDown" ? 1 : event.key === "ArrowUp" ? -1 : 0;
    if (step !== 0 && items.length > 0) setChosen(items[(at + step + items.length) % items.length]?.id ?? null);
    else if (event.key === "Enter" && current) choose(current);
    else if (isPaletteKey(event)) close();
    else if (step === 0 && event.key !== "Enter") return;
    event.preventDefault();
  }
  return { current, onKeyDown, setChosen };
}

/** @param {{ item: Item, isCurrent: boolean, choose: (item: Item) => void }} props */
const Option = ({ item, isCurrent, choose }) => html`
  <li role="option" id=${`option-${item.id}`} aria-selected=${isCurrent} onClick=${() => choose(item)}>
    <${Icon} name=${item.icon} /><span class="clamped"><${Text}>${item.text}<//></span> ${item.note && html`<span class="note">${item.note}</span>`}</li>
`;

/** @param {{ groups: Group[], current: Item | undefined, choose: (item: Item) => void }} props */
const Options = ({ groups, current, choose }) => html`
  <div id="options" role="listbox" aria-label=${T.palette.results}>
    ${groups.map(({ name, items }) => items.length > 0 && html`
      <ul key=${name} role="group" aria-label=${T.palette.groups[name]}><li role="presentation" class="note">${T.palette.groups[name]}</li>
        ${items.map((item) => html`<${Option} key=${item.id} item=${item} isCurrent=${item === current} choose=${choose} />`)}</ul>`)}
  </div>
`;

/** @param {{ text: string, onClose: () => void }} props `text` was written before this was loaded */
export default function Palette({ text: start, onClose }) {
  const [written, setWritten] = useState(start);
  const text = written.trim();
  const { value, isLoading } = useLoad((signal) => search(text, signal), [text, generation.value]);
  // What was found for another text is not offered.
  const isSearching = isLoading || value?.text !== text;
  const groups = [...localGroups(text), ...(isSearching ? [] : value.groups)];
  const items = groups.flatMap((group) => group.items);
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const choose = (/** @type {Item} */ item) => {
    // What had the focus gets it back first: a page gives it to its heading then.
    field.current?.closest("dialog")?.close();
    onClose();
    item.run();
  };
  const { current, onKeyDown, setChosen } = useChoice(items, choose, onClose);
  useLayoutEffect(() => field.current?.focus(), []);
  useEffect(() => document.getElementById(`option-${current?.id}`)?.scrollIntoView({ block: "nearest" }), [current?.id]);
  const words = isSearching ? T.palette.searching : items.length === 0 ? T.palette.none : T.palette.count(items.length);
  return html`
    <label for="palette">${T.palette.label}</label>
    <input id="palette" ref=${field} role="combobox" autofocus autocomplete="off" spellcheck=${false} aria-expanded="true" aria-autocomplete="list" aria-controls="options"
      aria-activedescendant=${current && `option-${current.id}`} aria-describedby="palette-hint" value=${written} onKeyDown=${onKeyDown}
      onInput=${(/** @type {any} */ event) => (setChosen(null), setWritten(event.target.value))} />
    <p id="palette-hint" class="note">${T.palette.hint}</p>
    <${Options} groups=${groups} current=${current} choose=${choose} />
    <p class="note" role="status">${words}</p>
    ${(isSearching ? [] : value?.failed ?? []).map((one) => html`<p key=${one} class="failure"><${Text}>${one}<//></p>`)}
  `;
}
