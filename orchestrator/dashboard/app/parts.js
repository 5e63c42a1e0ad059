// Parts that several pages share and the first one does not need: tabs, tables, facts, questions before an action, filters in the URL.

import { computed } from "@preact/signals";
import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { isProblem } from "./api.js";
import { setQuery } from "./router.js";
import { generation, serverNow, who } from "./session.js";
import { resyncs } from "./store.js";
import { T } from "./texts.js";
import { Confirm, Failed, Loading, Time, html, useLoad, usePages } from "./ui.js";

/** As in `app.css`. */
const NARROW = "(max-width: 45rem)";

/** @param {{ name: any, children?: any }} props */
export const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** The parts of a page, by the names of which one is the current one. @param {{ name: string, words: Record<string, any>, current: string, path: (name: string) => string }} props */
export const Tabs = ({ name, words, current, path }) => html`
  <nav class="tabs" aria-label=${name}>
    ${Object.entries(words).map(([one, word]) => html`<a key=${one} href=${path(one)} aria-current=${one === current ? "page" : undefined}>${word}</a>`)}
  </nav>
`;

/** A table that is as wide as it needs; the columns in `numbers` have numbers. @param {{ name: string, columns: readonly string[], numbers?: number[], look?: string, children?: any }} props */
export const Table = ({ name, columns, numbers = [], look = "", children }) => html`
  <div class="wide ${look}" tabindex="0" role="group" aria-label=${name}><table class=${look}>
    <thead><tr>${columns.map((column, index) => html`<th key=${column} scope="col" class=${numbers.includes(index) ? "number" : ""}>${column}</th>`)}</tr></thead>
    <tbody>${children}</tbody></table></div>
`;

/** The note that a list has new items, which keeps its room while there are none: nothing moves when it comes. @param {{ count: number, show: () => void }} props */
export const Added = ({ count, show }) => html`
  <p class="added-items">${count > 0 && html`<button type="button" onClick=${show}>${T.jobs.added(count)}</button>`}</p>
`;

/** A bar of what is used of a limit. @param {{ name: string, used: number, limit: number, text: string }} props */
export const Meter = ({ name, used, limit, text }) => html`
  <span class="meter"><span class="note">${name}</span> <meter min="0" max=${limit} value=${Math.min(used, limit)} aria-label=${name}></meter> <span class="number">${text}</span></span>
`;

// --- rows of the store

/** @template {{ id: string }} Row @typedef {ReturnType<typeof import("./store.js").createTable<Row>>} Table */

/** @param {any} object @param {string} name */
const valueOf = (object, name) => object?.[name];

/**
 * An object as it is now: what was read, and what the store has heard of its row since. Where one of `marks` differs, what the store has not
 * is another, too. Of `texts` the store has the beginning only.
 * @template {{ id: string }} Row, Value
 * @param {Table<Row>} table @param {string} id @param {(signal: AbortSignal) => Promise<Value>} read
 * @param {string[]} marks @param {string[]} [texts]
 */
export function useObject(table, id, read, marks, texts = []) {
  // Events of other rows do not change this one.
  const known = useMemo(() => computed(() => table.get(id)), [id]);
  const row = known.value;
  const { value, error, isLoading, again } = useLoad(read, [id, generation.value, resyncs.value]);
  useEffect(() => {
    // Of one that is gone the server says why.
    if (value && (!row || marks.some((name) => valueOf(row, name) !== valueOf(value, name)))) again();
  }, [value, !row, ...marks.map((name) => valueOf(row, name))]);
  useEffect(() => (table.show([id]), () => table.show([])), [id]);
  const whole = useMemo(() => value && /** @type {Value & Partial<Row>} */ ({ ...value, ...row, ...Object.fromEntries(texts.map((name) => [name, valueOf(value, name) ?? null])) }), [value, row]);
  const failure = error && html`<${Failed} error=${error} again=${again} />`;
  return { value: isProblem(error, 404) ? null : whole, failure, again, status: isLoading ? html`<${Loading} />` : failure };
}

/**
 * Rows that are read page by page, as the store has them now.
 * @template {{ id: string }} Row, Extra
 * @param {Table<Row>} table @param {(cursor?: string, signal?: AbortSignal) => Promise<{ items: { id: string }[], next_cursor?: string | null | undefined } & Extra>} read
 * @param {unknown[]} inputs
 */
export function useRows(table, read, inputs) {
  const readIds = async (/** @type {[cursor?: string, signal?: AbortSignal]} */ ...given) => {
    const page = await read(...given);
    // The rows themselves are in the store.
    return { ...page, items: page.items.map(({ id }) => id) };
  };
  const pages = usePages(readIds, [...inputs, generation.value, resyncs.value]);
  const { items: ids } = pages;
  useEffect(() => (table.show(ids), () => table.show([])), [ids.length, pages.first]);
  return { ...pages, ids, rows: ids.flatMap((id) => table.get(id) ?? []) };
}

/** Whether the window is as narrow as that of a phone. */
export function useNarrow() {
  const [isNarrow, setIsNarrow] = useState(() => matchMedia(NARROW).matches);
  useEffect(() => {
    const list = matchMedia(NARROW);
    const update = () => setIsNarrow(list.matches);
    list.addEventListener("change", update);
    return () => list.removeEventListener("change", update);
  }, []);
  return isNarrow;
}

