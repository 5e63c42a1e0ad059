// One changed file: its head, and its diff once it is opened. Far from the view only its height is in the page.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { Code, counts, encodePath, lines } from "../../diff.js";
import { bytes } from "../../format.js";
import { T } from "../../texts.js";
import { Copy, Text, html } from "../../ui.js";
import { nameOf, urlOf } from "./file.js";

/** @typedef {import("../../api.js").schemas["FileChange"]} FileChange */

/** So many lines are drawn at once. */
const STEP_LINES = 500;
/** Heights of what was not drawn yet: a head, the links below it, a line. */
const [HEAD_PX, LINKS_PX, LINE_PX] = [44, 40, 18];
/** What is so near to the view is drawn. */
const MARGIN = "800px 0px";
const MARKS = /** @type {Record<string, string>} */ ({ added: "+", removed: "−" });
export const SIGNS = { added: "+", modified: "~", deleted: "−" };

/** The name of a file's place in the page. @param {string} path */
export const anchorOf = (path) => `f-${encodePath(path)}`;

/** How many lines a diff has, without its header. @param {FileChange} change */
export const lengthOf = ({ diff }) => (diff ? diff.split("\n").length - 3 : 0);

/** @type {WeakMap<Element, (isNear: boolean) => void>} */
const watched = new WeakMap();
/** One for all files. @type {IntersectionObserver | undefined} */
let observer;

/** Whether an element is near to the view. @param {{ current: HTMLElement | null }} box */
function useNear(box) {
  const [isNear, setIsNear] = useState(false);
  useEffect(() => {
    const element = box.current;
    if (!element) return;
    observer ??= new IntersectionObserver((entries) => {
      for (const { target, isIntersecting } of entries) watched.get(target)?.(isIntersecting);
    }, { rootMargin: MARGIN });
    watched.set(element, setIsNear);
    observer.observe(element);
    return () => observer?.unobserve(element);
  }, []);
  return isNear;
}

/** @param {{ path: string, found: import("../../diff.js").Line[] }} props */
function Diff({ path, found }) {
  const [shown, setShown] = useState(STEP_LINES);
  const left = found.length - shown;
  return html`
    <div class="diff" tabindex="0" role="group" aria-label=${path}><table><tbody>
      ${found.slice(0, shown).map((line, index) => html`<tr key=${index} class=${line.kind}>
        <td class="number">${line.before}</td><td class="number">${line.after}</td><td class="mark">${MARKS[line.kind] ?? ""}</td>
        <td class="code"><${Code} line=${line.text} /></td></tr>`)}
    </tbody></table></div>
    ${left > 0 && html`<p class="note line">${T.job.moreLines(left)} <button type="button" onClick=${() => setShown(shown + STEP_LINES)}>${T.jobs.more}</button></p>`}
  `;
}

/** @param {FileChange} change */
function omitted({ size_bytes: size, previous_size_bytes: before, diff_omitted: why }) {
  const sizes = [before, size].filter((one) => one !== null && one !== undefined).map((one) => bytes(Number(one))).join(" → ");
  return [why && T.changes.omitted[why], sizes].filter(Boolean).join(", ");
}

/** @typedef {{ id: string, change: FileChange, isOpen: boolean, isViewed: boolean, onOpen: (isOpen: boolean) => void, onView: () => void }} FileProps */

/** @param {FileProps} props */
function File({ id, change, isOpen, isViewed, onOpen, onView }) {
  const found = useMemo(() => (change.diff ? lines(change.diff) : []), [change.diff]);
  const { added, removed } = useMemo(() => counts(found), [found]);
  const path = encodePath(change.path);
  return html`
    <details class="change" open=${isOpen} onToggle=${(/** @type {any} */ event) => onOpen(event.currentTarget.open)}>
      <summary><span class="sign ${change.change}" role="img" aria-label=${T.changes[change.change]}>${SIGNS[change.change]}</span> <code><${Text}>${change.path}<//></code>
        ${change.diff ? html` <span class="added">+${added}</span> <span class="removed">−${removed}</span>` : html` <span class="note">${omitted(change)}</span>`}
        ${isViewed && html` <span class="note">${T.changes.viewed}</span>`}</summary>
      <p class="note line"><${Copy} text=${change.path} name=${change.path} />
        ${!change.path_bytes && html`<a href=${`/jobs/${id}/changes/${path}`}>${T.job.onlyFile}</a>`}
        ${change.change !== "deleted" && !change.path_bytes && html`<a href=${`/jobs/${id}/files/${path}`}>${T.changes.file}</a>
          ${!change.diff && html`<a href=${urlOf(id, change.path)} download=${nameOf(change.path)}>${T.files.download}</a>`}`}
        <label class="check"><input type="checkbox" checked=${isViewed} onChange=${onView} />${T.changes.viewed}</label></p>
      ${isOpen && found.length > 0 && html`<${Diff} path=${change.path} found=${found} />`}
    </details>
  `;
}

/** A file in its place. The current one is always drawn, since it has the focus. @param {FileProps & { isCurrent: boolean }} props */
export function Change({ isCurrent, ...props }) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const isNear = useNear(box);
  const isDrawn = isNear || isCurrent;
  const estimate = HEAD_PX + (props.isOpen ? LINKS_PX + Math.min(STEP_LINES, lengthOf(props.change)) * LINE_PX : 0);
  const known = useRef({ isOpen: props.isOpen, height: estimate });
  // As long as it is drawn its height is what it needs.
  useEffect(() => () => void (isDrawn && box.current && (known.current = { isOpen: props.isOpen, height: box.current.offsetHeight })), [isDrawn, props.isOpen]);
  const height = known.current.isOpen === props.isOpen ? known.current.height : estimate;
  return html`<div id=${anchorOf(props.change.path)} class=${isCurrent ? "place current" : "place"} ref=${box} style=${{ height: isDrawn ? "" : `${height}px` }}>
    ${isDrawn && html`<${File} ...${props} />`}</div>`;
}
