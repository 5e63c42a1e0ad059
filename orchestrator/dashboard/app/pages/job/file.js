// One file of a workspace: text a window at a time, with links to its lines; png, jpeg, gif and webp as images. HTML, SVG and PDF are never
// rendered.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { address, readPart } from "../../api.js";
import { bytes } from "../../format.js";
import { Code, encodePath } from "../../diff.js";
import { place } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";

// --- a file in windows: each is read when it is asked for, and only the last ones are kept
// Owns where a window ends, the numbers of its lines, and whether the file has changed meanwhile.
// Never reads more than it is asked for.

/** @typedef {import("../../api.js").Version} Version */
/**
 * Lines of a file: bytes `from` to `to`, of which `first` is the number of the first line. The last line of the one before may go on in it.
 * @typedef {{ from: number, to: number, first: number, lines: string[], isCut: boolean }} Part
 * @typedef {{ parts: Part[], head: Uint8Array<ArrayBuffer> | null, version: Version | null, isChanged: boolean, isBusy: boolean, error: Error | null }} Windows
 */

export const WINDOW_BYTES = 2 * 1024 * 1024;
/** A window of short lines ends before. */
const MAX_LINES = 100_000;
/** Windows that are kept. */
const MAX_PARTS = 4;
const NEWLINE = 10;

/**
 * How many bytes of a window are shown: up to its last line, or at least its last character. Pure.
 * @param {Uint8Array} content @param {boolean} isLast
 */
export function usable(content, isLast) {
  let [end, count] = [0, 0];
  for (let at = content.indexOf(NEWLINE); at >= 0 && count < MAX_LINES; at = content.indexOf(NEWLINE, end)) {
    end = at + 1;
    count += 1;
  }
  if (count === MAX_LINES) return end;
  if (isLast) return content.length;
  if (end > 0) return end;
  // A line that is longer than the window.
  return lastCharacter(content);
}

/** The end of the last whole character. @param {Uint8Array} content */
function lastCharacter(content) {
  for (let back = 1; back <= Math.min(3, content.length); back += 1) {
    const byte = content[content.length - back] ?? 0;
    if ((byte & 0xc0) === 0x80) continue;
    const length = byte >= 0xf0 ? 4 : byte >= 0xe0 ? 3 : byte >= 0xc0 ? 2 : 1;
    return length > back ? content.length - back : content.length;
  }
  return content.length;
}

/**
 * The lines of the window that follows `before`. Pure.
 * @param {Part | undefined} before @param {Uint8Array} content @param {number} size of the file @returns {Part}
 */
export function partAfter(before, content, size) {
  const from = before?.to ?? 0;
  const used = usable(content, from + content.length >= size);
  const text = new TextDecoder("utf-8", { ignoreBOM: true }).decode(content.subarray(0, used));
  const isCut = used > 0 && !text.endsWith("\n") && from + used < size;
  const lines = text === "" ? [] : text.replace(/\n$/, "").split("\n");
  const first = before ? before.first + before.lines.length : 1;
  // The rest of a line of which the beginning is shown.
  if (before?.isCut) lines.shift();
  return { from, to: from + used, first, lines, isCut };
}

/** Whether two answers are about the same content, as far as it is known. Pure. @param {Version} one @param {Version} other */
export const isSame = (one, other) =>
  one.etag && other.etag ? one.etag === other.etag : one.size === other.size && one.modified === other.modified;

/** @type {Windows} */
const NOTHING = { parts: [], head: null, version: null, isChanged: false, isBusy: true, error: null };

/** Reads a file from its beginning, a window at a time. @param {string} url @param {unknown} generation */
export function useFile(url, generation) {
  const [windows, setWindows] = useState(NOTHING);
  const latest = useRef(windows);
  latest.current = windows;
  const over = useRef(new AbortController());

  /** @param {Windows} before */
  async function readAfter(before) {
    const { signal } = over.current;
    const set = (/** @type {Partial<Windows>} */ change) => signal.aborted || setWindows({ ...before, isBusy: false, error: null, ...change });
    setWindows({ ...before, isBusy: true });
    const last = before.parts.at(-1);
    try {
      const { content, version } = await readPart(url, { from: last?.to ?? 0, most: WINDOW_BYTES }, signal);
      if (before.version && !isSame(before.version, version)) return set({ isChanged: true });
      set({ version, head: before.head ?? content, parts: [...before.parts, partAfter(last, content, version.size)].slice(-MAX_PARTS) });
    } catch (error) {
      if (!signal.aborted) set({ error: /** @type {Error} */ (error) });
    }
  }

  function restart() {
    over.current.abort();
    over.current = new AbortController();
    readAfter(NOTHING);
  }
  useEffect(() => {
    restart();
    return () => over.current.abort();
  }, [url, generation]);

  const { parts, version, isChanged } = windows;
  const last = parts.at(-1);
  return {
    ...windows,
    hasMore: version !== null && last !== undefined && last.to < version.size && !isChanged,
    readMore: () => void (latest.current.isBusy || readAfter(latest.current)),
    restart,
  };
}

/**
 * The whole content of a file, which is not long.
 * @param {string} url @param {Version} version @param {Uint8Array<ArrayBuffer>} head what is read already @param {AbortSignal} signal
 */
export async function readWhole(url, version, head, signal) {
  const pieces = [head];
  for (let from = head.length; from < version.size; from += WINDOW_BYTES) {
    const read = await readPart(url, { from, most: WINDOW_BYTES }, signal);
    // Pieces of two versions are no image.
    if (!isSame(version, read.version)) throw new Error(T.files.isChanged);
    pieces.push(read.content);
  }
  return new Blob(pieces);
}

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
      <${VirtualRows} rows=${rows} rowHeight=${LINE_PX} label=${T.job.lines} draw=${draw} selected=${line} /></div>`;
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
