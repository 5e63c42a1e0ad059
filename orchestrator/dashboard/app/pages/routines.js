// All routines, newest first: what fires them, how their last runs ended, when they fire next, and what can be done with each.

import { useLayoutEffect } from "preact/hooks";
import { get } from "../api.js";
import { isZone, relative, time } from "../format.js";
import { bindRows } from "../keys.js";
import { readSince } from "../live.js";
import { Added, Choice, Typed, UserAndClear, commandOf, filtersOf, useRows } from "../parts.js";
import { place } from "../router.js";
import { generation, who } from "../session.js";
import { putRoutine, putRun, resyncs, routines, runs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, Text, Time, html, now, useLoad, zone } from "../ui.js";
import { Actions } from "./routine/actions.js";
import { Bars, RoutineState, RoutineTabs, triggerWords } from "./routine/words.js";

// --- a routine as a row of the list

const BAR = { width: 8, height: 24 };

/** When it fires next, in its own zone and in the chosen one. @param {{ routine: import("../store.js").Routine }} props */
function Next({ routine: { next_fire_at: at, trigger, enabled } }) {
  if (!at || !enabled) return html`<span class="note">–</span>`;
  const ms = Date.parse(at);
  const own = trigger.type === "cron" && isZone(trigger.timezone) ? trigger.timezone : null;
  const theirs = own && time(ms, own, now.value);
  return html`<span class="hidden">${T.routines.next} </span><${Time} at=${at} /><span class="note reason">${relative(ms, now.value)}
    ${theirs && theirs !== time(ms, zone.value, now.value) && html`<br />${theirs} <${Text}>${own}<//>`}</span>`;
}

/** @param {{ routine: import("../store.js").Routine, runs: import("../store.js").Run[], canWrite: boolean }} props */
export function RoutineRow({ routine, runs, canWrite }) {
  const { id, name, description, trigger, disabled_reason: why, consecutive_failures: failures } = routine;
  const last = runs.map(({ status }) => T.runs.statuses[status]).join(", ");
  return html`
    <li class="row routine">
      <${RoutineState} status=${routine.status} />
      <span class="title">
        <a class="open" href=${`/routines/${id}`}><${Text}>${name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${routine.user_id}<//></span>`}
        <span class="note reason"><${Text}>${triggerWords(trigger)}<//>${trigger.type === "cron" && trigger.timezone && html` <${Text}>${trigger.timezone}<//>`}
          ${why && ` · ${T.routine.reasons[why] ?? why}`}${failures > 0 && ` · ${T.routines.failures(failures)}`}</span>
        ${description && html`<span class="note reason description"><${Text}>${description}<//></span>`}
      </span>
      <span class="sparkline">${runs.length > 0 && html`<span class="hidden">${T.routines.last} ${last}</span><${Bars} runs=${runs} width=${BAR.width} height=${BAR.height} isSmall />`}</span>
      <span class="next"><${Next} routine=${routine} /></span>
      ${canWrite ? html`<${Actions} routine=${routine} />` : html`<span></span>`}
    </li>
  `;
}

/** @typedef {import("../store.js").Routine} Routine */
/** @typedef {import("../store.js").Run} Run */

export const title = T.routines.title;

const LIMIT = 50;
/** Runs of all routines that are read for their bars. */
const MAX_RUNS = 200;
const BARS = 10;
const FILTERS = ["status", "trigger", "q", "user"];

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function readPage(given, cursor, signal) {
  const page = await readSince(() => get("/api/routines", { query: { ...given, limit: LIMIT, cursor }, signal }));
  for (const routine of page.items) putRoutine(routine, page.seen);
  const newest = routines.all().reduce((newest, { id }) => (id > newest ? id : newest), "");
  return { ...page, newest };
}

/** The newest runs of all routines, once for all rows. @param {string | undefined} user @param {AbortSignal} signal */
async function readRuns(user, signal) {
  const { items, seen } = await readSince(() => get("/api/runs", { query: { limit: MAX_RUNS, user }, signal }));
  for (const run of items.toReversed()) putRun(run, seen);
}

/** The last runs of each routine, the oldest first. @param {Run[]} all @returns {Map<string, Run[]>} */
function byRoutine(all) {
  /** @type {Map<string, Run[]>} */
  const found = new Map();
  for (const run of all.toSorted((one, other) => (one.id < other.id ? 1 : -1))) {
    const of = found.get(run.routine_id) ?? [];
    if (of.length < BARS) of.unshift(run);
    found.set(run.routine_id, of);
  }
  return found;
}

/** @param {{ given: Record<string, string> }} props */
function Filters({ given }) {
  return html`
    <div class="filters" role="search">
      <${Choice} name=${T.routines.status} filter="status" given=${given["status"]} words=${T.routines.statuses} />
      <${Choice} name=${T.routines.trigger} filter="trigger" given=${given["trigger"]} words=${T.routine.triggers} />
      <${Typed} name=${T.jobs.text} filter="q" given=${given["q"]} />
      <${UserAndClear} given=${given} names=${FILTERS} />
    </div>
  `;
}

/** @param {{ isFiltered: boolean, canWrite: boolean }} props */
const None = ({ isFiltered, canWrite }) => (isFiltered ? html`<${Empty}><p>${T.routines.noMatch}</p><//>` : html`
  <${Empty}>
    <h2>${T.routines.none}</h2>
    <p>${T.routines.first}</p>
    ${canWrite && html`<p><a class="button" href="/routines/new">${T.editRoutine.new}</a></p>`}
  <//>`);

export default function Routines() {
  const given = filtersOf(place.value.query, FILTERS);
  const key = JSON.stringify(given);
  const { first, ids, rows, isLoading, again, status, more } = useRows(routines, (cursor, signal) => readPage(given, cursor, signal), [key]);
  // Without them the rows have no bars, which is all.
  useLoad((signal) => readRuns(given["user"], signal), [given["user"], generation.value, resyncs.value]);
  useLayoutEffect(() => bindRows(".rows a.open"), []);
  const last = byRoutine(runs.all());
  const canWrite = who.value?.role !== "viewer";
  const listed = new Set(ids);
  const isNew = (/** @type {Routine} */ { id }) => first && id > first.newest && !listed.has(id);
  const added = first && !isLoading ? routines.since(first.seen).filter(isNew).length : 0;
  return html`
    <div class="line"><${Heading}>${title}<//> ${canWrite && html`<a class="button" href="/routines/new">${T.editRoutine.new}</a>`}</div>
    <${RoutineTabs} />
    <${Filters} given=${given} />
    ${status}
    <${Added} count=${added} show=${again} />
    ${first && rows.length === 0 && html`<${None} isFiltered=${Object.keys(given).length > 0} canWrite=${canWrite} />`}
    ${rows.length > 0 && html`<ul class="rows">${rows.map((routine) => html`<${RoutineRow} key=${routine.id} routine=${routine} runs=${last.get(routine.id) ?? []} canWrite=${canWrite} />`)}</ul>`}
    ${more}
    <${CopyAs} cli=${commandOf("gantry routine list", given)}
      path=${`/api/routines?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}
