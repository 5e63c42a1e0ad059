// The runs of all routines, newest first, with those that were skipped or missed, and why: filters in the URL.

import { useEffect } from "preact/hooks";
import { get } from "../api.js";
import { bindRows } from "../keys.js";
import { position, positioned } from "../live.js";
import { place, setQuery } from "../router.js";
import { generation, serverNow, who } from "../session.js";
import { putRun, resyncs, runs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, Time, html, usePages } from "../ui.js";
import { Added } from "./inbox/added.js";
import { Tabs } from "./routine/tabs.js";
import { RunRow } from "./run/row.js";

/** @typedef {import("../store.js").Run} Run */

export const title = T.runs.title;

const LIMIT = 50;
/** The parameters of the page, and their names in the API. @type {Record<string, string>} */
const FILTERS = { status: "status", reason: "reason", trigger: "trigger", routine: "routine_id", since: "since", until: "until", user: "user" };

/** What the API is asked for. Pure. @param {URLSearchParams} query @returns {Record<string, string>} */
export const filters = (query) => Object.fromEntries(Object.entries(FILTERS).flatMap(([name, of]) => (query.get(name) ? [[of, query.get(name) ?? ""]] : [])));

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function readPage(given, cursor, signal) {
  await positioned();
  const seen = position();
  const { items, next_cursor } = await get("/api/runs", { query: { ...given, limit: LIMIT, cursor }, signal });
  for (const run of items.toReversed()) putRun(run, seen);
  return { items: items.map(({ id }) => id), next_cursor, seen };
}

/** The runs that were heard of since, and belong into the list. Pure. @param {Run[]} heard @param {Record<string, string>} given @param {Set<string>} listed */
export function countNew(heard, given, listed) {
  const among = (/** @type {string} */ name, /** @type {string} */ value) => !given[name] || given[name].split(",").includes(value);
  return heard.filter((run) => !listed.has(run.id) && among("status", run.status) && among("trigger", run.trigger_type) && among("reason", run.reason ?? "") && among("routine_id", run.routine_id)
    && among("user", run.user_id) && Date.parse(run.created_at) >= Date.parse(given["since"] ?? "1970-01-01") && !(Date.parse(run.created_at) >= Date.parse(given["until"] ?? ""))).length;
}

/** @param {{ given: Record<string, string> }} props */
function Period({ given: { since, until } }) {
  const onChange = (/** @type {any} */ { target: { value } }) =>
    setQuery({ since: value === "any" ? null : new Date(serverNow() - Number(value) * 1_000).toISOString().replace(/\.\d+/, ""), until: null });
  const { any, ...periods } = T.runs.periods;
  return html`
    <label>${T.runs.since} <select value=${since || until ? "" : "any"} onChange=${onChange}>
      ${(since || until) && html`<option value="">${T.runs.between}</option>`}
      <option value="any">${any}</option>
      ${Object.entries(periods).map(([seconds, word]) => html`<option key=${seconds} value=${seconds}>${word}</option>`)}
    </select></label>
    ${(since || until) && html`<span class="note">${since && html`<${Time} at=${since} />`} ${since && until && T.runs.and} ${until && html`<${Time} at=${until} />`}</span>`}
  `;
}

/** @param {{ given: Record<string, string>, name: string | undefined }} props `name` of the routine, if it is known */
function Filters({ given, name }) {
  const change = (/** @type {string} */ filter) => (/** @type {any} */ event) => setQuery({ [filter]: event.target.value.trim() || null });
  const choice = (/** @type {"status" | "trigger"} */ filter, /** @type {Record<string, string>} */ words) => html`
    <label>${T.routines[filter]} <select value=${given[filter] ?? ""} onChange=${change(filter)}>
      <option value="">${T.jobs.any}</option>
      ${Object.entries({ ...(given[filter] && { [given[filter]]: given[filter].replaceAll(",", ", ") }), ...words }).map(([value, word]) => html`<option key=${value} value=${value}>${word}</option>`)}
    </select></label>`;
  const routine = given["routine_id"];
  return html`
    <div class="filters" role="search">
      ${choice("status", T.runs.statuses)}
      ${choice("trigger", T.routine.triggers)}
      <label>${T.job.reason} <input type="search" value=${given["reason"] ?? ""} placeholder="overlap" spellcheck=${false} onChange=${change("reason")} /></label>
      <${Period} given=${given} />
      ${routine && html`<span>${T.runs.routine}: <a href=${`/routines/${routine}`}><bdi dir="auto">${name ?? routine}</bdi></a></span>`}
      ${who.value?.role === "admin" && html`<label>${T.jobs.user} <input value=${given["user"] ?? ""} spellcheck=${false} onChange=${change("user")} /></label>`}
      ${Object.keys(given).length > 0 && html`
        <button type="button" class="link" onClick=${() => setQuery(Object.fromEntries(Object.keys(FILTERS).map((filter) => [filter, null])))}>${T.jobs.clear}</button>`}
    </div>
  `;
}

export default function Runs() {
  const given = filters(place.value.query);
  const key = JSON.stringify(given);
  const { first, items: ids, isLoading, again, status, more } = usePages((cursor, signal) => readPage(given, cursor, signal), [key, generation.value, resyncs.value]);
  useEffect(() => bindRows(".rows a.open"), []);
  useEffect(() => (runs.show(ids), () => runs.show([])), [ids.length, first]);
  const rows = ids.flatMap((id) => runs.get(id) ?? []);
  const added = first && !isLoading ? countNew(runs.since(first.seen), given, new Set(ids)) : 0;
  const isFiltered = Object.keys(given).length > 0;
  return html`
    <${Heading}>${title}<//>
    <${Tabs} />
    <${Filters} given=${given} name=${rows[0]?.routine_name} />
    ${status}
    <${Added} count=${added} show=${again} />
    ${first && rows.length === 0 && html`<${Empty}><p>${isFiltered ? T.runs.noMatch : T.runs.none}</p><//>`}
    ${rows.length > 0 && html`<ul class="rows">${rows.map((run) => html`<${RunRow} key=${run.id} run=${run} />`)}</ul>`}
    ${more}
    <${CopyAs} cli=${cliOf(given)} path=${`/api/runs?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}

/** @param {Record<string, string>} given */
const cliOf = (given) => ["gantry runs list", ...Object.entries(given).map(([name, text]) => `--${name === "routine_id" ? "routine" : name} '${text.replaceAll("'", "'\\''")}'`)].join(" ");
