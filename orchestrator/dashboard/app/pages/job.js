// One job: what it is, what can be done with it, and its parts as tabs, which are modules in `job/`.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post, remove } from "../api.js";
import { cost, duration, tokens } from "../format.js";
import { position, positioned } from "../live.js";
import { go, place } from "../router.js";
import { generation, who } from "../session.js";
import { jobs, putJob, resyncs } from "../store.js";
import { T } from "../texts.js";
import { Confirm, Copy, CopyAs, Elapsed, Failed, Heading, Id, Loading, State, Text, html, now, useLoad } from "../ui.js";
import { Activity } from "./job/activity.js";
import { Calls } from "./job/calls.js";
import { Changes } from "./job/changes.js";
import { Details } from "./job/details.js";
import { Files } from "./job/files.js";
import { Prompt } from "./job/prompt.js";
import { FINISHED } from "./job/row.js";

/** @typedef {import("../api.js").schemas["Job"]} Job */

export const title = T.job.title;

const TABS = /** @type {const} */ (["activity", "changes", "files", "calls", "details"]);
const BODIES = { activity: Activity, changes: Changes, files: Files, calls: Calls, details: Details };

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  await positioned();
  const seen = position();
  const job = await get("/api/jobs/{id}", { path: { id }, signal });
  putJob(job, seen);
  return job;
}

/** A bar of what is used of a limit. @param {{ name: string, used: number, limit: number, text: string }} props */
const Meter = ({ name, used, limit, text }) => html`
  <span class="meter"><span class="note">${name}</span> <meter min="0" max=${limit} value=${Math.min(used, limit)} aria-label=${name}></meter> <span class="number">${text}</span></span>
`;

/** @param {{ job: Job }} props */
function Meters({ job }) {
  const { usage, limits } = job;
  const used = usage.input_tokens + usage.output_tokens;
  const seconds = job.started_at ? ((job.finished_at ? Date.parse(job.finished_at) : now.value) - Date.parse(job.started_at)) / 1_000 : 0;
  return html`
    <p class="meters">
      ${limits.max_tokens ? html`<${Meter} name=${T.job.tokens} used=${used} limit=${limits.max_tokens} text=${`${tokens(used)} / ${tokens(limits.max_tokens)}`} />`
        : html`<span class="meter"><span class="note">${T.job.tokens}</span> ${tokens(used)}</span>`}
      ${limits.max_cost_usd ? html`<${Meter} name=${T.job.cost} used=${usage.cost_usd ?? 0} limit=${limits.max_cost_usd} text=${`${cost(usage.cost_usd)} / ${cost(limits.max_cost_usd)}`} />`
        : html`<span class="meter"><span class="note">${T.job.cost}</span> ${cost(usage.cost_usd)}</span>`}
      <${Meter} name=${T.job.iterations} used=${usage.iterations} limit=${limits.max_iterations} text=${`${usage.iterations} / ${limits.max_iterations}`} />
      <${Meter} name=${T.job.time} used=${seconds} limit=${limits.timeout_seconds} text=${`${duration(seconds * 1_000)} / ${duration(limits.timeout_seconds * 1_000)}`} />
    </p>
  `;
}

/** @typedef {{ name: string, question?: string, note?: string, field?: string, run: (text: string) => Promise<unknown> }} Action */

/** What can be done with a job in its state. @param {Job} job @returns {Action[]} */
function actionsOf(job) {
  const { id, state } = job;
  const path = { id };
  const isFinished = FINISHED.has(state);
  /** @type {Action[]} */
  const actions = [];
  if (job.held) actions.push({ name: T.job.start, run: () => post("/api/jobs/{id}/start", { path }) });
  if (state === "submitted") {
    actions.push({ name: T.job.accept, run: () => post("/api/jobs/{id}/accept", { path }) });
    actions.push({ name: T.job.reject, question: T.job.rejectQuestion, field: T.job.reason, run: (reason) => post("/api/jobs/{id}/reject", { path, body: { reason } }) });
  }
  if (!isFinished && state !== "submitted") {
    actions.push({ name: T.job.cancel, question: T.job.cancelQuestion, run: () => post("/api/jobs/{id}/cancel", { path, body: {} }) });
  }
  if (isFinished || state === "stuck") {
    const intent = crypto.randomUUID();
    actions.push({
      name: T.job.restart,
      run: async () => {
        const next = await post("/api/jobs/{id}/restart", { path, body: {}, intent });
        go(`/jobs/${/** @type {any} */ (next).id}`);
      },
    });
  }
  if (isFinished) {
    actions.push({
      name: T.job.remove, question: T.job.removeQuestion, note: T.job.removeNote,
      run: async () => {
        await remove("/api/jobs/{id}", { path });
        jobs.drop(id);
        go("/jobs");
      },
    });
  }
  return actions;
}

