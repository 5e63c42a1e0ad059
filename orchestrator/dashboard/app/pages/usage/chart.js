// Bars: one for each day, in pieces by model, and one for each other group. Values are read by the pointer or the keyboard.
//
// Never has a value that the text beside it has not: the bars are for the eye.

import { useState } from "preact/hooks";
import { date } from "../../format.js";
import { place, setQuery } from "../../router.js";
import { T } from "../../texts.js";
import { Text, html } from "../../ui.js";
import { MAX_PARTS, ceiling, piecesOf, valueOf } from "./sums.js";

/** @typedef {import("./sums.js").Group} Group */
/** @typedef {import("./sums.js").Measure} Measure */
/** @typedef {{ groups: Group[], models: ReturnType<typeof import("./sums.js").modelsOf>, measure: Measure, format: (sum: import("./sums.js").Sum) => string, axis: (value: number) => string }} Chart */

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
