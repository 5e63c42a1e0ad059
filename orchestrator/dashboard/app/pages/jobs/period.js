// Filters in the URL, and the choice of a time among them: the last hours or days, or what the URL says.

import { useMemo } from "preact/hooks";
import { setQuery } from "../../router.js";
import { serverNow } from "../../session.js";
import { T } from "../../texts.js";
import { Time, html } from "../../ui.js";

const HOUR_MS = 3_600_000;
const PERIODS = /** @type {const} */ ([1, 24, 168]);

/** @param {number} at in milliseconds */
export const stamp = (at) => new Date(at).toISOString().replace(/\.\d+Z$/, "Z");

/** The filters that a URL has. @param {URLSearchParams} query @param {string[]} names @returns {Record<string, string>} */
export const filtersOf = (query, names) => Object.fromEntries(names.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));

/** A choice stays chosen while its page is open: what it means is a time in the URL. @param {{ name: string, given: Record<string, string> }} props */
export function Period({ name, given: { since, until } }) {
  /** @type {Map<string, string>} */
  const chosen = useMemo(() => new Map(), []);
  const isOpen = since && !until;
  const value = !since && !until ? "any" : (isOpen && chosen.get(since)) || "range";
  function onChange(/** @type {any} */ event) {
    const hours = Number(event.target.value);
    const from = hours > 0 ? stamp(serverNow() - hours * HOUR_MS) : null;
    if (from) chosen.set(from, event.target.value);
    setQuery({ since: from, until: null });
  }
  return html`
    <label>${name} <select value=${value} onChange=${onChange}>
      <option value="any">${T.jobs.periods.any}</option>
      ${PERIODS.map((hours) => html`<option key=${hours} value=${String(hours)}>${T.jobs.periods[hours]}</option>`)}
      ${value === "range" && html`<option value="range">${T.jobs.periods.range}</option>`}
    </select></label>
    ${value !== "any" && html`<span class="note">${since && html`<${Time} at=${since} />`} – ${until && html`<${Time} at=${until} />`}</span>`}
  `;
}
