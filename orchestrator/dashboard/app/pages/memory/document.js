// One document: its text, its versions, and what can be done with it.

import { useState } from "preact/hooks";
import { get, ignoreProblem, isProblem, onProblem, remove } from "../../api.js";
import { bytes, shortId } from "../../format.js";
import { ConfirmButton, Table, Tabs } from "../../parts.js";
import { go, place } from "../../router.js";
import { drafts, generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Problem, Text, Time, announce, html, useDoing, useLoad, useSubject } from "../../ui.js";
import { Edit, draftOf, readDocument, writeDocument } from "./edit.js";
import { urlOf } from "./tree.js";

// --- the versions of a document that are kept, newest first, each with who wrote it

const PAGES = new Map([["job", "/jobs/"], ["run", "/runs/"], ["thread", "/chat/"]]);

/** The page of what an agent worked on, and a short name. Pure. @param {string} by `user:NAME`, `job:ID`, `run:ID` or `thread:ID` */
export function authorOf(by) {
  const at = by.indexOf(":");
  const [kind, id] = [by.slice(0, at), by.slice(at + 1)];
  const page = PAGES.get(kind);
  return page ? { text: `${kind} ${shortId(id)}`, href: `${page}${encodeURIComponent(id)}` } : { text: id || by, href: null };
}

/** @param {{ by: string }} props */
function Author({ by }) {
  const { text, href } = authorOf(by);
  return href ? html`<a href=${href}><${Text}>${text}<//></a>` : html`<${Text}>${text}<//>`;
}

/** @param {{ path: string, current: number }} props */
export function Versions({ path, current }) {
  const { value, status } = useLoad((signal) => get("/api/memory/versions", { query: { path }, signal }), [path, current, generation.value]);
  return html`
    ${status}
    ${value && html`
      <${Table} name=${T.memory.shows.versions} columns=${T.memory.versionColumns}>${value.items.map(({ version, bytes: size, created_at: at, by }) => html`<tr key=${version}>
            <td><a href=${urlOf(path, { version: version === current ? null : String(version) })}>${T.memory.version(version)}</a></td>
            <td class="number">${bytes(size)}</td><td><${Time} at=${at} /></td><td><${Author} by=${by} /></td></tr>`)}<//>`}
  `;
}

/** @typedef {import("./edit.js").MemoryDocument} MemoryDocument */

/** A longer text is shown as a whole when it is asked for. */
const MAX_CHARS = 100_000;
const SHOWS = /** @type {const} */ (["text", "edit", "versions"]);

/** @param {{ content: string }} props */
function Source({ content }) {
  const [isWhole, setIsWhole] = useState(false);
  if (content === "") return html`<${Empty}><p>${T.memory.empty}</p><//>`;
  const isCut = !isWhole && content.length > MAX_CHARS;
  return html`
    <pre class="source-text" tabindex="0" role="group" aria-label=${T.memory.content}><${Text}>${isCut ? content.slice(0, MAX_CHARS) : content}<//></pre>
    ${isCut && html`<p><button type="button" onClick=${() => setIsWhole(true)}>${T.memory.whole(content.length)}</button></p>`}
  `;
}

