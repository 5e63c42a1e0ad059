// The jobs of the last 24 hours as bars, an hour each (two where there is little room). A bar leads to the jobs of its time.

import { get } from "../../api.js";
import { clock } from "../../format.js";
import { stamp, useNarrow } from "../../parts.js";
import { generation, serverNow } from "../../session.js";
import { STATES, T } from "../../texts.js";
import { Text, html, now, useLoad, zone } from "../../ui.js";

/** @typedef {import("../../texts.js").JobState} JobState */
/** @typedef {{ from: string, to: string, states: Partial<Record<JobState, number>>, total: number }} Bin */

const HOUR_MS = 3_600_000;
const HOURS = 24;
/** The height of the highest bar, in units of the drawing. */
const HEIGHT = 40;

/** The first whole hour of the last 24. @param {number} at in milliseconds */
export const beginOf = (at) => Math.ceil((at - HOURS * HOUR_MS) / HOUR_MS) * HOUR_MS;

/**
 * Bins of `step` hours from `begin`, also the empty ones. Pure.
 * @param {{ hour: string, states: Partial<Record<string, number>> }[]} items @param {number} begin @param {number} step
 * @returns {Bin[]}
 */
export function binsOf(items, begin, step) {
  return Array.from({ length: HOURS / step }, (_, index) => {
    const [from, to] = [begin + index * step * HOUR_MS, begin + (index + 1) * step * HOUR_MS];
    /** @type {Record<string, number>} */
    const states = {};
    for (const item of items) {
      const at = Date.parse(item.hour);
      if (at < from || at >= to) continue;
      for (const [name, count] of Object.entries(item.states)) states[name] = (states[name] ?? 0) + (count ?? 0);
    }
    return { from: stamp(from), to: stamp(to), states, total: Object.values(states).reduce((sum, count) => sum + count, 0) };
  });
}

/** @param {Bin} bin */
const wordsOf = ({ states }) => Object.keys(STATES).flatMap((name) => (states[/** @type {JobState} */ (name)] ? [`${states[/** @type {JobState} */ (name)]} ${STATES[/** @type {JobState} */ (name)]}`] : [])).join(", ");

/** `14:00`. @param {string | undefined} at */
const timeOf = (at = "") => clock(Date.parse(at), zone.value).slice(0, 5);

/** @param {Bin} bin */
const timesOf = ({ from, to }) => `${timeOf(from)}–${timeOf(to)}`;

/** One bar: a part for each state, the finished ones at the bottom. @param {{ bin: Bin, most: number }} props */
function Drawing({ bin, most }) {
  let top = HEIGHT;
  const names = /** @type {JobState[]} */ (Object.keys(STATES)).toReversed().filter((name) => bin.states[name]);
  return html`
    <svg viewBox=${`0 0 10 ${HEIGHT}`} preserveAspectRatio="none" aria-hidden="true">
      ${names.map((name) => {
        const height = ((bin.states[name] ?? 0) / most) * HEIGHT;
        top -= height;
        return html`<rect key=${name} class="state ${name}" x="0" width="10" y=${top} height=${height} />`;
      })}
    </svg>
  `;
}

/** `read` changes when the list is read again. @param {{ given: Record<string, string>, read: unknown, link: (changes: Record<string, string | null>) => string }} props */
export function Histogram({ given: { state, user, since, until, ...others }, read, link }) {
  const hour = Math.floor(now.value / HOUR_MS);
  const { value, error } = useLoad(async (signal) => {
    const begin = beginOf(serverNow());
    const query = { since: stamp(begin), until: stamp(begin + HOURS * HOUR_MS), ...(state && { state }), ...(user && { user }) };
    return { begin, items: (await get("/api/jobs/histogram", { query, signal })).items };
  }, [state, user, hour, read, generation.value]);
  const step = useNarrow() ? 2 : 1;
  const bins = value ? binsOf(value.items, value.begin, step) : [];
  const most = Math.max(1, ...bins.map(({ total }) => total));
  const isChosen = (/** @type {Bin} */ bin) => bin.from === since && bin.to === until;
  // The chosen bar leads back to all.
  const hrefOf = (/** @type {Bin} */ bin) => link(isChosen(bin) ? { since: null, until: null } : { since: bin.from, until: bin.to });
  return html`
    <figure class="histogram" aria-label=${T.histogram.title}>
      <ol class="hourly">${bins.map((bin) => html`<li key=${bin.from}>${bin.total > 0 && html`
        <a href=${hrefOf(bin)} aria-current=${isChosen(bin) ? "true" : undefined} title=${`${timesOf(bin)}: ${wordsOf(bin)}`} aria-label=${`${timesOf(bin)}: ${wordsOf(bin)}`}>
          <${Drawing} bin=${bin} most=${most} /></a>`}</li>`)}</ol>
      <p class="note scale" aria-hidden="true">${bins.length > 0 && html`<span>${timeOf(bins[0]?.from)}</span> <span>${T.histogram.most(most)}</span> <span>${timeOf(bins.at(-1)?.to)}</span>`}</p>
      <figcaption class="note line"><span>${T.histogram.title}. ${error ? html`<${Text}>${error.message}<//>` : bins.some(({ total }) => total > 0) ? (Object.keys(others).length > 0 ? T.histogram.partly : T.histogram.note) : value && T.histogram.none}</span>
        ${value && value.items.length > 0 && html`<details><summary>${T.histogram.asTable}</summary>
          <table><thead><tr>${T.histogram.columns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
            <tbody>${bins.filter(({ total }) => total > 0).map((bin) => html`<tr key=${bin.from}><td><a href=${hrefOf(bin)}>${timesOf(bin)}</a></td><td>${wordsOf(bin)}</td></tr>`)}</tbody></table></details>`}</figcaption>
    </figure>
  `;
}
