// What a job has changed in its workspace: a tree, and each file with its diff; or those of a directory, or one.

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useMemo, useState } from "preact/hooks";
import { address, getChanged } from "../../api.js";
import { bind } from "../../keys.js";
import { go, place } from "../../router.js";
import { drafts, generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Text, html, useLoad } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { Change, SIGNS, anchorOf, lengthOf } from "./change.js";
import { encodePath } from "../../diff.js";

// --- what a job has changed, as it was last read: if nothing is new, a repeated read transfers nothing

/** @typedef {import("../../api.js").schemas["FileChanges"]} FileChanges */

/** Answers that are kept; each has at most 1 MiB of diffs. */
const MAX_KEPT = 4;

/** The last answers by address. @type {Map<string, { tag: string, value: FileChanges }>} */
const kept = new Map();

/** @param {string} id @param {string} within a file or a directory, or the whole workspace @param {AbortSignal} signal @returns {Promise<FileChanges>} */
async function read(id, within, signal) {
  const options = { path: { id }, query: within ? { path: within } : {} };
  const url = address("/api/jobs/{id}/changes", options);
  const before = kept.get(url);
  const { content, tag } = await getChanged("/api/jobs/{id}/changes", { ...options, signal }, before?.tag ?? null);
  const value = content ?? before?.value;
  if (!value) throw new Error("an answer without content");
  kept.delete(url);
  if (tag) kept.set(url, { tag, value });
  for (const oldest of kept.keys()) if (kept.size > MAX_KEPT) kept.delete(oldest);
  return value;
}

/** The changes of a job, or of a part of its workspace. @param {{ id: string, state: string }} job @param {string} [within] */
export const useChanges = ({ id, state }, within = "") => useLoad((signal) => read(id, within, signal), [id, within, state, generation.value]);

// --- the changed files as a tree, of which only the rows in view are in the page

/** @typedef {import("../../api.js").schemas["FileChange"]} FileChange */
/** A file, or a directory of files; `depth` counts the directories above. @typedef {{ seq: number, depth: number, name: string, path: string, change: FileChange | null }} Row */

const ROW_PX = 28;
const INDENT_PX = 14;

/** The rows of changes that are sorted by path. Pure. @param {FileChange[]} changes @returns {Row[]} */
export function treeOf(changes) {
  /** @type {Row[]} */
  const rows = [];
  /** @type {string[]} */
  let open = [];
  for (const change of changes) {
    const parts = change.path.split("/");
    const name = parts.pop() ?? "";
    let common = 0;
    while (common < open.length && open[common] === parts[common]) common += 1;
    for (let depth = common; depth < parts.length; depth += 1) {
      rows.push({ seq: rows.length, depth, name: parts[depth] ?? "", path: `${parts.slice(0, depth + 1).join("/")}/`, change: null });
    }
    open = parts;
    rows.push({ seq: rows.length, depth: parts.length, name, path: change.path, change });
  }
  return rows;
}

/** @param {{ id: string, changes: FileChange[], current: string | null, viewed: Set<string> }} props */
export function Tree({ id, changes, current, viewed }) {
  const rows = useMemo(() => treeOf(changes), [changes]);
  const active = rows.find(({ change, path }) => change && path === current)?.seq ?? null;
  const draw = (/** @type {Row} */ { depth, name, path, change }, /** @type {number} */ _, /** @type {boolean} */ isActive) => html`
    <div class="leaf" style=${{ paddingLeft: `${depth * INDENT_PX + 4}px` }}>
      ${change ? html`<span class="sign ${change.change}" role="img" aria-label=${T.changes[change.change]}>${SIGNS[change.change]}</span>
        <a href=${`#${anchorOf(path)}`} tabindex=${isActive ? 0 : -1} aria-current=${path === current ? "true" : undefined}><${Text}>${name}<//></a>
        ${viewed.has(path) && html`<span class="note">${T.changes.viewed}</span>`}`
      : html`<a href=${`/jobs/${id}/changes/${encodePath(path)}`} tabindex=${isActive ? 0 : -1} title=${T.changes.directory(path)}><${Text}>${name}/<//></a>`}</div>`;
  return html`
    <nav class="tree" aria-label=${T.changes.tree} style=${{ height: `min(70vh, ${rows.length * ROW_PX + 8}px)` }}>
      <${VirtualRows} rows=${rows} rowHeight=${ROW_PX} label=${T.changes.tree} draw=${draw} selected=${active} /></nav>`;
}

/** A longer diff is opened by hand. */
const OPEN_LINES = 400;
const [WRAP, TREE] = ["gantry.wrap", "gantry.tree"];
const WIDE = "(min-width: 45rem)";

/** Whether long lines of diffs are wrapped, and whether the tree is shown; the browser keeps both. */
const isWrapped = signal(localStorage.getItem(WRAP) !== "off");
const isTreeOpen = signal(localStorage.getItem(TREE) ?? "");

/** @param {boolean} on */
function setWrapped(on) {
  localStorage.setItem(WRAP, on ? "on" : "off");
  isWrapped.value = on;
}

/** @param {boolean} on */
function setTreeOpen(on) {
  isTreeOpen.value = on ? "on" : "off";
  localStorage.setItem(TREE, isTreeOpen.value);
}

/** The paths whose diffs are open at first. Pure. @param {FileChange[]} changes */
export const openAtFirst = (changes) => new Set(changes.filter((change) => change.diff && lengthOf(change) <= OPEN_LINES).map(({ path }) => path));

