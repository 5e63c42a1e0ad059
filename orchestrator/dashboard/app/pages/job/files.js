// The workspace of a job: directories, and one file as text or image. Links are shown and not followed; HTML, SVG and PDF are source.

import { useEffect, useState } from "preact/hooks";
import { address, get, read as readBytes } from "../../api.js";
import { bytes } from "../../format.js";
import { place } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";

/** A longer file is shown from its beginning only. */
const MAX_SHOWN = 2 * 1024 * 1024;
const MAX_LINES = 20_000;
const IMAGES = /** @type {Record<string, string>} */ ({ png: "image/png", jpg: "image/jpeg", jpeg: "image/jpeg", gif: "image/gif", webp: "image/webp" });

/** @param {string} path */
const encode = (path) => path.split("/").map(encodeURIComponent).join("/");

/** @param {{ id: string, path: string }} props */
function File({ id, path }) {
  const url = `${address("/api/jobs/{id}/files", { path: { id } })}/${encode(path)}`;
  const { value, error, again } = useLoad((signal) => readBytes(url, MAX_SHOWN, signal), [url, generation.value]);
  const [image, setImage] = useState("");
  const type = IMAGES[path.split(".").at(-1)?.toLowerCase() ?? ""];
  useEffect(() => {
    if (!value || !type) return;
    const source = URL.createObjectURL(new Blob([value.content], { type }));
    setImage(source);
    return () => URL.revokeObjectURL(source);
  }, [value, type]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} />`;
  const isBinary = value.content.subarray(0, 8_192).includes(0);
  const text = isBinary ? "" : new TextDecoder().decode(value.content);
  const all = text.split("\n");
  return html`
    <p class="line"><strong><code><${Text}>${path}<//></code></strong> <span class="note">${bytes(value.size)}</span> <${Copy} text=${path} name=${path} />
      <a href=${url} download=${path.split("/").at(-1)}>${T.files.download}</a></p>
    ${value.isCut && html`<p class="banner">${T.files.cut(bytes(MAX_SHOWN))}</p>`}
    ${type && !value.isCut ? image && html`<img class="preview" src=${image} alt=${path} />`
      : isBinary ? html`<${Empty}><p>${T.files.binary}</p><//>`
      : html`<div class="diff" tabindex="0" role="group" aria-label=${path}><table><tbody>${all.slice(0, MAX_LINES).map((line, index) => html`
          <tr key=${index}><td class="number">${index + 1}</td><td class="code"><${Text}>${line}<//></td></tr>`)}</tbody></table></div>
        ${all.length > MAX_LINES && html`<p class="note">${T.changes.more(all.length - MAX_LINES)}</p>`}`}
  `;
}

/** @param {{ id: string, path: string }} props */
function Directory({ id, path }) {
  const [cursors, setCursors] = useState(/** @type {(string | null)[]} */ ([null]));
  const { value, error, isLoading, again } = useLoad(async (signal) => {
    const pages = [];
    for (const cursor of cursors) pages.push(await get("/api/jobs/{id}/files", { path: { id }, query: { ...(path && { path }), limit: 200, ...(cursor && { cursor }) }, signal }));
    return { items: pages.flatMap(({ items }) => items), next: pages.at(-1)?.next_cursor ?? null };
  }, [id, path, cursors.length, generation.value]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} />`;
  if (value.items.length === 0) return html`<${Empty}><p>${T.files.none}</p><//>`;
  return html`
    <table class="files"><thead><tr><th>${T.files.name}</th><th class="number">${T.files.size}</th><th>${T.files.changed}</th><th>${T.files.mode}</th></tr></thead><tbody>
      ${value.items.map((entry) => html`<tr key=${entry.path}>
        <td>${entry.kind === "symlink" || entry.path_bytes ? html`<${Text}>${name(entry.path)}<//> <span class="note">${entry.kind}</span>`
          : html`<a href=${`/jobs/${id}/files/${encode(entry.path)}${entry.kind === "directory" ? "/" : ""}`}><${Text}>${name(entry.path)}${entry.kind === "directory" ? "/" : ""}<//></a>`}</td>
        <td class="number">${entry.kind === "file" ? bytes(entry.size_bytes) : ""}</td><td><${Time} at=${entry.modified_at} /></td><td><code>${entry.mode}</code></td></tr>`)}
    </tbody></table>
    ${value.next && html`<button type="button" disabled=${isLoading} onClick=${() => setCursors([...cursors, value.next])}>${T.jobs.more}</button>`}
  `;
}

/** @param {string} path */
const name = (path) => path.split("/").at(-1) ?? path;

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Files({ job }) {
  const path = place.value.params["path"] ?? "";
  const isDirectory = path === "" || location.pathname.endsWith("/");
  const parts = path.split("/").filter(Boolean);
  return html`
    <p class="line"><nav aria-label=${T.files.path}><a href=${`/jobs/${job.id}/files`}>${T.files.root}</a>
      ${parts.slice(0, isDirectory ? parts.length : -1).map((part, index) => html` / <a key=${index} href=${`/jobs/${job.id}/files/${encode(parts.slice(0, index + 1).join("/"))}/`}><${Text}>${part}<//></a>`)}</nav>
      <a href=${`/api/jobs/${job.id}/archive`} download>${T.files.archive}</a></p>
    ${isDirectory ? html`<${Directory} key=${path} id=${job.id} path=${parts.join("/")} />` : html`<${File} key=${path} id=${job.id} path=${path} />`}
  `;
}
