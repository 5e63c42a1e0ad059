// The workspace of a job: directories, names that are found, uploads; one file is in `file.js`. Links are shown and not followed.

import { useMemo, useRef, useState } from "preact/hooks";
import { ApiError, address, get, isRefused, key } from "../../api.js";
import { bytes } from "../../format.js";
import { Typed } from "../../parts.js";
import { place } from "../../router.js";
import { generation, who } from "../../session.js";
import { FINISHED } from "../../store.js";
import { T } from "../../texts.js";
import { Empty, Text, Time, html, usePages } from "../../ui.js";
import { useChanges } from "./changes.js";
import { encodePath } from "../../diff.js";
import { File, nameOf, urlOf } from "./file.js";

/** @typedef {import("../../api.js").schemas["FileEntry"]} FileEntry */

const PAGE = 200;

/** Paths with all directories above them. Pure. @param {string[]} paths */
export function withDirectories(paths) {
  const all = new Set(paths);
  for (const path of paths) {
    for (let end = path.lastIndexOf("/"); end > 0; end = path.lastIndexOf("/", end - 1)) all.add(path.slice(0, end));
  }
  return all;
}

/** @param {{ id: string, entry: FileEntry, name: string, isChanged: boolean }} props */
function Entry({ id, entry, name, isChanged }) {
  const end = entry.kind === "directory" ? "/" : "";
  const isLink = entry.kind === "symlink" || entry.kind === "other" || entry.path_bytes;
  return html`<tr>
    <td>${isLink ? html`<${Text}>${name}<//> <span class="note">${entry.kind}</span>`
      : html`<a href=${`/jobs/${id}/files/${encodePath(entry.path)}${end}`}><${Text}>${name}${end}<//></a>`}
      ${isChanged && html` <span class="by-job" role="img" aria-label=${T.files.isByJob} title=${T.files.isByJob}>●</span>`}</td>
    <td class="number">${entry.kind === "file" ? bytes(entry.size_bytes) : ""}</td><td><${Time} at=${entry.modified_at} /></td><td><code>${entry.mode}</code></td></tr>`;
}

/** A directory, or what is found in it. @param {{ id: string, path: string, find: string, uploads: number, changed: Set<string> }} props */
function Directory({ id, path, find, uploads, changed }) {
  const read = async (/** @type {string | undefined} */ cursor, /** @type {AbortSignal | undefined} */ signal) => {
    const query = { ...(path && { path }), ...(find && { q: find }), limit: PAGE, cursor };
    const page = await get("/api/jobs/{id}/files", { path: { id }, query, signal });
    return page;
  };
  const { first, items, status, more } = usePages(read, [id, path, find, uploads, generation.value]);
  const nameIn = (/** @type {FileEntry} */ entry) => (find && !entry.path_bytes ? entry.path.slice(path ? path.length + 1 : 0) : nameOf(entry.path));
  return html`
    ${find && html`<h2><${Text}>${T.files.found(find)}<//></h2>`}
    ${status}
    ${first?.incomplete && html`<p class="banner" role="status">${T.files.incomplete}</p>`}
    ${first && items.length === 0 && html`<${Empty}><p>${find ? T.files.noneFound : T.files.none}</p><//>`}
    ${items.length > 0 && html`
      <table class="files"><thead><tr><th>${T.files.name}</th><th class="number">${T.files.size}</th><th>${T.files.changed}</th><th>${T.files.mode}</th></tr></thead>
        <tbody>${items.map((entry) => html`<${Entry} key=${entry.path} id=${id} entry=${entry} name=${nameIn(entry)} isChanged=${changed.has(entry.path)} />`)}</tbody></table>`}
    ${more}
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
  const changes = useChanges(job).value;
  const changed = useMemo(() => withDirectories(changes?.items.map(({ path }) => path) ?? []), [changes]);
  const path = place.value.params["path"] ?? "";
  const isDirectory = path === "" || place.value.path.endsWith("/");
  const parts = path.split("/").filter(Boolean);
  const directory = parts.join("/");
  const find = place.value.query.get("find") ?? "";
  const canUpload = isDirectory && who.value?.role !== "viewer" && !FINISHED.has(job.state);
  return html`
    <div class="line"><nav aria-label=${T.files.path}><a href=${`/jobs/${id}/files`}>${T.files.root}</a>
      ${parts.slice(0, isDirectory ? parts.length : -1).map((part, index) => html` / <a key=${index} href=${`/jobs/${id}/files/${encodePath(parts.slice(0, index + 1).join("/"))}/`}><${Text}>${part}<//></a>`)}</nav>
      <a href=${address("/api/jobs/{id}/archive", { path: { id } })} download>${T.files.archive}</a></div>
    ${isDirectory && html`<div class="filters" role="search"><${Typed} name=${T.files.find} filter="find" given=${find} maxlength="255" /></div>`}
    ${canUpload && html`<${Upload} key=${directory} id=${id} path=${directory} onEnd=${() => setUploads(uploads + 1)} />`}
    ${isDirectory ? html`<${Directory} key=${path} id=${id} path=${directory} find=${find} uploads=${uploads} changed=${changed} />`
      : html`<${File} key=${path} id=${id} path=${path} isChanged=${changed.has(path)} />`}
  `;
}
