// The changed files as a tree, of which only the rows in view are in the page.

import { useMemo } from "preact/hooks";
import { T } from "../../texts.js";
import { Text, html } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { SIGNS, anchorOf } from "./change.js";
import { encodePath } from "./code.js";

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
      <${VirtualRows} rows=${rows} rowHeight=${ROW_PX} label=${T.changes.tree} draw=${draw} selected=${active} active=${active} isFocusable /></nav>`;
}