/** @param {{ document: MemoryDocument, again: () => void, onChange: () => void }} props */
function Delete({ document: { path, version }, again, onChange }) {
  const { error, run } = useDoing();
  const drop = () => run(async () => {
    await remove("/api/memory", { query: { path }, ifMatch: `"${version}"` }).catch(onProblem(412, again)).catch(ignoreProblem(404));
    drafts.remove(draftOf(path));
    onChange();
    go("/memory");
  });
  return html`
    <${ConfirmButton} name=${T.memory.remove} title=${T.memory.removeQuestion} note=${T.memory.removeNote} look="danger" onYes=${drop} />
    ${error && html`<p class="failure" role="alert"><${Text}>${isProblem(error, 412) ? T.memory.removeClash : error.message}<//></p>`}
  `;
}

/** An earlier version, which can be stored again. @param {{ document: MemoryDocument, version: number, canWrite: boolean, onChange: () => void }} props */
function Old({ document: { path, version: current }, version, canWrite, onChange }) {
  const { value, error, again } = useLoad((signal) => get("/api/memory", { query: { path, version }, signal }), [path, version, generation.value]);
  const { error: failure, run } = useDoing();
  const restore = () => run(async () => {
    await writeDocument(path, value?.content ?? "", current).catch(onProblem(412, onChange));
    announce(T.memory.saved);
    onChange();
    go(urlOf(path));
  });
  return html`
    <p class="banner">${T.memory.old(version, current)} <a href=${urlOf(path)}>${T.memory.current}</a>
      ${canWrite && value && version !== current && html`<button type="button" onClick=${restore}>${T.memory.restore}</button>`}</p>
    <${Problem} error=${failure} />
    ${error && (isProblem(error, 404) ? html`<p class="failure" role="alert">${T.memory.goneVersion}</p>` : html`<${Failed} error=${error} again=${again} />`)}
    ${!value && !error && html`<${Loading} />`}
    ${value && html`<${Source} content=${value.content} />`}
  `;
}

/** @param {{ document: MemoryDocument, show: typeof SHOWS[number], canWrite: boolean, again: () => void, onChange: () => void }} props */
function Body({ document, show, canWrite, again, onChange }) {
  const { path } = document;
  const version = Number(place.value.query.get("version")) || null;
  const changed = () => (again(), onChange());
  if (show === "versions") return html`<${Versions} path=${path} current=${document.version} />`;
  if (show === "edit") return html`<${Edit} path=${path} document=${document} onChange=${changed} />`;
  if (version) return html`<${Old} document=${document} version=${version} canWrite=${canWrite} onChange=${changed} />`;
  return html`
    ${canWrite && drafts.get(draftOf(path)) && html`<p class="banner">${T.memory.draft} <a href=${urlOf(path, { show: "edit" })}>${T.memory.openDraft}</a></p>`}
    <${Source} content=${document.content} />
  `;
}

/** @param {{ path: string, show: string, canWrite: boolean }} props */
function Shows({ path, show, canWrite }) {
  const { edit, ...rest } = T.memory.shows;
  return html`
  <${Tabs} name=${T.memory.parts} words=${canWrite ? T.memory.shows : rest} current=${show} path=${(/** @type {string} */ name) => urlOf(path, { show: name === "text" ? null : name, q: place.value.query.get("q") })} />`;
}

/** @param {{ path: string, canWrite: boolean, onChange: () => void }} props */
export function Document({ path, canWrite, onChange }) {
  const { value, again, status } = useLoad((signal) => readDocument(path, signal).then((document) => ({ document })), [path, generation.value]);
  useSubject(path);
  const given = place.value.query.get("show");
  const show = SHOWS.find((name) => name === given && (canWrite || name !== "edit")) ?? "text";
  const document = value?.document;
  return html`
    <h2 tabindex="-1"><code><${Text}>${path}<//></code> <${Copy} text=${path} name=${path} /></h2>
    ${status}
    ${value && !document && html`<${Empty}><p><${Text}>${T.memory.missing(path)}<//></p>
      ${canWrite && html`<p><a href=${`/memory?${new URLSearchParams({ show: "new", path })}`}>${T.memory.create}</a></p>`}<//>`}
    ${document && html`
      <div class="line"><span class="note">${T.memory.version(document.version)} · ${bytes(new Blob([document.content]).size)} · ${T.memory.written} <${Time} at=${document.updated_at} /></span>
        <${Copy} text=${document.content} name=${T.memory.content} />
        ${canWrite && html`<${Delete} document=${document} again=${again} onChange=${onChange} />`}</div>
      <${Shows} path=${path} show=${show} canWrite=${canWrite} />
      <${Body} document=${document} show=${show} canWrite=${canWrite} again=${again} onChange=${onChange} />`}
  `;
}