/** What was looked at: it counts until the file changes again. @param {FileChange} change */
const lookOf = ({ path, size_bytes: size, diff }) => `${path}\n${size}\n${diff?.length ?? 0}`;

/** The files of a job that a person has looked at. @param {string} id @param {FileChange[]} items */
function useViewed(id, items) {
  const name = `viewed.${id}`;
  const [looks, setLooks] = useState(() => new Set(/** @type {string[]} */ (drafts.get(name) ?? [])));
  const viewed = useMemo(() => new Set(items.filter((change) => looks.has(lookOf(change))).map(({ path }) => path)), [items, looks]);
  /** @param {FileChange} change */
  function toggle(change) {
    const next = new Set(looks);
    if (!next.delete(lookOf(change))) next.add(lookOf(change));
    drafts.set(name, [...next]);
    setLooks(next);
  }
  return { viewed, toggle };
}

/** Where the file that the address names is among the files; -1 if none is named. @param {FileChange[]} items */
function currentOf(items) {
  const hash = location.hash.slice(1);
  return hash ? items.findIndex(({ path }) => anchorOf(path) === hash) : -1;
}

/** Shows and focuses the file that the address names. @param {FileChange[]} items */
function useCurrent(items) {
  const index = place.value && currentOf(items);
  const change = items[index];
  useEffect(() => {
    const element = change && document.getElementById(anchorOf(change.path));
    element?.scrollIntoView({ block: "start" });
    element?.querySelector("summary")?.focus({ preventScroll: true });
  }, [change?.path]);
  return index;
}

/** Goes to another file; keys may come faster than the page is drawn. @param {FileChange[]} items @param {number} step */
function move(items, step) {
  const index = currentOf(items);
  const next = items[index < 0 && step < 0 ? items.length - 1 : Math.min(items.length - 1, Math.max(0, index + step))];
  if (next) go(`#${anchorOf(next.path)}`, { isReplaced: true });
}

/** @param {{ id: string, items: FileChange[], isOnly: boolean }} props */
function List({ id, items, isOnly }) {
  const first = useMemo(() => openAtFirst(items), [items]);
  /** What was opened or closed by hand. */
  const [toggled, setToggled] = useState(/** @type {Map<string, boolean>} */ (new Map()));
  const { viewed, toggle } = useViewed(id, items);
  const index = useCurrent(items);
  const open = (/** @type {string} */ path, /** @type {boolean} */ isOpen) => setToggled((before) => (before.get(path) === isOpen ? before : new Map(before).set(path, isOpen)));
  /** @param {FileChange} change */
  function view(change) {
    open(change.path, viewed.has(change.path));
    toggle(change);
  }
  useLayoutEffect(() => bind([
    { key: "j", text: T.keys.nextFile, run: () => move(items, 1) },
    { key: "k", text: T.keys.previousFile, run: () => move(items, -1) },
    { key: "v", text: T.keys.viewed, run: () => items[index] && view(items[index]) },
  ]));
  const hasTree = items.length > 1 && (isTreeOpen.value === "on" || (isTreeOpen.value === "" && matchMedia(WIDE).matches));
  return html`
    <p class="line">
      ${items.length > 1 && html`<label class="check"><input type="checkbox" checked=${hasTree} onChange=${(/** @type {any} */ event) => setTreeOpen(event.target.checked)} />${T.changes.tree}</label>`}
      <label class="check"><input type="checkbox" checked=${isWrapped.value} onChange=${(/** @type {any} */ event) => setWrapped(event.target.checked)} />${T.changes.wrap}</label>
      ${viewed.size > 0 && html`<span class="note">${T.changes.viewedCount(viewed.size)}</span>`}</p>
    <div class="changes ${hasTree ? "split" : ""} ${isWrapped.value ? "" : "unwrapped"}">
      ${hasTree && html`<${Tree} id=${id} changes=${items} current=${items[index]?.path ?? null} viewed=${viewed} />`}
      <div>${items.map((change, at) => html`<${Change} key=${`${change.path} ${change.path_bytes}`} id=${id} change=${change} isCurrent=${at === index} isViewed=${viewed.has(change.path)}
        isOpen=${toggled.get(change.path) ?? (isOnly || (first.has(change.path) && !viewed.has(change.path)))}
        onOpen=${(/** @type {boolean} */ isOpen) => open(change.path, isOpen)} onView=${() => view(change)} />`)}</div>
    </div>
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Changes({ job }) {
  const { id } = job;
  const path = place.value.params["path"]?.replace(/\/$/, "");
  const { value, isLoading, again, status } = useChanges(job, path);
  const leftOut = value?.left_out ?? 0;
  return html`
    ${status}
    ${value && html`
      <p class="line"><span>${T.changes.count(value.items.length)}${path && html` ${T.changes.within} <code><${Text}>${path}<//></code>`}</span>
        <button type="button" disabled=${isLoading} onClick=${again}>${T.changes.again}</button>
        ${path !== undefined && html`<a href=${`/jobs/${id}/changes`}>${T.job.allFiles}</a>`}</p>
      ${leftOut > 0 && html`<p class="banner">${T.changes.leftOut(value.items.length, value.items.length + leftOut)}</p>`}
      ${value.truncated && leftOut === 0 && html`<p class="banner">${T.changes.truncated}</p>`}
      ${value.items.length === 0 ? html`<${Empty}><p>${path === undefined ? T.changes.none : html`${T.job.unchanged} <${Text}>${path}<//>`}</p><//>`
        : html`<${List} key=${path} id=${id} items=${value.items} isOnly=${path !== undefined && value.items.length === 1} />`}`}
  `;
}
