// All jobs, newest first: filters in the URL, a note where there are new ones, and what can be done with several.

import { signal } from "@preact/signals";
import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get, post } from "../api.js";
import { bind } from "../keys.js";
import { readSince } from "../live.js";
import { Choice, Period, Typed, UserAndClear, change, commandOf, filtersOf, useRows } from "../parts.js";
import { place } from "../router.js";
import { who } from "../session.js";
import { FINISHED, jobs } from "../store.js";
import { STATES, T } from "../texts.js";
import { Confirm, CopyAs, Empty, Heading, Text, html } from "../ui.js";
import { PageRows } from "../virtual.js";
import { JobRow } from "./job/row.js";
import { Histogram } from "./jobs/histogram.js";

/** @typedef {import("../store.js").Job} Job */

export const title = T.jobs.title;

const LIMIT = 100;
/** Those that are shown when they are asked for, or used. */
const OTHERS = ["source", "reason", "model", "routine_id", "run_id"];
const FILTERS = ["state", "label", "q", "user", "since", "until", ...OTHERS];
const GROUPS = { active: "pending,in_progress", waiting: "submitted,stuck", finished: "completed,accepted,failed,cancelled" };

/** @type {import("@preact/signals").Signal<Set<string>>} */
const selected = signal(new Set());

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function readPage(given, cursor, signal) {
  const page = await readSince(() => get("/api/jobs", { query: { ...given, limit: LIMIT, cursor }, signal }));
  for (const job of page.items) jobs.put(job, page.seen);
  return { ...page, newest: newestOf(jobs.all()) };
}

/** Ids begin with the time, so newer ones are greater. @param {Job[]} rows */
const newestOf = (rows) => rows.reduce((newest, { id }) => (id > newest ? id : newest), "");

/**
 * How many of the jobs that were heard of since the list was read belong into it and are not there: new ones, and those whose state has
 * changed. Pure. `newest` is the greatest id that was known when the list was read.
 * @param {Job[]} heard @param {{ ids: string[], given: Record<string, string>, hasMore: boolean, newest: string }} list
 */
export function countNew(heard, { ids, given, hasMore, newest }) {
  const states = given["state"]?.split(",");
  // Whether a job has the label or the text of a search, only the server knows.
  const isSearch = Object.keys(given).some((name) => name !== "state");
  const after = isSearch ? newest : hasMore ? ids.at(-1) ?? "" : "";
  const listed = new Set(ids);
  return heard.filter(({ id, state }) => id > after && !listed.has(id) && (!states || states.includes(state))).length;
}

/** The choices of states: single ones, groups, and what the URL names. @param {string} given */
function choicesOf(given) {
  const sorted = (/** @type {string} */ text) => text.split(",").toSorted().join();
  const choices = Object.entries(STATES);
  for (const [name, states] of Object.entries(GROUPS)) {
    choices.push([sorted(states) === sorted(given) ? given : states, T.jobs.groups[/** @type {keyof typeof GROUPS} */ (name)]]);
  }
  const words = given.split(",").map((name) => STATES[/** @type {Job["state"]} */ (name)] ?? name);
  return choices.some(([states]) => states === given) || !given ? choices : [...choices, [given, words.join(", ")]];
}

/** @param {{ given: Record<string, string> }} props */
function OtherFilters({ given }) {
  const field = (/** @type {string} */ filter, /** @type {string} */ name) => html`<${Typed} name=${name} filter=${filter} given=${given[filter]} />`;
  return html`
    <details open=${OTHERS.some((name) => given[name])}><summary>${T.jobs.others}</summary>
      <div class="filters">
        <${Choice} name=${T.jobs.source} filter="source" given=${given["source"]} words=${T.jobs.sources} />
        ${field("reason", T.jobs.reason)} ${field("model", T.jobs.model)} ${field("routine_id", T.jobs.routine)} ${field("run_id", T.jobs.run)}
      </div>
    </details>
  `;
}

/** @param {{ given: Record<string, string> }} props */
function Filters({ given }) {
  return html`
    <div class="filters" role="search">
      <label>${T.jobs.state} <select value=${given["state"] ?? ""} onChange=${change("state")}>
        <option value="">${T.jobs.any}</option>
        ${choicesOf(given["state"] ?? "").map(([name, word]) => html`<option key=${name} value=${name}>${word}</option>`)}
      </select></label>
      <${Typed} name=${T.jobs.label} filter="label" given=${given["label"]} placeholder="team:a" />
      <${Typed} name=${T.jobs.text} filter="q" given=${given["q"]} />
      <${Period} name=${T.jobs.from} given=${given} />
      <${UserAndClear} given=${given} names=${FILTERS} />
      <${OtherFilters} given=${given} />
    </div>
  `;
}

