// The documents as a tree, read page by page, or those that a search finds.

import { get } from "../../api.js";
import { bytes } from "../../format.js";
import { place, setQuery } from "../../router.js";
import { generation, who } from "../../session.js";
import { resyncs } from "../../store.js";
import { T } from "../../texts.js";
import { Empty, Failed, Text, Time, html, useLoad, usePages } from "../../ui.js";
import { marked } from "../job/code.js";
import { countOf, nameOf, treeOf, urlOf } from "./paths.js";

/** @typedef {import("./paths.js").Directory} DirectoryOf */

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

/** @param {{ directory: DirectoryOf, name: string, current: string, isOpen: boolean }} props @returns {any} */
const Branch = ({ directory, name, current, isOpen }) => html`
  <details open=${isOpen || current.startsWith(directory.path)}>
    <summary><${Text}>${marked(name)}<//>/ <span class="note">${countOf(directory)}</span></summary>
    <${Level} directory=${directory} current=${current} isOpen=${isOpen} />
  </details>
`;

/** @param {{ directory: DirectoryOf, current: string, isOpen: boolean }} props @returns {any} */
const Level = ({ directory, current, isOpen }) => html`
  <ul>
    ${[...directory.directories].map(([name, one]) => html`<li key=${one.path}><${Branch} directory=${one} name=${name} current=${current} isOpen=${isOpen} /></li>`)}
    ${directory.entries.map(({ path, bytes: size, updated_at: at }) => html`
      <li key=${path} class="leaf"><a class="open" href=${urlOf(path)} aria-current=${path === current ? "page" : undefined}><${Text}>${marked(nameOf(path))}<//></a>
        <span class="note">${bytes(size)} · <${Time} at=${at} /></span></li>`)}
  </ul>
`;

/** @param {{ current: string, changes: number }} props */
function All({ current, changes }) {
  const { first, items, error, again, readMore, hasMore, moreError, status } = usePages(read, [changes, generation.value, resyncs.value]);
  const isFull = items.length >= MAX_SHOWN;
  return html`
    ${status}
    ${first && items.length === 0 && html`<${Empty}><h2>${T.memory.none}</h2>${who.value?.role !== "viewer" && html`<p><a href="/memory?show=new">${T.memory.new}</a></p>`}<//>`}
    <${Level} directory=${treeOf(items)} current=${current} isOpen=${items.length <= OPEN_COUNT} />
    ${moreError && html`<${Failed} error=${moreError} again=${readMore} />`}
    ${hasMore && (isFull ? html`<p class="note">${T.memory.full(items.length)}</p>`
      : html`<p><button type="button" onClick=${readMore}>${T.jobs.more}</button> <span class="note">${T.jobs.shown(items.length)}</span></p>`)}
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
      <li key=${path} class="leaf"><a class="open" href=${urlOf(path, { q })} aria-current=${path === current ? "page" : undefined}><${Text}>${marked(path)}<//></a>
        <span class="note clamped"><${Text}>${marked(snippet)}<//></span></li>`)}</ul>
  `;
}

/** @param {{ current: string, changes: number }} props */
export function Tree({ current, changes }) {
  const q = place.value.query.get("q") ?? "";
  return html`
    <section class="tree" aria-label=${T.memory.documents}>
      <label class="search">${T.memory.search} <input type="search" value=${q} onChange=${(/** @type {any} */ event) => setQuery({ q: event.target.value.trim() || null })} /></label>
      ${q ? html`<p><button type="button" class="link" onClick=${() => setQuery({ q: null })}>${T.memory.all}</button></p><${Results} q=${q} current=${current} changes=${changes} />`
        : html`<${All} current=${current} changes=${changes} />`}
    </section>
  `;
}
