// Two texts line by line: what was removed, what was added, what stayed. Pure.

/** @typedef {import("../../diff.js").Line} Line */

/** So many pairs of lines are compared. */
const MAX_PAIRS = 1_000_000;

/**
 * The lines of both texts in one list, or null if they are too many. The longest common part stays.
 * @param {string} before @param {string} after @returns {Line[] | null}
 */
export function compare(before, after) {
  const [old, next] = [before.split("\n"), after.split("\n")];
  if (old.length * next.length > MAX_PAIRS) return null;
  const width = next.length + 1;
  /** The length of the common part of what follows line `i` and line `j`. */
  const common = new Uint32Array((old.length + 1) * width);
  const at = (/** @type {number} */ i, /** @type {number} */ j) => common[i * width + j] ?? 0;
  for (let i = old.length - 1; i >= 0; i -= 1) {
    for (let j = next.length - 1; j >= 0; j -= 1) common[i * width + j] = old[i] === next[j] ? at(i + 1, j + 1) + 1 : Math.max(at(i + 1, j), at(i, j + 1));
  }
  /** @type {Line[]} */
  const found = [];
  let [i, j] = [0, 0];
  while (i < old.length || j < next.length) {
    const [one, other] = [old[i], next[j]];
    if (one !== undefined && one === other) found.push({ kind: "same", text: one, before: ++i, after: ++j });
    else if (one !== undefined && (other === undefined || at(i + 1, j) >= at(i, j + 1))) found.push({ kind: "removed", text: one, before: ++i, after: null });
    else found.push({ kind: "added", text: other ?? "", before: null, after: ++j });
  }
  return found;
}

/** JSON as text of which each part has its own line; the parts of strings, too: descriptions are long. @param {unknown} value */
export const linesOf = (value) => JSON.stringify(value, null, 2).replaceAll("\\n", "\\n\n");
