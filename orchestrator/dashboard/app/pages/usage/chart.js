// Bars: one for each day, in pieces by model, and one for each other group. Values are read by the pointer or the keyboard.
//
// Never has a value that the text beside it has not: the bars are for the eye.

import { useState } from "preact/hooks";
import { date } from "../../format.js";
import { place, setQuery } from "../../router.js";
import { T } from "../../texts.js";
import { Text, html } from "../../ui.js";

// --- sums of usage as columns of a chart and as rows of a table and a CSV file. Pure

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

/** @typedef {{ groups: Group[], models: ReturnType<typeof modelsOf>, measure: Measure, format: (sum: Sum) => string, axis: (value: number) => string }} Chart */

/** The drawing is so high, in its own units. */
const HEIGHT = 100;
/** A value is seen, however small it is. */
const MIN_HEIGHT = 0.75;

/** `12 Nov 2026`. @param {string} day */
const dayText = (day) => date(Date.parse(`${day}T00:00:00Z`), "UTC");

/** @param {{ models: Chart["models"], hasUnpriced: boolean }} props */
export const Legend = ({ models: { shown, others }, hasUnpriced }) => html`
  <ul class="models">
    ${shown.map((name, index) => html`<li key=${name}><span class="swatch part-${index}"></span><${Text}>${name}<//></li>`)}
    ${others.length > 0 && html`<li><span class="swatch part-${MAX_PARTS}"></span>${T.usage.others(others.length)}</li>`}
    ${hasUnpriced && html`<li><span class="swatch dashed"></span>${T.usage.hasUnpriced}</li>`}
  </ul>
`;

/** One bar from below; where nothing has a price there is a mark. @param {{ chart: Chart, group: Group, at: number, top: number }} props */
function Bar({ chart: { models, measure }, group, at, top }) {
  let y = HEIGHT;
  const pieces = piecesOf(group, models, measure).map(({ index, value }) => {
    const height = Math.max(MIN_HEIGHT, (value / top) * HEIGHT);
    y -= height;
    return html`<rect key=${index} class="part-${index}" x=${at + 0.1} y=${y} width="0.8" height=${height} />`;
  });
  const isUnpriced = measure === "cost" && group.sum.hasUnpriced;
  return html`${pieces}${isUnpriced && html`<line class="unpriced" x1=${at + 0.1} x2=${at + 0.9} y1=${Math.max(1, y - 3)} y2=${Math.max(1, y - 3)} />`}`;
}

/** What a day has, in words. @param {Chart} chart @param {Group} group */
function wordsOf({ format, models: { shown, others } }, { key, sum, parts }) {
  const known = [...shown, ...others].flatMap((name) => {
    const part = parts.get(name);
    return part ? [`${name} ${format(part)}`] : [];
  });
  return `${dayText(key)}: ${sum.calls === 0 && known.length === 0 ? T.usage.nothing : [format(sum), ...known].join(" · ")}`;
}

/** Bars by day. @param {{ chart: Chart, name: string }} props */
export function Days({ chart, name }) {
  const { groups, measure, axis } = chart;
  const [hovered, setHovered] = useState(/** @type {number | null} */ (null));
  const given = groups.findIndex(({ key }) => key === place.value.query.get("e"));
  const selected = given < 0 ? groups.length - 1 : given;
  const shown = hovered ?? selected;
  const top = ceiling(Math.max(...groups.map(({ sum }) => valueOf(sum, measure))));
  const select = (/** @type {number} */ index) => setQuery({ e: groups[Math.min(groups.length - 1, Math.max(0, index))]?.key ?? null });
  const indexAt = (/** @type {any} */ event) => {
    const box = event.currentTarget.getBoundingClientRect();
    return Math.min(groups.length - 1, Math.max(0, Math.floor(((event.clientX - box.left) / box.width) * groups.length)));
  };
  const steps = /** @type {Record<string, number>} */ ({ ArrowLeft: selected - 1, ArrowRight: selected + 1, Home: 0, End: groups.length - 1 });
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    const next = steps[event.key];
    if (next === undefined || event.ctrlKey || event.metaKey || event.altKey) return;
    event.preventDefault();
    setHovered(null);
    select(next);
  };
  const words = (/** @type {number} */ index) => (groups[index] ? wordsOf(chart, groups[index]) : "");
  const labels = [0, Math.floor((groups.length - 1) / 2), groups.length - 1];
  return html`
    <p class="readout"><${Text}>${words(shown)}<//></p>
    <div class="usage-chart">
      <div class="axis" aria-hidden="true"><span>${axis(top)}</span><span>${axis(top / 2)}</span><span>${axis(0)}</span></div>
      <div class="plot" tabindex="0" role="slider" aria-label=${name} aria-describedby="chart-keys" aria-valuemin="1" aria-valuemax=${groups.length} aria-valuenow=${selected + 1}
        aria-valuetext=${words(selected)} onKeyDown=${onKeyDown} onPointerMove=${(/** @type {any} */ event) => setHovered(indexAt(event))}
        onPointerLeave=${() => setHovered(null)} onClick=${(/** @type {any} */ event) => select(indexAt(event))}>
        <svg viewBox=${`0 0 ${groups.length} ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
          ${[0, HEIGHT / 2, HEIGHT].map((y) => html`<line key=${y} x1="0" x2=${groups.length} y1=${y} y2=${y} />`)}
          <rect class="shown" x=${shown} y="0" width="1" height=${HEIGHT} />
          ${groups.map((group, index) => html`<${Bar} key=${group.key} chart=${chart} group=${group} at=${index} top=${top} />`)}
        </svg>
      </div>
      <div class="days" aria-hidden="true">${labels.map((index) => html`<span key=${index}>${dayText(groups[index]?.key ?? "")}</span>`)}</div>
    </div>
    <p class="note utc" id="chart-keys">${T.usage.utc} ${T.usage.keys}</p>
  `;
}

/** Bars of other groups, the largest first, each with its value. @param {{ chart: Chart, name: (group: Group) => any }} props */
export function Groups({ chart, name }) {
  const { groups, models, measure, format } = chart;
  const top = Math.max(...groups.map(({ sum }) => valueOf(sum, measure))) || 1;
  return html`
    <ul class="groups">
      ${groups.map((group) => {
        let x = 0;
        return html`<li key=${group.key}>
          <span class="name clamped">${name(group)}</span>
          <svg viewBox=${`0 0 ${HEIGHT} 1`} preserveAspectRatio="none" aria-hidden="true">
            ${piecesOf(group, models, measure).map(({ index, value }) => {
              const width = Math.max(MIN_HEIGHT / 2, (value / top) * HEIGHT);
              x += width;
              return html`<rect key=${index} class="part-${index}" x=${x - width} y="0" width=${width} height="1" />`;
            })}
          </svg>
          <span class="number">${format(group.sum)}</span></li>`;
      })}
    </ul>
  `;
}
