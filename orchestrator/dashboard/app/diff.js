// Lines of a unified diff, and of code as it is shown: from left to right, with what would change its direction as visible marks.

import { T } from "./texts.js";
import { html, marked } from "./ui.js";

// --- a line of code: from left to right, and with what would change its direction as visible marks

/** A longer line is cut. */
const MAX_CHARS = 5_000;

/** @param {{ line: string }} props */
export function Code({ line }) {
  const shown = line.length > MAX_CHARS ? line.slice(0, MAX_CHARS) : line;
  return html`<bdi dir="ltr">${marked(shown)}</bdi>${
    shown !== line && html`<span class="note"> ${T.job.cutLine(line.length - shown.length)}</span>`}`;
}

/** A path in a URL. @param {string} path */
export const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");

/** @typedef {{ kind: "hunk" | "added" | "removed" | "same" | "note", text: string, before: number | null, after: number | null }} Line */

/** The lines of a unified diff of one file, without its header. @param {string} diff @returns {Line[]} */
export function lines(diff) {
  /** @type {Line[]} */
  const found = [];
  let [before, after, isInHunk] = [0, 0, false];
  for (const line of diff.replace(/\n$/, "").split("\n")) {
    const hunk = /^@@ -(\d+)(?:,\d+)? \+(\d+)(?:,\d+)? @@/.exec(line);
    if (hunk) {
      [before, after, isInHunk] = [Number(hunk[1]), Number(hunk[2]), true];
      found.push({ kind: "hunk", text: line, before: null, after: null });
    } else if (!isInHunk) continue;
    else if (line.startsWith("+")) found.push({ kind: "added", text: line.slice(1), before: null, after: after++ });
    else if (line.startsWith("-")) found.push({ kind: "removed", text: line.slice(1), before: before++, after: null });
    else if (line.startsWith("\\")) found.push({ kind: "note", text: line.slice(2), before: null, after: null });
    else found.push({ kind: "same", text: line.slice(1), before: before++, after: after++ });
  }
  return found;
}

/** How many lines were added and removed. @param {Line[]} found */
export const counts = (found) => ({
  added: found.filter(({ kind }) => kind === "added").length,
  removed: found.filter(({ kind }) => kind === "removed").length,
});
