// One run of a routine: how it ended and why, what it said, its transcript and its calls, and the job that it started.

import { computed } from "@preact/signals";
import { useEffect, useMemo, useState } from "preact/hooks";
import { get, post } from "../api.js";
import { cost, tokens } from "../format.js";
import { position, positioned } from "../live.js";
import { place } from "../router.js";
import { generation, who } from "../session.js";
import { putRun, resyncs, runs } from "../store.js";
import { T } from "../texts.js";
import { Confirm, Copy, CopyAs, Failed, Heading, Id, Problem, Text, Time, html, now, useLoad, useSubject } from "../ui.js";
import { CallTables } from "./job/calls.js";
import { useDoing } from "./routine/actions.js";
import { RunState, short, tookMs } from "./routine/words.js";
import { Messages } from "./run/messages.js";

/** @typedef {import("../api.js").schemas["RoutineRun"]} Run */

export const title = T.run.title;

const LIMIT = 200;

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  await positioned();
  const seen = position();
  const run = await get("/api/runs/{id}", { path: { id }, signal });
  putRun(run, seen);
  return run;
}

/** A run as it is now: what was read, and what the store has heard since. @param {string} id */
function useRun(id) {
  const known = useMemo(() => computed(() => runs.get(id)), [id]);
  const row = known.value;
  const { value, error, isLoading, again } = useLoad((signal) => read(id, signal), [id, generation.value, resyncs.value]);
  useEffect(() => (runs.show([id]), () => runs.show([])), [id]);
  useEffect(() => {
    // Its texts are not in the store.
    if (value && row && (row.status !== value.status || row.attempt !== value.attempt)) again();
  }, [row?.status, row?.attempt, value]);
  /** @type {Run | null} */
  const run = useMemo(() => value && { ...value, ...row, message: value.message ?? null, result_summary: value.result_summary ?? null }, [value, row]);
  return { run, error, isLoading, again };
}

const isOver = (/** @type {Run} */ { status }) => status !== "queued" && status !== "running";

/** @param {{ run: Run, again: () => void }} props */
function Cancel({ run, again }) {
  const doing = useDoing();
  const [isAsking, setIsAsking] = useState(false);
  // Whether it worked or another one was faster: show what the run is now.
  const work = () => post("/api/runs/{id}/cancel", { path: { id: run.id } }).finally(again);
  return html`
    ${!isOver(run) && html`<button type="button" disabled=${doing.isBusy} onClick=${() => setIsAsking(true)}>${T.run.cancel}</button>`}
    <${Problem} error=${doing.error} />
    ${isAsking && html`<${Confirm} title=${T.run.cancelQuestion} note=${T.run.cancelNote} yes=${T.run.cancel} no=${T.job.keep}
      onYes=${() => (setIsAsking(false), doing.run(work))} onNo=${() => setIsAsking(false)} />`}
  `;
}

/** @param {{ name: any, children?: any }} props */
const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** @param {{ run: Run }} props */
function Facts({ run }) {
  const times = /** @type {const} */ ([["due", run.due_at], ["recorded", run.created_at], ["started", run.started_at], ["ended", run.completed_at], ["retry", isOver(run) ? null : run.not_before]]);
  const ms = tookMs(run, run.status === "running" ? now.value : 0);
  return html`
    <dl class="facts">
      <${Fact} name=${T.run.fired}>${T.routine.triggers[run.trigger_type] ?? run.trigger_type}<//>
      ${times.map(([name, at]) => at && html`<${Fact} key=${name} name=${T.run[name]}><${Time} at=${at} /><//>`)}
      ${ms !== null && html`<${Fact} name=${T.run.took}>${short(ms)}<//>`}
      <${Fact} name=${T.run.tokens}>${tokens(run.tokens_used)}<//>
      <${Fact} name=${T.run.cost}>${cost(run.cost_usd)}<//>
      ${run.attempt > 1 && html`<${Fact} name=${T.run.attempt}>${run.attempt}<//>`}
    </dl>
    ${run.missed_count && html`<p>${T.run.missed(run.missed_count)}: ${run.missed_from && html`<${Time} at=${run.missed_from} />`} – ${run.missed_to && html`<${Time} at=${run.missed_to} />`}</p>`}
    ${run.skipped_count && html`<p>${T.run.skipped(run.skipped_count)}${run.last_skipped_at && html`, <${Time} at=${run.created_at} /> – <${Time} at=${run.last_skipped_at} />`}</p>`}
  `;
}

/** The text is shown as it was written. @param {{ run: Run }} props */
function Result({ run }) {
  const text = run.result ?? run.result_summary;
  return text && html`
    <section class="result" aria-label=${T.job.result}>
      <h2>${T.job.result} <${Copy} text=${text} name=${T.job.result} /></h2>
      <pre tabindex="0" role="group" aria-label=${T.job.result}><${Text}>${text}<//></pre>
      ${run.cut && html`<p class="note">${T.run.cut}</p>`}
    </section>
  `;
}

/** @param {{ run: Run }} props */
function Detail({ run: { trigger_detail: detail } }) {
  if (!detail || Object.keys(detail).length === 0) return null;
  return html`<details class="more"><summary>${T.run.detail}</summary><pre tabindex="0" role="group" aria-label=${T.run.detail}><${Text}>${JSON.stringify(detail, null, 2)}<//></pre></details>`;
}

/** @param {{ id: string, changed: string }} props */
function Calls({ id, changed }) {
  const { value, error, again } = useLoad(async (signal) => {
    const options = { path: { id }, query: { limit: LIMIT }, signal };
    const [models, actions] = await Promise.all([get("/api/runs/{id}/llm-calls", options), get("/api/runs/{id}/actions", options)]);
    return { models, actions };
  }, [id, changed, generation.value]);
  return html`${error && html`<${Failed} error=${error} again=${again} />`}${value && html`<${CallTables} ...${value} />`}`;
}

export default function RunPage() {
  const { params: { id = "" } } = place.value;
  const { run, error, isLoading, again } = useRun(id);
  useSubject(run?.routine_name);
  if (!run) {
    return html`<${Heading}>${title}<//>${isLoading ? html`<${Loading} />` : error && html`<${Failed} error=${error} again=${again} />`}`;
  }
  const why = [run.reason, run.message].filter(Boolean).join(": ");
  const changed = `${run.status} ${run.attempt}`;
  const hasStarted = run.started_at !== null;
  return html`
    <${Heading}>${title}: <${Text}>${run.routine_name}<//><//>
    <p class="line"><${RunState} status=${run.status} /> <${Id} id=${id} /> <a href=${`/routines/${run.routine_id}`}>${T.run.routine}</a>
      ${who.value?.role === "admin" && html`<span class="note"><${Text}>${run.user_id}<//></span>`}
      ${who.value?.role !== "viewer" && html`<${Cancel} run=${run} again=${again} />`}</p>
    ${why && html`<p><${Text}>${why}<//></p>`}
    ${error && html`<${Failed} error=${error} again=${again} />`}
    <${Facts} run=${run} />
    <${Result} run=${run} />
    ${run.job_id && html`<p><a class="button" href=${`/jobs/${run.job_id}`}>${T.run.job}</a> <span class="note">${T.run.jobNote}</span></p>`}
    <${Detail} run=${run} />
    ${hasStarted && !run.job_id && html`<${Messages} id=${id} changed=${changed} /><${Calls} id=${id} changed=${changed} />`}
    <${CopyAs} cli=${`gantry runs show ${id} --transcript`} path=${`/api/runs/${id}`} />
  `;
}
