// All routines, newest first: what fires them, how their last runs ended, when they fire next, and what can be done with each.

import { useEffect } from "preact/hooks";
import { get } from "../api.js";
import { bindRows } from "../keys.js";
import { position, positioned } from "../live.js";
import { place, setQuery } from "../router.js";
import { generation, who } from "../session.js";
import { putRoutine, putRun, resyncs, routines, runs } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, html, useLoad, usePages } from "../ui.js";
import { Added } from "./inbox/added.js";
import { RoutineRow } from "./routine/row.js";
import { Tabs } from "./routine/tabs.js";

/** @typedef {import("../store.js").Routine} Routine */
/** @typedef {import("../store.js").Run} Run */

export const title = T.routines.title;

const LIMIT = 50;
/** Runs of all routines that are read for their bars. */
const MAX_RUNS = 200;
const BARS = 10;
const FILTERS = ["status", "trigger", "q", "user"];

/** @param {URLSearchParams} query */
const filters = (query) => Object.fromEntries(FILTERS.flatMap((name) => (query.get(name) ? [[name, query.get(name) ?? ""]] : [])));

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function readPage(given, cursor, signal) {
  await positioned();
  const seen = position();
  const query = { ...given, limit: LIMIT, cursor };
  const { items, next_cursor } = await get("/api/routines", { query, signal });
  for (const routine of items) putRoutine(routine, seen);
  const newest = routines.all().reduce((newest, { id }) => (id > newest ? id : newest), "");
  return { items: items.map(({ id }) => id), next_cursor, seen, newest };
}

/** The newest runs of all routines, once for all rows. @param {string | undefined} user @param {AbortSignal} signal */
async function readRuns(user, signal) {
  await positioned();
  const seen = position();
  const { items } = await get("/api/runs", { query: { limit: MAX_RUNS, user }, signal });
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
  const change = (/** @type {string} */ name) => (/** @type {any} */ event) => setQuery({ [name]: event.target.value.trim() || null });
  const choice = (/** @type {"status" | "trigger"} */ name, /** @type {Record<string, string>} */ words) => html`
    <label>${T.routines[name]} <select value=${given[name] ?? ""} onChange=${change(name)}>
      <option value="">${T.jobs.any}</option>
      ${Object.entries({ ...(given[name] && { [given[name]]: given[name] }), ...words }).map(([value, word]) => html`<option key=${value} value=${value}>${word}</option>`)}
    </select></label>`;
  return html`
    <div class="filters" role="search">
      ${choice("status", T.routines.statuses)}
      ${choice("trigger", T.routine.triggers)}
      <label>${T.jobs.text} <input type="search" value=${given["q"] ?? ""} onChange=${change("q")} /></label>
      ${who.value?.role === "admin" && html`<label>${T.jobs.user} <input value=${given["user"] ?? ""} spellcheck=${false} onChange=${change("user")} /></label>`}
      ${Object.keys(given).length > 0 && html`
        <button type="button" class="link" onClick=${() => setQuery(Object.fromEntries(FILTERS.map((name) => [name, null])))}>${T.jobs.clear}</button>`}
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
  const given = filters(place.value.query);
  const key = JSON.stringify(given);
  const inputs = [key, generation.value, resyncs.value];
  const { first, items: ids, isLoading, again, status, more } = usePages((cursor, signal) => readPage(given, cursor, signal), inputs);
  // Without them the rows have no bars, which is all.
  useLoad((signal) => readRuns(given["user"], signal), [given["user"], generation.value, resyncs.value]);
  useEffect(() => bindRows(".rows a.open"), []);
  useEffect(() => (routines.show(ids), () => routines.show([])), [ids.length, first]);
  const rows = ids.flatMap((id) => routines.get(id) ?? []);
  const last = byRoutine(runs.all());
  const canWrite = who.value?.role !== "viewer";
  const listed = new Set(ids);
  const isNew = (/** @type {Routine} */ { id }) => first && id > first.newest && !listed.has(id);
  const added = first && !isLoading ? routines.since(first.seen).filter(isNew).length : 0;
  return html`
    <div class="line"><${Heading}>${title}<//> ${canWrite && html`<a class="button" href="/routines/new">${T.editRoutine.new}</a>`}</div>
    <${Tabs} />
    <${Filters} given=${given} />
    ${status}
    <${Added} count=${added} show=${again} />
    ${first && rows.length === 0 && html`<${None} isFiltered=${Object.keys(given).length > 0} canWrite=${canWrite} />`}
    ${rows.length > 0 && html`<ul class="rows">${rows.map((routine) => html`<${RoutineRow} key=${routine.id} routine=${routine} runs=${last.get(routine.id) ?? []} canWrite=${canWrite} />`)}</ul>`}
    ${more}
    <${CopyAs} cli=${["gantry routine list", ...Object.entries(given).map(([name, text]) => `--${name} '${text.replaceAll("'", "'\\''")}'`)].join(" ")}
      path=${`/api/routines?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}
