// What a job has changed in its workspace: each file with its diff, or one of them.

import { useMemo, useState } from "preact/hooks";
import { get } from "../../api.js";
import { counts, lines } from "../../diff.js";
import { bytes } from "../../format.js";
import { place } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, html, useLoad } from "../../ui.js";
import { Code, encodePath } from "./code.js";

/** @typedef {import("../../api.js").schemas["FileChange"]} FileChange */

/** A longer diff is opened by hand. */
const OPEN_CHARS = 20_000;
/** So much of all diffs is open at first. */
const OPEN_TOTAL_CHARS = 100_000;
/** So many lines are drawn at once. */
const STEP_LINES = 500;
const SIGNS = { added: "+", modified: "~", deleted: "−" };
const MARKS = /** @type {Record<string, string>} */ ({ added: "+", removed: "−" });

/** @param {{ change: FileChange, found: import("../../diff.js").Line[] }} props */
function Diff({ change, found }) {
  const [shown, setShown] = useState(STEP_LINES);
  const left = found.length - shown;
  return html`
    <div class="diff" tabindex="0" role="group" aria-label=${change.path}><table><tbody>
      ${found.slice(0, shown).map((line, index) => html`<tr key=${index} class=${line.kind}>
        <td class="number">${line.before}</td><td class="number">${line.after}</td><td class="mark">${MARKS[line.kind] ?? ""}</td>
        <td class="code"><${Code} line=${line.text} /></td></tr>`)}
    </tbody></table></div>
    ${left > 0 && html`<p class="note line">${T.job.moreLines(left)} <button type="button" onClick=${() => setShown(shown + STEP_LINES)}>${T.jobs.more}</button></p>`}
  `;
}

/** @param {{ id: string, change: FileChange, isFirst: boolean }} props */
function File({ id, change, isFirst }) {
  const found = useMemo(() => (change.diff ? lines(change.diff) : []), [change.diff]);
  const { added, removed } = useMemo(() => counts(found), [found]);
  const [isOpen, setIsOpen] = useState(isFirst);
  const toggle = (/** @type {any} */ event) => setIsOpen(event.currentTarget.open);
  const path = encodePath(change.path);
  return html`
    <details class="change" open=${isOpen} onToggle=${toggle}>
      <summary><span class="sign ${change.change}" aria-label=${T.changes[change.change]}>${SIGNS[change.change]}</span> <code><${Text}>${change.path}<//></code>
        ${change.diff ? html` <span class="added">+${added}</span> <span class="removed">−${removed}</span>` : html` <span class="note">${omitted(change)}</span>`}</summary>
      <p class="note line"><${Copy} text=${change.path} name=${change.path} />
        ${!change.path_bytes && html`<a href=${`/jobs/${id}/changes/${path}`}>${T.job.onlyFile}</a>`}
        ${change.change !== "deleted" && !change.path_bytes && html`<a href=${`/jobs/${id}/files/${path}`}>${T.changes.file}</a>`}</p>
      ${isOpen && found.length > 0 && html`<${Diff} change=${change} found=${found} />`}
    </details>
  `;
}

/** @param {FileChange} change */
function omitted({ size_bytes: size, previous_size_bytes: before, diff_omitted: why }) {
  const sizes = [before, size].filter((one) => one !== null && one !== undefined).map((one) => bytes(Number(one))).join(" → ");
  return [why && (T.changes.omitted[/** @type {"binary"} */ (why)] ?? why), sizes].filter(Boolean).join(", ");
}

/** The paths whose diffs are open at first: the first ones, as far as they are short. @param {FileChange[]} changes */
export function openAtFirst(changes) {
  let left = OPEN_TOTAL_CHARS;
  return new Set(changes.flatMap(({ path, diff }) => {
    const size = diff?.length ?? 0;
    if (size === 0 || size > OPEN_CHARS || size > left) return [];
    left -= size;
    return [path];
  }));
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Changes({ job }) {
  const { id } = job;
  const path = place.value.params["path"];
  const { value, error, isLoading, again } = useLoad((signal) => get("/api/jobs/{id}/changes", { path: { id }, signal }), [id, job.state, generation.value]);
  const first = useMemo(() => openAtFirst(value?.items ?? []), [value]);
  const items = value?.items.filter((change) => path === undefined || change.path === path) ?? [];
  return html`
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!value && !error && html`<${Loading} />`}
    ${value && html`
      <p class="line"><span>${T.changes.count(value.items.length)}</span> <button type="button" disabled=${isLoading} onClick=${again}>${T.changes.again}</button>
        ${path !== undefined && html`<a href=${`/jobs/${id}/changes`}>${T.job.allFiles}</a>`}</p>
      ${value.truncated && html`<p class="banner">${T.changes.truncated}</p>`}
      ${items.length === 0 && html`<${Empty}><p>${path === undefined ? T.changes.none : html`${T.job.unchanged} <${Text}>${path}<//>`}</p><//>`}
      ${items.map((change) => html`<${File} key=${`${path} ${change.path}`} id=${id} change=${change} isFirst=${path !== undefined || first.has(change.path)} />`)}`}
  `;
}
