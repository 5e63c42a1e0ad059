// What was used: sums by day, model, user or routine, as bars, as a table and as a CSV file, and the dearest jobs.
//
// What is shown is in the URL. Bars, table and file have the same lines, which are read once.

import { useEffect, useLayoutEffect, useMemo } from "preact/hooks";
import { get } from "../api.js";
import { cost, shortId, tokens } from "../format.js";
import { bindRows } from "../keys.js";
import { Tabs, Typed, setFilters } from "../parts.js";
import { place, setQuery } from "../router.js";
import { generation, serverNow, who } from "../session.js";
import { jobs, resyncs, wantJob } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Failed, Heading, Loading, Text, html, useLoad } from "../ui.js";
import { Days, Groups, Legend, columnsOf, csvOf, daysOf, groupsOf, modelsOf, totalOf } from "./usage/chart.js";

/** @typedef {import("./usage/chart.js").Line} Line */
/** @typedef {import("./usage/chart.js").Measure} Measure */
/** @typedef {import("./usage/chart.js").Sum} Sum */
/** @typedef {{ by: string, range: number, measure: Measure, user: string, isTable: boolean }} View */

export const title = T.usage.title;

const RANGES = [7, 30, 90];
const BYS = /** @type {const} */ (["day", "model", "user", "routine"]);
const MEASURES = /** @type {const} */ (["cost", "tokens", "calls"]);
const LIMIT = 200;
/** So many pages of sums are read. */
const MAX_PAGES = 10;
const DEAREST = 10;

const isAdmin = () => who.value?.role === "admin";

/** What the URL asks for; without `measure`, what is shown depends on what was used. Others' usage is for admins. @param {URLSearchParams} query @returns {Omit<View, "measure"> & { measure: Measure | null }} */
export function viewOf(query) {
  const by = BYS.find((name) => name === query.get("by")) ?? "day";
  const measure = MEASURES.find((name) => name === query.get("values")) ?? null;
  const range = RANGES.find((days) => String(days) === query.get("range")) ?? 30;
  return { by, range, measure, user: query.get("user") ?? "", isTable: query.get("as") === "table" };
}

/** @param {{ by: string, since: string, user: string, signal: AbortSignal }} of @returns {Promise<{ lines: Line[], isCut: boolean }>} */
async function read({ by, since, user, signal }) {
  /** @type {Line[]} */
  const lines = [];
  let cursor = null;
  for (let page = 0; page < MAX_PAGES; page += 1) {
    const query = { by: by === "model" ? by : `${by},model`, since, limit: LIMIT, ...(user && { user }), cursor };
    const { items, next_cursor: next } = /** @type {{ items: Line[], next_cursor?: string | null }} */ (await get("/api/usage", { query, signal }));
    lines.push(...items);
    if (!next) return { lines, isCut: false };
    cursor = next;
  }
  return { lines, isCut: true };
}

/** A sum as a text. @param {Sum} sum @param {Measure} measure */
export function textOf(sum, measure) {
  if (measure === "tokens") return tokens(sum.tokens);
  if (measure === "calls") return sum.calls.toLocaleString("en-GB");
  if (!sum.hasUnpriced) return cost(sum.usd);
  return sum.hasPriced ? T.usage.andUnpriced(cost(sum.usd)) : T.usage.unpriced;
}

/** @param {{ view: View }} props */
function Filters({ view }) {
  const change = (/** @type {string} */ name) => (/** @type {any} */ event) => setFilters({ [name]: event.target.value, e: null });
  const query = (/** @type {string} */ by) => {
    const next = new URLSearchParams(place.value.query);
    next.set("by", by);
    next.delete("e");
    return next;
  };
  const { user: _, ...rest } = T.usage.bys;
  return html`
    <${Tabs} name=${T.usage.by} words=${isAdmin() ? T.usage.bys : rest} current=${view.by} path=${(/** @type {string} */ by) => `/usage?${query(by)}`} />
    <div class="filters">
      <label>${T.usage.range} <select value=${String(view.range)} onChange=${change("range")}>
        ${RANGES.map((days) => html`<option key=${days} value=${String(days)}>${T.usage.ranges(days)}</option>`)}</select></label>
      <label>${T.usage.measure} <select value=${view.measure} onChange=${change("values")}>
        ${MEASURES.map((name) => html`<option key=${name} value=${name}>${T.usage.measures[name]}</option>`)}</select></label>
      ${isAdmin() && html`<${Typed} name=${T.usage.user} filter="user" given=${view.user} />`}
    </div>
  `;
}

/** Saves a file that is made here. @param {string} name @param {string} text */
function download(name, text) {
  const url = URL.createObjectURL(new Blob([text], { type: "text/csv;charset=utf-8" }));
  const link = Object.assign(document.createElement("a"), { href: url, download: name });
  link.click();
  setTimeout(() => URL.revokeObjectURL(url), 1_000);
}