/** @param {{ job: Job, again: () => void }} props */
function Actions({ job, again }) {
  const [asked, setAsked] = useState(/** @type {Action | null} */ (null));
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  const [isBusy, setIsBusy] = useState(false);
  /** @param {Action} action @param {string} [text] */
  async function run(action, text = "") {
    setAsked(null);
    setError(null);
    setIsBusy(true);
    try {
      await action.run(text);
      again();
    } catch (failure) {
      setError(/** @type {Error} */ (failure));
      // Another one was faster: show what the job is now.
      if (failure instanceof ApiError && failure.status === 409) again();
    }
    setIsBusy(false);
  }
  return html`
    <p class="line">
      ${actionsOf(job).map((action) => html`
        <button key=${action.name} type="button" disabled=${isBusy} onClick=${() => (action.question ? setAsked(action) : run(action))}>${action.name}</button>`)}
      <a class="button" href=${`/jobs/new?from=${job.id}`}>${T.job.again}</a>
      <${Copy} text=${`gantry job show ${job.id}`} label="CLI" name="CLI" />
    </p>
    ${error && html`<p class="failure" role="alert"><${Text}>${error.message}<//></p>`}
    ${asked && html`<${Confirm} title=${asked.question} note=${asked.note} field=${asked.field} yes=${asked.name} no=${T.job.keep}
      onYes=${(/** @type {string} */ text) => run(asked, text)} onNo=${() => setAsked(null)} />`}
  `;
}

export default function JobPage() {
  const { id = "", path, tab = path === undefined ? "activity" : "files" } = place.value.params;
  const row = jobs.get(id);
  const { value: job, error, isLoading, again } = useLoad((signal) => read(id, signal), [id, generation.value, resyncs.value, row?.state, row?.cancel_requested_at]);
  useEffect(() => void (job && (document.title = `${job.title} · ${T.name}`)), [job?.title]);
  if (!job) {
    return html`<${Heading}>${title}<//>${isLoading ? html`<${Loading} />` : error && html`<${Failed} error=${error} again=${again} />`}`;
  }
  const name = TABS.find((one) => one === tab) ?? "activity";
  const Body = BODIES[name];
  const canWrite = who.value?.role !== "viewer";
  const isOver = FINISHED.has(job.state) || job.state === "submitted";
  const result = job.result?.text;
  const why = [job.reason, job.message].filter(Boolean).join(": ");
  return html`
    <${Heading}><${Text}>${job.title}<//><//>
    <p class="line"><${State} state=${job.state} /> <${Elapsed} from=${job.started_at} to=${job.state === "in_progress" ? null : job.finished_at} /> <${Id} id=${job.id} />
      ${job.queue_position && html`<span class="note">${T.job.position(job.queue_position)}</span>`}
      ${why && html`<span class="note"><${Text}>${why}<//></span>`}</p>
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${canWrite && html`<${Actions} job=${job} again=${again} />`}
    <${Meters} job=${job} />
    ${isOver && result && html`<section class="result" aria-label=${T.job.result}><h2>${T.job.result} <${Copy} text=${result} name=${T.job.result} /></h2><pre><${Text}>${result}<//></pre></section>`}
    <nav class="tabs" aria-label=${T.job.parts}>
      ${TABS.map((one) => html`<a key=${one} href=${one === "activity" ? `/jobs/${id}` : `/jobs/${id}/${one}`} aria-current=${one === name ? "page" : undefined}>${T.job.tabs[one]}</a>`)}
    </nav>
    <${Body} key=${id} job=${job} />
    ${canWrite && !isOver && (job.prompts_closed ? html`<p class="note">${T.prompt.closed}</p>` : html`<${Prompt} job=${job} />`)}
    <${CopyAs} cli=${`gantry job show ${id}`} path=${`/api/jobs/${id}`} />
  `;
}

