// The runs of all routines, newest first, with those that were skipped or missed, and why: filters in the URL.

import { get } from "../api.js";
import { cost, tokens } from "../format.js";
import { readSince } from "../live.js";
import { Added, Choice, Period, Typed, UserAndClear, commandOf, useRows } from "../parts.js";
import { place } from "../router.js";
import { who } from "../session.js";
import { putRun, runs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, Id, Text, Time, html, now } from "../ui.js";
import { PageRows } from "../virtual.js";
import { RoutineTabs, RunState, short, tookMs, whyOf } from "./routine/words.js";

// --- a run as a row of a list

/** @param {{ run: import("../store.js").Run }} props */
export function RunRow({ run }) {
  const why = whyOf(run);
  return html`
    <div class="row">
      <${RunState} status=${run.status} />
      <span class="title">
        <a class="open" href=${`/runs/${run.id}`}><${Text}>${run.routine_name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${run.user_id}<//></span>`}
        <span class="note reason"><${Time} at=${run.created_at} /> · ${T.routine.triggers[run.trigger_type] ?? run.trigger_type}${[why, run.result_summary].map((text) => text && html` · <${Text}>${text}<//>`)}</span>
      </span>
      <span class="number"><span class="hidden">${T.run.took} </span>${short(tookMs(run, run.status === "running" ? now.value : 0))}</span>
      <span class="number">${tokens(run.tokens_used)}<span class="unit"> ${T.run.tokens}</span></span>
      <span class="number"><span class="hidden">${T.run.cost} </span>${cost(run.cost_usd)}</span>
      <${Id} id=${run.id} />
    </div>
  `;
}

/** @typedef {import("../store.js").Run} Run */

export const title = T.runs.title;

const LIMIT = 50;
/** The parameters of the page, and their names in the API. @type {Record<string, string>} */
const FILTERS = { status: "status", reason: "reason", trigger: "trigger", routine: "routine_id", since: "since", until: "until", user: "user" };

/** What the API is asked for. Pure. @param {URLSearchParams} query @returns {Record<string, string>} */
export const filters = (query) => Object.fromEntries(Object.entries(FILTERS).flatMap(([name, of]) => (query.get(name) ? [[of, query.get(name) ?? ""]] : [])));

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function readPage(given, cursor, signal) {
  const page = await readSince(() => get("/api/runs", { query: { ...given, limit: LIMIT, cursor }, signal }));
  for (const run of page.items.toReversed()) putRun(run, page.seen);
  return page;
}

/** The runs that were heard of since, and belong into the list. Pure. @param {Run[]} heard @param {Record<string, string>} given @param {Set<string>} listed */
export function countNew(heard, given, listed) {
  const among = (/** @type {string} */ name, /** @type {string} */ value) => !given[name] || given[name].split(",").includes(value);
  return heard.filter((run) => !listed.has(run.id) && among("status", run.status) && among("trigger", run.trigger_type) && among("reason", run.reason ?? "") && among("routine_id", run.routine_id)
    && among("user", run.user_id) && Date.parse(run.created_at) >= Date.parse(given["since"] ?? "1970-01-01") && !(Date.parse(run.created_at) >= Date.parse(given["until"] ?? ""))).length;
}

/** @param {{ given: Record<string, string>, name: string | undefined }} props `name` of the routine, if it is known */
function Filters({ given, name }) {
  const routine = given["routine_id"];
  return html`
    <div class="filters" role="search">
      <${Choice} name=${T.routines.status} filter="status" given=${given["status"]} words=${T.runs.statuses} />
      <${Choice} name=${T.routines.trigger} filter="trigger" given=${given["trigger"]} words=${T.routine.triggers} />
      <${Typed} name=${T.job.reason} filter="reason" given=${given["reason"]} placeholder="overlap" />
      <${Period} name=${T.runs.since} given=${given} />
      ${routine && html`<span>${T.runs.routine}: <a href=${`/routines/${routine}`}><bdi dir="auto">${name ?? routine}</bdi></a></span>`}
      <${UserAndClear} given=${given} names=${Object.keys(FILTERS)} />
    </div>
  `;
}

export default function Runs() {
  const given = filters(place.value.query);
  const key = JSON.stringify(given);
  const { first, ids, rows, isLoading, again, status, more } = useRows(runs, (cursor, signal) => readPage(given, cursor, signal), [key]);
  const added = first && !isLoading ? countNew(runs.since(first.seen), given, new Set(ids)) : 0;
  const isFiltered = Object.keys(given).length > 0;
  return html`
    <${Heading}>${title}<//>
    <${RoutineTabs} />
    <${Filters} given=${given} name=${rows[0]?.routine_name} />
    ${status}
    <${Added} count=${added} show=${again} />
    ${first && rows.length === 0 && html`<${Empty}><p>${isFiltered ? T.runs.noMatch : T.runs.none}</p><//>`}
    ${rows.length > 0 && html`<${PageRows} key=${key} rows=${rows} label=${title} draw=${(/** @type {Run} */ run) => html`<${RunRow} run=${run} />`} />`}
    ${more}
    <${CopyAs} cli=${commandOf("gantry runs list", given, { routine_id: "routine" })} path=${`/api/runs?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}
