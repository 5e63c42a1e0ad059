// A line of code: from left to right, and with what would change its direction as visible marks.

import { codeOf, pieces } from "../../diff.js";
import { T } from "../../texts.js";
import { html } from "../../ui.js";

/** A longer line is cut. */
const MAX_CHARS = 5_000;

/** A text in which characters that would change its direction are visible. @param {string} text */
export const marked = (text) => pieces(text).map((part, index) => (index % 2 === 0 ? part : html`<mark key=${index}>${codeOf(part)}</mark>`));

/** @param {{ line: string }} props */
export function Code({ line }) {
  const shown = line.length > MAX_CHARS ? line.slice(0, MAX_CHARS) : line;
  return html`<bdi dir="ltr">${marked(shown)}</bdi>${
    shown !== line && html`<span class="note"> ${T.job.cutLine(line.length - shown.length)}</span>`}`;
}

/** A path in a URL. @param {string} path */
export const encodePath = (path) => path.split("/").map(encodeURIComponent).join("/");