/** @param {{ view: View, lines: Line[] }} props */
function Table({ view, lines }) {
  const columns = columnsOf(view.by);
  const isNumber = (/** @type {string} */ name) => name !== T.usage.columns.model && Object.values(T.usage.columns).indexOf(name) > 3;
  const text = (/** @type {string} */ name, /** @type {string | number} */ value) => (typeof value === "string" ? value : name === T.usage.columns.cost ? cost(value) : value.toLocaleString("en-GB"));
  return html`
    <div class="wide" tabindex="0" role="group" aria-label=${T.usage.title}>
      <table class="sums"><thead><tr>${columns.map(([name]) => html`<th key=${name} class=${isNumber(name) ? "number" : ""}>${name}</th>`)}</tr></thead>
        <tbody>${lines.map((line, index) => html`<tr key=${index}>
          ${columns.map(([name, value]) => html`<td key=${name} class=${isNumber(name) ? "number" : ""}><${Text}>${text(name, value(line))}<//></td>`)}</tr>`)}</tbody></table></div>
    ${view.by === "day" && html`<p class="note">${T.usage.utc}</p>`}
  `;
}

/** @param {{ view: View, lines: Line[], days: string[] }} props */
function Bars({ view, lines, days }) {
  const { by, measure, range } = view;
  const groups = useMemo(() => groupsOf(lines, { by, measure, days }), [lines, by, measure]);
  const models = useMemo(() => modelsOf(groups, measure), [groups]);
  const axis = (/** @type {number} */ value) => (measure === "cost" ? cost(value) : tokens(value));
  const chart = { groups, models, measure, axis, format: (/** @type {Sum} */ sum) => textOf(sum, measure) };
  /** @param {import("./usage/chart.js").Group} group */
  const name = ({ key, name: text }) => (by === "routine" && key ? html`<a href=${`/routines/${encodeURIComponent(key)}`}><${Text}>${text}<//></a>` : html`<${Text}>${text}<//>`);
  return html`
    ${by === "day" ? html`<${Days} chart=${chart} name=${T.usage.bars(T.usage.measures[measure], range)} />` : html`<${Groups} chart=${chart} name=${name} />`}
    ${by !== "model" && html`<${Legend} models=${models} hasUnpriced=${by === "day" && measure === "cost" && groups.some(({ sum }) => sum.hasUnpriced)} />`}
  `;
}

/** @param {{ since: string, user: string }} props */
function Dearest({ since, user }) {
  const { value, status } = useLoad(
    (signal) => get("/api/usage", { query: { by: "job", sort: "cost", since, limit: DEAREST, ...(user && { user }) }, signal }), [since, user, generation.value, resyncs.value]);
  const lines = value?.items ?? [];
  useEffect(() => {
    for (const { job_id: id } of lines) if (id && !jobs.get(id)) wantJob(id);
    jobs.show(lines.flatMap(({ job_id: id }) => id ?? []));
    return () => jobs.show([]);
  }, [value]);
  return html`
    <h2>${T.usage.dearest}</h2>
    ${status}
    ${value && lines.length === 0 && html`<${Empty}><p>${T.usage.noJobs}</p><//>`}
    ${lines.length > 0 && html`<ul class="rows dearest">${lines.map(({ job_id: id, user: owner, cost_usd: usd, input_tokens: input, output_tokens: output }) => html`
      <li key=${id} class="row"><span class="title"><a class="open" href=${`/jobs/${id}`}><${Text}>${jobs.get(id ?? "")?.title || shortId(id ?? "")}<//></a>
        ${isAdmin() && owner && html` <span class="note"><${Text}>${owner}<//></span>`}</span>
        <span class="number">${tokens(input + output)}<span class="unit"> ${T.now.tokens}</span></span><span class="number">${cost(usd)}</span></li>`)}</ul>`}
  `;
}

export default function Usage() {
  const asked = viewOf(place.value.query);
  const { by, range, user, isTable } = asked;
  const today = new Date(serverNow()).toISOString().slice(0, 10);
  const days = useMemo(() => daysOf(range, Date.parse(today)), [range, today]);
  const since = days[0] ?? today;
  const { value, error, isLoading, again } = useLoad((signal) => read({ by, since, user, signal }).then((sums) => ({ ...sums, of: by })), [by, since, user, generation.value]);
  useLayoutEffect(() => bindRows(".rows a.open"), []);
  // What was read for another grouping has no place in this one.
  const sums = value?.of === by ? value : null;
  const sum = sums && totalOf(sums.lines);
  // Where nothing has a price, bars of costs would be empty.
  const view = { ...asked, measure: asked.measure ?? (sum?.usd === 0 ? "tokens" : "cost") };
  return html`
    <${Heading}>${title}<//>
    <${Filters} view=${view} />
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!sums && isLoading && html`<${Loading} />`}
    ${sums && sum && html`
      <div class="line"><strong>${T.usage.total(textOf(sum, "cost"), tokens(sum.tokens), textOf(sum, "calls"))}</strong>
        <button type="button" onClick=${() => setQuery({ as: isTable ? null : "table" })}>${isTable ? T.usage.chart : T.usage.table}</button>
        <button type="button" onClick=${() => download(`usage-${by}-${range}-days-${today}.csv`, csvOf(sums.lines, by))}>${T.usage.csv}</button></div>
      ${sums.isCut && html`<p class="banner">${T.usage.cut(sums.lines.length)}</p>`}
      ${sums.lines.length === 0 ? html`<${Empty}><p>${T.usage.none}</p><//>`
        : isTable ? html`<${Table} view=${view} lines=${sums.lines} />` : html`<${Bars} view=${view} lines=${sums.lines} days=${days} />`}`}
    <${Dearest} since=${since} user=${user} />
    <${CopyAs} cli=${`gantry usage --by ${by === "model" ? by : `${by},model`} --since ${since}`} path=${`/api/usage?${new URLSearchParams({ by: by === "model" ? by : `${by},model`, since, ...(user && { user }) })}`} />
  `;
}