/** Cancels the selected jobs, each by itself, and says which could not be. @param {{ rows: Job[] }} props */
function Selection({ rows }) {
  const [isAsking, setIsAsking] = useState(false);
  const [failed, setFailed] = useState(/** @type {{ name: string, message: string }[]} */ ([]));
  const chosen = rows.filter(({ id, state }) => selected.value.has(id) && !FINISHED.has(state));
  async function cancel() {
    setIsAsking(false);
    const ended = await Promise.allSettled(chosen.map(({ id }) => post("/api/jobs/{id}/cancel", { path: { id }, body: {} })));
    setFailed(ended.flatMap((end, index) => (end.status === "rejected" ? [{ name: chosen[index]?.title ?? "", message: end.reason.message }] : [])));
    selected.value = new Set();
  }
  const hasAny = chosen.length > 0;
  useLayoutEffect(() => bind([
    { key: "x", text: T.keys.select, run: () => /** @type {HTMLElement | null | undefined} */ (document.activeElement?.closest(".row")?.querySelector("input[type=checkbox]"))?.click() },
    { key: "c", text: T.keys.cancel, run: () => hasAny && setIsAsking(true) },
  ]), [hasAny]);
  return html`
    ${failed.length > 0 && html`
      <ul class="failure" role="alert">${failed.map(({ name, message }, index) => html`<li key=${index}><${Text}>${name}<//>: <${Text}>${message}<//></li>`)}</ul>`}
    ${chosen.length > 0 && html`<p class="line"><button type="button" onClick=${() => setIsAsking(true)}>${T.jobs.cancel(chosen.length)}</button></p>`}
    ${isAsking && html`<${Confirm} title=${T.jobs.cancelQuestion(chosen.length)} yes=${T.jobs.cancel(chosen.length)} no=${T.job.keep}
      onYes=${cancel} onNo=${() => setIsAsking(false)} />`}
  `;
}

/** @param {string} id @param {boolean} isOn */
function select(id, isOn) {
  const next = new Set(selected.value);
  if (isOn) next.add(id);
  else next.delete(id);
  selected.value = next;
}

export default function Jobs() {
  const { query } = place.value;
  const given = filtersOf(query, FILTERS);
  const { run_id: _, ...options } = given;
  const key = JSON.stringify(given);
  const { first, ids, rows, isLoading, again, hasMore, status, more } = useRows(jobs, (cursor, signal) => readPage(given, cursor, signal), [key]);
  useEffect(() => () => void (selected.value = new Set()), [key]);
  const canWrite = who.value?.role !== "viewer";
  const added = first && !isLoading ? countNew(jobs.since(first.seen), { ids, given, hasMore, newest: first.newest }) : 0;
  return html`
    <div class="line"><${Heading}>${title}<//> ${canWrite && html`<a class="button" href="/jobs/new">${T.newJob.title}</a>`}</div>
    <${Filters} given=${given} />
    <${Histogram} given=${given} read=${first} link=${(/** @type {Record<string, string | null>} */ changes) => linkOf(query, changes)} />
    ${status}
    ${added > 0 && html`<p class="line"><button type="button" onClick=${again}>${T.jobs.added(added)}</button></p>`}
    ${canWrite && html`<${Selection} rows=${rows} />`}
    ${first && ids.length === 0 && !hasMore && html`<${Empty}><p>${Object.keys(given).length > 0 ? T.jobs.noMatch : T.now.noJobs}</p><//>`}
    ${rows.length > 0 && html`<${PageRows} key=${key} rows=${rows} label=${title} draw=${(/** @type {Job} */ job) => html`
      <${JobRow} job=${job} isSelected=${selected.value.has(job.id)} onSelect=${canWrite ? select : null} />`} />`}
    ${more}
    <${CopyAs} cli=${commandOf("gantry job list", options, { routine_id: "routine" })} path=${`/api/jobs?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}

/** The list with other filters. @param {URLSearchParams} query @param {Record<string, string | null>} changes */
function linkOf(query, changes) {
  const next = new URLSearchParams(query);
  for (const [name, value] of Object.entries(changes)) {
    if (value === null) next.delete(name);
    else next.set(name, value);
  }
  return next.size === 0 ? "/jobs" : `/jobs?${next}`;
}
