// What a job has changed in its workspace: each file with its diff.

import { useState } from "preact/hooks";
import { get } from "../../api.js";
import { counts, lines } from "../../diff.js";
import { bytes } from "../../format.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, html, useLoad } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["FileChange"]} FileChange */

/** A longer diff is opened by hand. */
const OPEN_LINES = 400;
/** So many lines are drawn at once. */
const MAX_LINES = 5_000;
const SIGNS = { added: "+", modified: "~", deleted: "−" };

/** @param {{ job: import("../../api.js").schemas["Job"], change: FileChange }} props */
function File({ job, change }) {
  const found = change.diff ? lines(change.diff) : [];
  const { added, removed } = counts(found);
  const [isOpen, setIsOpen] = useState(found.length <= OPEN_LINES);
  const toggle = (/** @type {any} */ event) => setIsOpen(event.currentTarget.open);
  return html`
    <details class="change" open=${isOpen} onToggle=${toggle}>
      <summary><span class="sign ${change.change}" aria-label=${T.changes[change.change]}>${SIGNS[change.change]}</span> <code><${Text}>${change.path}<//></code>
        ${change.diff ? html`<span class="added">+${added}</span> <span class="removed">−${removed}</span>` : html`<span class="note">${omitted(change)}</span>`}</summary>
      <p class="note line"><${Copy} text=${change.path} name=${change.path} /> ${change.change !== "deleted" && !change.path_bytes && html`<a href=${`/jobs/${job.id}/files/${change.path.split("/").map(encodeURIComponent).join("/")}`}>${T.changes.file}</a>`}</p>
      ${isOpen && found.length > 0 && html`<div class="diff" tabindex="0" role="group" aria-label=${change.path}><table><tbody>
        ${found.slice(0, MAX_LINES).map((line, index) => html`<tr key=${index} class=${line.kind}>
          <td class="number">${line.before}</td><td class="number">${line.after}</td><td class="mark">${line.kind === "added" ? "+" : line.kind === "removed" ? "−" : ""}</td>
          <td class="code"><${Text}>${line.text}<//></td></tr>`)}
      </tbody></table></div>
      ${found.length > MAX_LINES && html`<p class="note">${T.changes.more(found.length - MAX_LINES)}</p>`}`}
    </details>
  `;
}

/** @param {FileChange} change */
function omitted({ size_bytes: size, previous_size_bytes: before, diff_omitted: why }) {
  const sizes = [before, size].filter((one) => one !== null && one !== undefined).map((one) => bytes(Number(one))).join(" → ");
  return [why && (T.changes.omitted[/** @type {"binary"} */ (why)] ?? why), sizes].filter(Boolean).join(", ");
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Changes({ job }) {
  const { id } = job;
  const { value, error, isLoading, again } = useLoad((signal) => get("/api/jobs/{id}/changes", { path: { id }, signal }), [id, job.state, generation.value]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} />`;
  return html`
    <p class="line"><span>${T.changes.count(value.items.length)}</span> <button type="button" disabled=${isLoading} onClick=${again}>${T.changes.again}</button></p>
    ${value.truncated && html`<p class="banner">${T.changes.truncated}</p>`}
    ${value.items.length === 0 && html`<${Empty}><p>${T.changes.none}</p><//>`}
    ${value.items.map((change) => html`<${File} key=${change.path} job=${job} change=${change} />`)}
  `;
}
