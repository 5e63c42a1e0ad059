// The documents as a tree, read page by page, or those that a search finds.

import { get } from "../../api.js";
import { bytes } from "../../format.js";
import { Typed, setFilters } from "../../parts.js";
import { place } from "../../router.js";
import { generation, who } from "../../session.js";
import { resyncs } from "../../store.js";
import { T } from "../../texts.js";
import { Empty, Text, Time, html, useLoad, usePages } from "../../ui.js";
import { encodePath } from "../../diff.js";

// --- addresses of documents, and their paths as a tree. Pure

/** @typedef {import("../../api.js").schemas["MemoryEntry"]} MemoryEntry */
/** @typedef {{ path: string, directories: Map<string, Directory>, entries: MemoryEntry[] }} Directory */

/** The page of a document; a search stays beside it. @param {string} path @param {Record<string, string | null | undefined>} [query] */
export function urlOf(path, query = {}) {
  const pairs = Object.entries(query).flatMap(([name, value]) => (value ? [[name, value]] : []));
  const search = pairs.length > 0 ? `?${new URLSearchParams(pairs)}` : "";
  return `/memory/${encodePath(path)}${search}`;
}

/** The last part of a path. @param {string} path */
export const nameOf = (path) => path.split("/").at(-1) ?? path;

/** Entries by directory, each in the order in which they come. @param {MemoryEntry[]} entries @returns {Directory} */
export function treeOf(entries) {
  /** @type {Directory} */
  const top = { path: "", directories: new Map(), entries: [] };
  for (const entry of entries) {
    let at = top;
    for (const name of entry.path.split("/").slice(0, -1)) {
      let next = at.directories.get(name);
      if (!next) {
        next = { path: `${at.path}${name}/`, directories: new Map(), entries: [] };
        at.directories.set(name, next);
      }
      at = next;
    }
    at.entries.push(entry);
  }
  return top;
}

/** How many documents are in a directory and below it. @param {Directory} directory @returns {number} */
export const countOf = ({ directories, entries }) => entries.length + [...directories.values()].reduce((sum, one) => sum + countOf(one), 0);

const LIMIT = 200;
/** More are found by a search. */
const MAX_SHOWN = 2_000;
/** With so many documents, directories are closed at first. */
const OPEN_COUNT = 100;

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  const query = { limit: LIMIT, cursor };
  return get("/api/memory/tree", { query, signal });
}

/** @param {{ directory: Directory, name: string, current: string, isOpen: boolean }} props @returns {any} */
const Branch = ({ directory, name, current, isOpen }) => html`
  <details open=${isOpen || current.startsWith(directory.path)}>
    <summary><${Text}>${name}<//>/ <span class="note">${countOf(directory)}</span></summary>
    <${Level} directory=${directory} current=${current} isOpen=${isOpen} />
  </details>
`;

/** @param {{ directory: Directory, current: string, isOpen: boolean }} props @returns {any} */
const Level = ({ directory, current, isOpen }) => html`
  <ul>
    ${[...directory.directories].map(([name, one]) => html`<li key=${one.path}><${Branch} directory=${one} name=${name} current=${current} isOpen=${isOpen} /></li>`)}
    ${directory.entries.map(({ path, bytes: size, updated_at: at }) => html`
      <li key=${path} class="leaf"><a class="open" href=${urlOf(path)} aria-current=${path === current ? "page" : undefined}><${Text}>${nameOf(path)}<//></a>
        <span class="note">${bytes(size)} · <${Time} at=${at} /></span></li>`)}
  </ul>
`;

/** @param {{ current: string, changes: number }} props */
function All({ current, changes }) {
  const { first, items, hasMore, status, more } = usePages(read, [changes, generation.value, resyncs.value]);
  const isFull = items.length >= MAX_SHOWN;
  return html`
    ${status}
    ${first && items.length === 0 && html`<${Empty}><h2>${T.memory.none}</h2>${who.value?.role !== "viewer" && html`<p><a href="/memory?show=new">${T.memory.new}</a></p>`}<//>`}
    <${Level} directory=${treeOf(items)} current=${current} isOpen=${items.length <= OPEN_COUNT} />
    ${hasMore && isFull ? html`<p class="note">${T.memory.full(items.length)}</p>` : more}
  `;
}

/** @param {{ q: string, current: string, changes: number }} props */
function Results({ q, current, changes }) {
  const { value, status } = useLoad((signal) => get("/api/memory/search", { query: { q }, signal }), [q, changes, generation.value]);
  return html`
    <h2>${T.memory.results}</h2>
    ${status}
    ${value?.items.length === 0 && html`<${Empty}><p>${T.memory.noResults}</p><//>`}
    <ul>${value?.items.map(({ path, snippet }) => html`
      <li key=${path} class="leaf"><a class="open" href=${urlOf(path, { q })} aria-current=${path === current ? "page" : undefined}><${Text}>${path}<//></a>
        <span class="note clamped"><${Text}>${snippet}<//></span></li>`)}</ul>
  `;
}

/** @param {{ current: string, changes: number }} props */
export function Tree({ current, changes }) {
  const q = place.value.query.get("q") ?? "";
  return html`
    <section class="tree" aria-label=${T.memory.documents}>
      <${Typed} name=${T.memory.search} filter="q" given=${q} look="search" />
      ${q ? html`<p><button type="button" class="link" onClick=${() => setFilters({ q: null })}>${T.memory.all}</button></p><${Results} q=${q} current=${current} changes=${changes} />`
        : html`<${All} current=${current} changes=${changes} />`}
    </section>
  `;
}
