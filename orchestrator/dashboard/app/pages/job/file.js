// One file of a workspace: text a window at a time, with links to its lines; png, jpeg, gif and webp as images. HTML, SVG and PDF are never
// rendered.

import { useEffect, useMemo, useState } from "preact/hooks";
import { address } from "../../api.js";
import { bytes } from "../../format.js";
import { place } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { Code, encodePath } from "./code.js";
import { WINDOW_BYTES, readWhole, useFile } from "./use_file.js";

/** @typedef {import("./use_file.js").Part} Part */

const LINE_PX = 20;
/** A larger image is not shown. */
const MAX_IMAGE_BYTES = 16 * 1024 * 1024;
/** Windows that are read to get to the line that the address names. */
const MAX_READS = 32;
const IMAGES = /** @type {Record<string, string>} */ ({ png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" });

/** The address of a file. @param {string} id @param {string} path */
export const urlOf = (id, path) => `${address("/api/jobs/{id}/files", { path: { id } })}/${encodePath(path)}`;

/** @param {string} path */
export const nameOf = (path) => path.split("/").at(-1) ?? path;

/** The line that an address names. Pure. @param {string} hash */
export const lineOf = (hash) => Number(/^#L(\d{1,9})$/.exec(hash)?.[1]) || null;

/** Whether it cannot be shown as text. Pure. @param {Uint8Array} head the beginning */
export const isBinary = (head) => head.subarray(0, 8_192).includes(0) || new TextDecoder().decode(head.subarray(0, 5)) === "%PDF-";

/** @param {{ path: string, parts: Part[], line: number | null }} props */
function Source({ path, parts, line }) {
  const rows = useMemo(() => parts.flatMap(({ first, lines }) => lines.map((text, index) => ({ seq: first + index, text }))), [parts]);
  const draw = (/** @type {{ seq: number, text: string }} */ { seq, text }, /** @type {number} */ _, /** @type {boolean} */ isActive) => html`
    <div class=${seq === line ? "source named" : "source"}>
      <a class="number" href=${`#L${seq}`} aria-label=${T.files.line(seq)} tabindex=${isActive ? 0 : -1}>${seq}</a><${Code} line=${text} /></div>`;
  return html`
    <div role="group" aria-label=${path} class="sources" style=${{ height: `min(70vh, ${rows.length * LINE_PX + 24}px)` }}>
      <${VirtualRows} rows=${rows} rowHeight=${LINE_PX} label=${T.job.lines} draw=${draw} selected=${line} active=${line} isFocusable /></div>`;
}

/** @param {{ url: string, path: string, file: ReturnType<typeof useFile>, type: string }} props */
function Image({ url, path, file: { version, head }, type }) {
  const { value, error, again } = useLoad(async (signal) => version && head && readWhole(url, version, head, signal), [url, head]);
  const [source, setSource] = useState("");
  useEffect(() => {
    if (!value) return;
    const made = URL.createObjectURL(new Blob([value], { type }));
    setSource(made);
    return () => URL.revokeObjectURL(made);
  }, [value, type]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  return source ? html`<img class="preview" src=${source} alt=${path} />` : html`<${Loading} />`;
}

/** Which lines are shown, and what else can be read. @param {{ file: ReturnType<typeof useFile> }} props */
function Position({ file: { parts, version, hasMore, isBusy, readMore, restart } }) {
  const [first, last] = [parts[0], parts.at(-1)];
  if (!first || !last || !version || (first.from === 0 && !hasMore)) return null;
  const lastLine = last.first + last.lines.length - 1;
  return html`
    <p class="line"><span class="note">${T.files.read(first.first, lastLine, bytes(last.to), bytes(version.size))}</span>
      ${hasMore && html`<button type="button" disabled=${isBusy} onClick=${readMore}>${T.files.more(bytes(Math.min(WINDOW_BYTES, version.size - last.to)))}</button>`}
      ${first.from > 0 && html`<button type="button" disabled=${isBusy} onClick=${restart}>${T.files.start}</button>`}</p>
  `;
}

/** @param {{ url: string, path: string, file: ReturnType<typeof useFile>, line: number | null }} props */
function Content({ url, path, file, line }) {
  const { head, version } = file;
  const type = IMAGES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  if (!head || !version) return null;
  if (version.size === 0) return html`<${Empty}><p>${T.files.empty}</p><//>`;
  if (type && version.size > MAX_IMAGE_BYTES) return html`<${Empty}><p>${T.files.largeImage}</p><//>`;
  if (type) return html`<${Image} url=${url} path=${path} file=${file} type=${type} />`;
  if (isBinary(head)) return html`<${Empty}><p>${T.files.binary}</p><//>`;
  return html`<${Source} path=${path} parts=${file.parts} line=${line} /><${Position} file=${file} />`;
}

/** @param {{ id: string, path: string, isChanged: boolean }} props */
export function File({ id, path, isChanged }) {
  const url = urlOf(id, path);
  const file = useFile(url, generation.value);
  const { version, error, isBusy, parts } = file;
  // The address of a line is another place of the same page.
  const line = place.value && lineOf(location.hash);
  const last = parts.at(-1);
  const reads = last ? last.to / WINDOW_BYTES : 0;
  const isBefore = line !== null && last !== undefined && line >= last.first + last.lines.length;
  useEffect(() => {
    if (isBefore && file.hasMore && !error && !isBusy && reads < MAX_READS) file.readMore();
  }, [isBefore, isBusy]);
  return html`
    <p class="line"><strong><code><${Text}>${path}<//></code></strong>
      ${version && html`<span class="note">${bytes(version.size)} ${version.modified && html`· <${Time} at=${new Date(version.modified).toISOString()} />`}</span>`}
      <${Copy} text=${path} name=${path} /> <a href=${url} download=${nameOf(path)}>${T.files.download}</a>
      ${isChanged && html`<a href=${`/jobs/${id}/changes/${encodePath(path)}`}>${T.files.diff}</a>`}</p>
    ${error && html`<${Failed} error=${error} again=${version ? file.readMore : file.restart} />`}
    ${file.isChanged && html`<p class="banner" role="status">${T.files.isChanged} <button type="button" onClick=${file.restart}>${T.files.readAgain}</button></p>`}
    ${!version && !error && html`<${Loading} />`}
    <${Content} url=${url} path=${path} file=${file} line=${line} />
  `;
}
