// Sums of usage as columns of a chart and as rows of a table and a CSV file. Pure.

import { T } from "../../texts.js";

/** @typedef {import("../../api.js").schemas["UsageLine"] & { routine_id?: string | null, routine_name?: string | null }} Line */
/** @typedef {"cost" | "tokens" | "calls"} Measure */
/** What is summed up; `usd` is the sum of what has a price. @typedef {{ tokens: number, calls: number, usd: number, hasPriced: boolean, hasUnpriced: boolean }} Sum */
/** A group: a day, a model, a user or a routine, with its sums by model. @typedef {{ key: string, name: string, sum: Sum, parts: Map<string, Sum> }} Group */

/** So many models have their own colour. */
export const MAX_PARTS = 7;
const DAY_MS = 86_400_000;

/** @returns {Sum} */
const nothing = () => ({ tokens: 0, calls: 0, usd: 0, hasPriced: false, hasUnpriced: false });

/** @param {Sum} sum @param {Line} line */
function add(sum, line) {
  sum.tokens += line.input_tokens + line.output_tokens;
  sum.calls += line.llm_calls;
  sum.usd += line.cost_usd ?? 0;
  if (typeof line.cost_usd === "number") sum.hasPriced = true;
  else sum.hasUnpriced = true;
}

/** The sum of all lines. @param {Line[]} lines */
export function totalOf(lines) {
  const sum = nothing();
  for (const line of lines) add(sum, line);
  return sum;
}

/** @param {Sum} sum @param {Measure} measure */
export const valueOf = (sum, measure) => (measure === "cost" ? sum.usd : sum[measure]);

/** The days of a range, the last one is today; all in UTC. @param {number} count @param {number} now */
export const daysOf = (count, now) => Array.from({ length: count }, (_, index) => new Date(now - (count - 1 - index) * DAY_MS).toISOString().slice(0, 10));

/** What a line belongs to. @param {Line} line @param {string} by */
function groupOf(line, by) {
  if (by === "routine") return { key: line.routine_id ?? "", name: line.routine_name ?? line.routine_id ?? T.usage.noRoutine };
  const key = (by === "day" ? line.day : by === "user" ? line.user : line.model) ?? "";
  return { key, name: key || T.usage.unknown };
}

/**
 * Lines by group. Days are in their order, and those without usage are there as well; others begin with the largest value.
 * @param {Line[]} lines @param {{ by: string, measure: Measure, days: string[] }} view @returns {Group[]}
 */
export function groupsOf(lines, { by, measure, days }) {
  /** @type {Map<string, Group>} */
  const groups = new Map();
  const group = (/** @type {{ key: string, name: string }} */ { key, name }) => {
    const found = groups.get(key) ?? { key, name, sum: nothing(), parts: new Map() };
    groups.set(key, found);
    return found;
  };
  if (by === "day") for (const day of days) group({ key: day, name: day });
  for (const line of lines) {
    const { sum, parts } = group(groupOf(line, by));
    const model = line.model ?? T.usage.unknown;
    const part = parts.get(model) ?? nothing();
    parts.set(model, part);
    add(sum, line);
    add(part, line);
  }
  const all = [...groups.values()];
  if (by === "day") return all.sort((one, other) => (one.key < other.key ? -1 : 1));
  return all.sort((one, other) => valueOf(other.sum, measure) - valueOf(one.sum, measure) || (one.name < other.name ? -1 : 1));
}

/**
 * The models with the largest values, each of which has its own colour; the others are one part.
 * @param {Group[]} groups @param {Measure} measure
 */
export function modelsOf(groups, measure) {
  /** @type {Map<string, number>} */
  const values = new Map();
  for (const { parts } of groups) for (const [name, sum] of parts) values.set(name, (values.get(name) ?? 0) + valueOf(sum, measure));
  const sorted = [...values].sort(([one, less], [other, more]) => more - less || (one < other ? -1 : 1)).map(([name]) => name);
  return { shown: sorted.slice(0, MAX_PARTS), others: sorted.slice(MAX_PARTS) };
}

/**
 * The pieces of a bar, from its beginning: `index` is that of the colour.
 * @param {Group} group @param {ReturnType<typeof modelsOf>} models @param {Measure} measure
 */
export function piecesOf({ parts }, { shown, others }, measure) {
  const value = (/** @type {string} */ name) => {
    const sum = parts.get(name);
    return sum ? valueOf(sum, measure) : 0;
  };
  const pieces = shown.map((name, index) => ({ index, value: value(name) }));
  const rest = others.reduce((sum, name) => sum + value(name), 0);
  return [...pieces, { index: MAX_PARTS, value: rest }].filter((piece) => piece.value > 0);
}

/** A round number that is not less: the end of the axis. @param {number} value */
export function ceiling(value) {
  if (value <= 0) return 1;
  const power = 10 ** Math.floor(Math.log10(value));
  const step = [1, 1.5, 2, 3, 4, 5, 6, 8, 10].find((one) => one * power >= value * (1 - 1e-9)) ?? 10;
  return step * power;
}

/** The names and cells of the table. Numbers stay numbers. @param {string} by @returns {[string, (line: Line) => string | number][]} */
export function columnsOf(by) {
  const { columns: names } = T.usage;
  /** @type {[string, (line: Line) => string | number][]} */
  const first = by === "model" ? [] : [[names[/** @type {"day"} */ (by)], (line) => groupOf(line, by).name]];
  return [
    ...first,
    [names.model, (line) => line.model ?? T.usage.unknown],
    [names.calls, (line) => line.llm_calls],
    [names.input, (line) => line.input_tokens],
    [names.output, (line) => line.output_tokens],
    [names.cacheRead, (line) => line.cache_read_tokens],
    [names.cacheWrite, (line) => line.cache_write_tokens],
    [names.cost, (line) => line.cost_usd ?? T.usage.unpriced],
  ];
}

/** What a program for tables would run as a formula, in ASCII and in full width. */
const FORMULA = /^[\s\u0000-\u001f\u200b-\u200f\u202a-\u202e\u2060-\u2069\ufeff]*[=+\-@\uff1d\uff0b\uff0d\uff20]|^[\t\r\n]/u;

/** A text that no program runs as a formula, in quotes where it needs them. @param {string | number} value */
export function cell(value) {
  if (typeof value === "number") return String(value);
  const safe = FORMULA.test(value) ? `'${value}` : value;
  return /[",;\t\r\n']/.test(safe) ? `"${safe.replaceAll('"', '""')}"` : safe;
}

/** A CSV file (RFC 4180) of lines. @param {Line[]} lines @param {string} by */
export function csvOf(lines, by) {
  const columns = columnsOf(by);
  const rows = [columns.map(([name]) => name), ...lines.map((line) => columns.map(([, value]) => value(line)))];
  return rows.map((row) => `${row.map(cell).join(",")}\r\n`).join("");
}