/**
 * A button that asks before it does something. `children` follow its name.
 * @param {{ name: string, title: string, note?: string, isDisabled?: boolean, look?: string, onYes: () => void, children?: any }} props
 */
export function ConfirmButton({ name, title, note, isDisabled = false, look, onYes, children }) {
  const [isAsking, setIsAsking] = useState(false);
  return html`
    <button type="button" class=${look} disabled=${isDisabled} onClick=${() => setIsAsking(true)}>${name}${children}</button>
    ${isAsking && html`<${Confirm} title=${title} note=${note} yes=${name} no=${T.job.keep} onYes=${() => (setIsAsking(false), onYes())} onNo=${() => setIsAsking(false)} />`}
  `;
}

// --- filters

const HOUR_MS = 3_600_000;
const PERIODS = /** @type {const} */ ([1, 24, 168]);

/** @param {number} at in milliseconds */
export const stamp = (at) => new Date(at).toISOString().replace(/\.\d+Z$/, "Z");

/** The filters that a URL has. @param {URLSearchParams} query @param {string[]} names @returns {Record<string, string>} */
export const filtersOf = (query, names) => Object.fromEntries(names.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));

/** Sets filters, which the browser's Back takes back. @param {Record<string, string | null>} filters */
export const setFilters = (filters) => setQuery(filters, { isPushed: true });

/** Sets a filter by its field. @param {string} name */
export const change = (name) => (/** @type {any} */ event) => setFilters({ [name]: event.target.value.trim() || null });

/**
 * A filter that is written: it applies by Enter, and when the field is left. Other properties are attributes.
 * @param {{ name: string, filter: string, given: string | undefined, look?: string, [attribute: string]: any }} props
 */
export function Typed({ name, filter, given = "", look, ...more }) {
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [isOpen, setIsOpen] = useState(false);
  // What is being written stays when the page is drawn again.
  useEffect(() => {
    if (field.current) field.current.value = given;
    setIsOpen(false);
  }, [given]);
  const onInput = (/** @type {any} */ event) => setIsOpen(event.target.value.trim() !== given);
  return html`<span class="typed"><label class=${look}>${name} <input ref=${field} type="search" spellcheck=${false} ...${more} onInput=${onInput} onChange=${change(filter)} /></label>${
    isOpen && html` <span class="note">${T.jobs.enter}</span>`}</span>`;
}

/** One of some values; what the URL has stays a choice. @param {{ name: string, filter: string, given: string | undefined, words: Record<string, string> }} props */
export const Choice = ({ name, filter, given = "", words }) => html`
  <label>${name} <select value=${given} onChange=${change(filter)}>
    <option value="">${T.jobs.any}</option>
    ${Object.entries({ ...(given && { [given]: given.replaceAll(",", ", ") }), ...words }).map(([value, word]) => html`<option key=${value} value=${value}>${word}</option>`)}
  </select></label>
`;

/** The user, for admins, and the button that removes all filters. @param {{ given: Record<string, string>, names: string[] }} props */
export const UserAndClear = ({ given, names }) => html`
  ${who.value?.role === "admin" && html`<${Typed} name=${T.jobs.user} filter="user" given=${given["user"]} />`}
  ${Object.keys(given).length > 0 && html`
    <button type="button" class="link" onClick=${() => setFilters(Object.fromEntries(names.map((name) => [name, null])))}>${T.jobs.clear}</button>`}
`;

/** A command with filters as options. @param {string} command @param {Record<string, string>} given @param {Record<string, string>} [names] of options with another name */
export function commandOf(command, given, names = {}) {
  const quoted = (/** @type {string} */ text) => (/^[\w:=.,-]+$/.test(text) ? text : `'${text.replaceAll("'", "'\\''")}'`);
  return [command, ...Object.entries(given).map(([name, text]) => `--${names[name] ?? name} ${quoted(text)}`)].join(" ");
}

/** A choice stays chosen while its page is open: what it means is a time in the URL. @param {{ name: string, given: Record<string, string> }} props */
export function Period({ name, given: { since, until } }) {
  /** @type {Map<string, string>} */
  const chosen = useMemo(() => new Map(), []);
  const isOpen = since && !until;
  const value = !since && !until ? "any" : (isOpen && chosen.get(since)) || "range";
  function onChange(/** @type {any} */ event) {
    const hours = Number(event.target.value);
    const from = hours > 0 ? stamp(serverNow() - hours * HOUR_MS) : null;
    if (from) chosen.set(from, event.target.value);
    setFilters({ since: from, until: null });
  }
  return html`
    <label>${name} <select value=${value} onChange=${onChange}>
      <option value="any">${T.jobs.periods.any}</option>
      ${PERIODS.map((hours) => html`<option key=${hours} value=${String(hours)}>${T.jobs.periods[hours]}</option>`)}
      ${value === "range" && html`<option value="range">${T.jobs.periods.range}</option>`}
    </select></label>
    ${value !== "any" && html`<span class="note">${since && html`<${Time} at=${since} />`} – ${until && html`<${Time} at=${until} />`}</span>`}
  `;
}
