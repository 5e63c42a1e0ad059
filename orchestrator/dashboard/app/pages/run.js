// One run of a routine: how it ended and why, what it said, its transcript and its calls, and the job that it started.

import { get, post } from "../api.js";
import { cost, tokens } from "../format.js";
import { readSince } from "../live.js";
import { ConfirmButton, Fact, useObject } from "../parts.js";
import { place } from "../router.js";
import { generation, who } from "../session.js";
import { putRun, runs } from "../store.js";
import { T } from "../texts.js";
import { Copy, CopyAs, Empty, Failed, Heading, Id, Problem, Text, Time, html, now, useDoing, useLoad, usePages, useSubject } from "../ui.js";
import { Body, EntryBody } from "./chat/entry.js";
import { CallTables } from "./job/details.js";
import { RunState, short, tookMs } from "./routine/words.js";

// --- the conversation of a lightweight run: what the model read and said, and its tool calls with their results, by attempt

/** @typedef {import("../api.js").schemas["RunMessage"]} RunMessage */

const LIMIT = 200;

/** Calls with their results. Pure. @param {RunMessage[]} messages @returns {{ message: any, result: any }[]} */
export function joined(messages) {
  /** @type {Map<string, any>} */
  const open = new Map();
  /** @type {{ message: any, result: any }[]} */
  const rows = [];
  for (const message of /** @type {any[]} */ (messages)) {
    const call = `${message.attempt} ${message.data?.call_id}`;
    const known = message.kind === "tool_result" ? open.get(call) : undefined;
    if (known) known.result = message;
    else rows.push({ message, result: null });
    if (message.kind === "tool_use") open.set(call, rows.at(-1));
  }
  return rows;
}

/** @param {{ message: any, result: any }} props */
function Entry({ message: { kind, at, data }, result }) {
  const word = kind === "message" ? T.trace.roles[/** @type {"user"} */ (data.role)] ?? data.role : kind === "reasoning" ? T.trace.thinks : kind;
  if (kind === "tool_use") return html`<${EntryBody} row=${{ entry: { role: "tool_use", at, ...data }, result: result?.data }} />`;
  if (kind === "tool_result") return html`<${EntryBody} row=${{ entry: { role: "tool_result", at, ...data } }} />`;
  return html`
    <p class="line"><strong><${Text}>${word}<//></strong> <span class="note"><${Time} at=${at} /></span></p>
    <${Body} text=${typeof data?.content === "string" ? data.content : JSON.stringify(data, null, 2)} />
  `;
}

/** @param {{ id: string, changed: string }} props `changed` is another one when there may be more */
export function Messages({ id, changed }) {
  const read = async (/** @type {string | undefined} */ cursor, /** @type {AbortSignal | undefined} */ signal) => {
    return get("/api/runs/{id}/messages", { path: { id }, query: { limit: LIMIT, cursor }, signal });
  };
  const { first, items, status, more } = usePages(read, [id, changed, generation.value]);
  const rows = joined(items);
  return html`
    <h2>${T.run.messages}</h2>
    ${status}
    ${first && rows.length === 0 && html`<${Empty}><p>${T.run.noMessages}</p><//>`}
    ${rows.map(({ message, result }, index) => html`
      ${(message.attempt > 1 || rows.at(-1)?.message.attempt > 1) && message.attempt !== rows[index - 1]?.message.attempt && html`<h3 key=${`attempt ${message.attempt}`}>${T.run.attemptTitle(message.attempt)}</h3>`}
      <div class="entry ${message.kind === "message" ? message.data.role : ""}" key=${message.seq}><${Entry} message=${message} result=${result} /></div>`)}
    ${more}
  `;
}

/** @typedef {import("../api.js").schemas["RoutineRun"]} Run */

export const title = T.run.title;

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const { seen, ...run } = await readSince(() => get("/api/runs/{id}", { path: { id }, signal }));
  putRun(run, seen);
  return run;
}

const isOver = (/** @type {Run} */ { status }) => status !== "queued" && status !== "running";

/** @param {{ run: Run, again: () => void }} props */
function Cancel({ run, again }) {
  const doing = useDoing();
  // Whether it worked or another one was faster: show what the run is now.
  const work = () => post("/api/runs/{id}/cancel", { path: { id: run.id } }).finally(again);
  return html`
    ${!isOver(run) && html`<${ConfirmButton} name=${T.run.cancel} title=${T.run.cancelQuestion} note=${T.run.cancelNote} isDisabled=${doing.isBusy} onYes=${() => doing.run(work)} />`}
    <${Problem} error=${doing.error} />
  `;
}

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
  const { value: run, failure, again, status } = useObject(runs, id, (signal) => read(id, signal), ["status", "attempt"], ["message", "result_summary"]);
  useSubject(run?.routine_name);
  if (!run) return html`<${Heading}>${title}<//>${status}`;
  const why = [run.reason, run.message].filter(Boolean).join(": ");
  const changed = `${run.status} ${run.attempt}`;
  const hasStarted = run.started_at !== null;
  return html`
    <${Heading}>${title}: <${Text}>${run.routine_name}<//><//>
    <p class="line"><${RunState} status=${run.status} /> <${Id} id=${id} /> <a href=${`/routines/${run.routine_id}`}>${T.run.routine}</a>
      ${who.value?.role === "admin" && html`<span class="note"><${Text}>${run.user_id}<//></span>`}
      ${who.value?.role !== "viewer" && html`<${Cancel} run=${run} again=${again} />`}</p>
    ${why && html`<p><${Text}>${why}<//></p>`}
    ${failure}
    <${Facts} run=${run} />
    <${Result} run=${run} />
    ${run.job_id && html`<p><a class="button" href=${`/jobs/${run.job_id}`}>${T.run.job}</a> <span class="note">${T.run.jobNote}</span></p>`}
    <${Detail} run=${run} />
    ${hasStarted && !run.job_id && html`<${Messages} id=${id} changed=${changed} /><${Calls} id=${id} changed=${changed} />`}
    <${CopyAs} cli=${`gantry runs show ${id} --transcript`} path=${`/api/runs/${id}`} />
  `;
}
