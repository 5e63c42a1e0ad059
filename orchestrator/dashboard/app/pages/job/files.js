// The workspace of a job: directories, uploads, and one file as text or image. Links are shown and not followed; HTML, SVG and PDF are
// source.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, address, get, isRefused, key, read as readBytes } from "../../api.js";
import { bytes } from "../../format.js";
import { place } from "../../router.js";
import { generation, who } from "../../session.js";
import { FINISHED } from "../../store.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { Code, encodePath } from "./code.js";

/** @typedef {import("../../api.js").schemas["FileEntry"]} FileEntry */

/** A longer file is shown from its beginning only. */
const MAX_SHOWN = 2 * 1024 * 1024;
const LINE_PX = 20;
const PAGE = 200;
const IMAGES = /** @type {Record<string, string>} */ ({ png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" });

/** The address of a file. @param {string} id @param {string} path */
const urlOf = (id, path) => `${address("/api/jobs/{id}/files", { path: { id } })}/${encodePath(path)}`;

/** @param {string} path */
const name = (path) => path.split("/").at(-1) ?? path;

/** @param {{ path: string, content: Uint8Array<ArrayBuffer> }} props */
function Source({ path, content }) {
  const rows = useMemo(() => {
    const all = new TextDecoder().decode(content).replace(/\n$/, "").split("\n");
    return all.map((line, index) => ({ seq: index + 1, line }));
  }, [content]);
  const draw = (/** @type {{ seq: number, line: string }} */ { seq, line }) => html`
    <div class="source"><span class="number">${seq}</span><${Code} line=${line} /></div>`;
  return html`
    <div role="group" aria-label=${path} class="sources" style=${{ height: `min(70vh, ${rows.length * LINE_PX + 24}px)` }}>
      <${VirtualRows} rows=${rows} rowHeight=${LINE_PX} label=${T.job.lines} draw=${draw} isFocusable /></div>`;
}

/** @param {{ path: string, content: Uint8Array<ArrayBuffer>, type: string }} props */
function Image({ path, content, type }) {
  const [source, setSource] = useState("");
  useEffect(() => {
    const made = URL.createObjectURL(new Blob([content], { type }));
    setSource(made);
    return () => URL.revokeObjectURL(made);
  }, [content, type]);
  return source && html`<img class="preview" src=${source} alt=${path} />`;
}

/** @param {{ id: string, path: string }} props */
function File({ id, path }) {
  const url = urlOf(id, path);
  const { value, error, again } = useLoad((signal) => readBytes(url, MAX_SHOWN, signal), [url, generation.value]);
  const type = IMAGES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  const isBinary = value?.content.subarray(0, 8_192).includes(0);
  return html`
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} />`}
    ${value && html`
      <p class="line"><strong><code><${Text}>${path}<//></code></strong> <span class="note">${bytes(value.size)}</span> <${Copy} text=${path} name=${path} />
        <a href=${url} download=${name(path)}>${T.files.download}</a></p>
      ${value.isCut && html`<p class="banner">${T.files.cut(bytes(MAX_SHOWN))}</p>`}
      ${type && !value.isCut ? html`<${Image} path=${path} content=${value.content} type=${type} />`
        : isBinary ? html`<${Empty}><p>${T.files.binary}</p><//>`
        : html`<${Source} path=${path} content=${value.content} />`}`}
  `;
}

/** @param {{ id: string, entry: FileEntry }} props */
function Entry({ id, entry }) {
  const end = entry.kind === "directory" ? "/" : "";
  const isLink = entry.kind === "symlink" || entry.kind === "other" || entry.path_bytes;
  return html`<tr>
    <td>${isLink ? html`<${Text}>${name(entry.path)}<//> <span class="note">${entry.kind}</span>`
      : html`<a href=${`/jobs/${id}/files/${encodePath(entry.path)}${end}`}><${Text}>${name(entry.path)}${end}<//></a>`}</td>
    <td class="number">${entry.kind === "file" ? bytes(entry.size_bytes) : ""}</td><td><${Time} at=${entry.modified_at} /></td><td><code>${entry.mode}</code></td></tr>`;
}

/** @param {{ id: string, path: string, cursor: string | null, signal?: AbortSignal }} of */
const readPage = ({ id, path, cursor, ...of }) =>
  get("/api/jobs/{id}/files", { path: { id }, query: { ...(path && { path }), limit: PAGE, ...(cursor && { cursor }) }, ...of });

/** @param {{ id: string, path: string, uploads: number }} props */
function Directory({ id, path, uploads }) {
  const { value, error, again } = useLoad((signal) => readPage({ id, path, cursor: null, signal }), [id, path, uploads, generation.value]);
  const [added, setAdded] = useState(/** @type {{ items: FileEntry[], next: string | null | undefined }} */ ({ items: [], next: undefined }));
  useEffect(() => setAdded({ items: [], next: value?.next_cursor }), [value]);
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null }} */ ({ isBusy: false, error: null }));
  async function readMore() {
    setState({ isBusy: true, error: null });
    try {
      const page = await readPage({ id, path, cursor: added.next ?? null });
      setAdded({ items: [...added.items, ...page.items], next: page.next_cursor });
      setState({ isBusy: false, error: null });
    } catch (failure) {
      setState({ isBusy: false, error: /** @type {Error} */ (failure) });
    }
  }
  const items = [...(value?.items ?? []), ...added.items];
  return html`
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} />`}
    ${value && items.length === 0 && html`<${Empty}><p>${T.files.none}</p><//>`}
    ${items.length > 0 && html`
      <table class="files"><thead><tr><th>${T.files.name}</th><th class="number">${T.files.size}</th><th>${T.files.changed}</th><th>${T.files.mode}</th></tr></thead>
        <tbody>${items.map((entry) => html`<${Entry} key=${entry.path} id=${id} entry=${entry} />`)}</tbody></table>`}
    ${state.error && html`<${Failed} error=${state.error} again=${readMore} />`}
    ${added.next && html`<button type="button" disabled=${state.isBusy} onClick=${readMore}>${T.jobs.more}</button>`}
  `;
}

/** Writes a file into the workspace. @param {string} url @param {Blob} content */
async function put(url, content) {
  const headers = { "Content-Type": "application/octet-stream", "X-Gantry-Key": key.get() ?? "" };
  const response = await fetch(url, { method: "PUT", headers, body: content }).catch(() => {
    throw new ApiError(0, {});
  });
  if (response.ok) return;
  const error = new ApiError(response.status, await response.json().catch(() => ({})));
  if (error.status === 401 || error.code === "cross_origin") isRefused.value = true;
  throw error;
}

/** Uploads files into a directory, one after the other. @param {{ id: string, path: string, onEnd: () => void }} props */
function Upload({ id, path, onEnd }) {
  const input = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [busy, setBusy] = useState("");
  const [error, setError] = useState("");
  async function upload() {
    const files = [...(input.current?.files ?? [])];
    setError("");
    for (const file of files) {
      setBusy(file.name);
      try {
        await put(urlOf(id, path === "" ? file.name : `${path}/${file.name}`), file);
      } catch (failure) {
        setError(`${file.name}: ${/** @type {Error} */ (failure).message}`);
        break;
      }
    }
    if (input.current) input.current.value = "";
    setBusy("");
    onEnd();
  }
  return html`
    <p class="line"><label for="upload">${T.job.upload}</label> <input id="upload" type="file" multiple ref=${input} disabled=${busy !== ""} onChange=${upload} />
      ${busy && html`<span class="note" role="status"><${Text}>${T.job.uploading(busy)}<//></span>`}</p>
    ${error && html`<p class="failure" role="alert"><${Text}>${error}<//></p>`}
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Files({ job }) {
  const { id } = job;
  const [uploads, setUploads] = useState(0);
  const path = place.value.params["path"] ?? "";
  const isDirectory = path === "" || place.value.path.endsWith("/");
  const parts = path.split("/").filter(Boolean);
  const directory = parts.join("/");
  const canUpload = isDirectory && who.value?.role !== "viewer" && !FINISHED.has(job.state);
  return html`
    <div class="line"><nav aria-label=${T.files.path}><a href=${`/jobs/${id}/files`}>${T.files.root}</a>
      ${parts.slice(0, isDirectory ? parts.length : -1).map((part, index) => html` / <a key=${index} href=${`/jobs/${id}/files/${encodePath(parts.slice(0, index + 1).join("/"))}/`}><${Text}>${part}<//></a>`)}</nav>
      <a href=${address("/api/jobs/{id}/archive", { path: { id } })} download>${T.files.archive}</a></div>
    ${canUpload && html`<${Upload} key=${directory} id=${id} path=${directory} onEnd=${() => setUploads(uploads + 1)} />`}
    ${isDirectory ? html`<${Directory} key=${path} id=${id} path=${directory} uploads=${uploads} />` : html`<${File} key=${path} id=${id} path=${path} />`}
  `;
}
