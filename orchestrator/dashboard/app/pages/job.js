// One job: what it is, what can be done with it, and its parts as tabs, which are modules in `job/`.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, onProblem, post, remove } from "../api.js";
import { cost, duration, tokens } from "../format.js";
import { readSince } from "../live.js";
import { Meter, Tabs, useObject } from "../parts.js";
import { go, place } from "../router.js";
import { useSending } from "../sending.js";
import { generation, who } from "../session.js";
import { FINISHED, canRestart, endOf, jobs, putJob } from "../store.js";
import { T } from "../texts.js";
import { Confirm, Copy, CopyAs, Elapsed, Heading, Id, Problem, State, Text, Time, html, now, useDoing, useIntent, useLoad, useSubject } from "../ui.js";
import { Activity } from "./job/activity.js";
import { Changes } from "./job/changes.js";
import { Calls, Details } from "./job/details.js";
import { Files } from "./job/files.js";

// --- the prompts of a job, and the form for another one while it works. What is written stays until it is sent, also when the page is left

const SHOWN = 5;
/** Whether a prompt was read is asked again after so long. */
const AGAIN_MS = 5_000;

/** The newest prompts, and when the agent read each. @param {string} id @param {number} sent @param {boolean} isOver */
function usePrompts(id, sent, isOver) {
  const { value, again } = useLoad((signal) => get("/api/jobs/{id}/prompts", { path: { id }, query: { limit: SHOWN }, signal }), [id, sent, isOver, generation.value]);
  const askedAt = useRef(now.peek());
  const isWaiting = !isOver && value?.items.some(({ read_at: readAt }) => !readAt);
  // Only then does the clock of the page draw this again.
  const present = isWaiting ? now.value : 0;
  useEffect(() => {
    if (present - askedAt.current < AGAIN_MS) return;
    askedAt.current = present;
    again();
  }, [present]);
  return value?.items ?? [];
}

/** @typedef {import("../api.js").Answer<"/api/jobs/{id}/prompts", "get">["items"][0]} SentPrompt */

/** @param {{ prompt: SentPrompt }} props */
const Sent = ({ prompt }) => html`
  <span class="note">${T.prompt.sent} <${Time} at=${prompt.created_at} /> · ${prompt.read_at ? html`${T.prompt.read} <${Time} at=${prompt.read_at} />` : T.prompt.waits}</span>`;

/** @param {{ prompts: SentPrompt[] }} props */
const Prompts = ({ prompts }) => html`
  <section aria-labelledby="prompts">
    <h2 id="prompts">${T.prompt.earlier}</h2>
    <ul class="prompts" aria-labelledby="prompts">
      ${prompts.map((prompt) => html`<li key=${prompt.id}><span class="clamped" title=${prompt.content}><${Text}>${prompt.content}<//></span> <${Sent} prompt=${prompt} /></li>`)}
    </ul>
  </section>
`;

/** `last` is the newest prompt. @param {{ id: string, last: SentPrompt | undefined, onSent: () => void }} props */
function Form({ id, last, onSent }) {
  const [mode, setMode] = useState("steer");
  const { text, write, isBusy, error, onInput, onSubmit, onKeyDown } = useSending(`prompt.${id}`, async (content, intent) => {
    await post("/api/jobs/{id}/prompt", { path: { id }, body: { content, mode }, intent });
    onSent();
  });
  const radio = (/** @type {"steer" | "queue"} */ name) => html`
    <label class="check"><input type="radio" name="mode" checked=${mode === name} onChange=${() => (write(), setMode(name))} />${T.prompt[name]}</label>`;
  return html`
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="prompt">${T.prompt.title}</label>
      <textarea id="prompt" rows="2" value=${text} onInput=${onInput} onKeyDown=${onKeyDown}></textarea>
      <div class="line">${radio("steer")} ${radio("queue")}
        <button type="submit" disabled=${isBusy || !text.trim()}>${isBusy ? T.prompt.busy : T.prompt.send}</button>
        ${last && html`<${Sent} prompt=${last} />`}
      </div>
      <${Problem} error=${error} />
    </form>
  `;
}

/** @param {{ job: import("../api.js").schemas["Job"], isOver: boolean, canWrite: boolean }} props */
export function Prompt({ job, isOver, canWrite }) {
  const [sent, setSent] = useState(0);
  const prompts = usePrompts(job.id, sent, isOver);
  return html`
    ${canWrite && !isOver && (job.prompts_closed ? html`<p class="note">${T.prompt.closed}</p>` : html`<${Form} id=${job.id} last=${prompts[0]} onSent=${() => setSent((count) => count + 1)} />`)}
    ${prompts.length > 0 && html`<${Prompts} prompts=${prompts.toReversed()} />`}
  `;
}

/** `activity` comes from the store. @typedef {import("../api.js").schemas["Job"] & { activity?: string | null | undefined }} Job */

export const title = T.job.title;

const TABS = /** @type {const} */ (["activity", "changes", "files", "calls", "details"]);
const BODIES = { activity: Activity, changes: Changes, files: Files, calls: Calls, details: Details };

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const { seen, ...job } = await readSince(() => get("/api/jobs/{id}", { path: { id }, signal }));
  putJob(job, seen);
  return job;
}

/** @param {{ job: Job }} props */
function Meters({ job }) {
  const { usage, limits } = job;
  const used = usage.input_tokens + usage.output_tokens;
  const end = endOf(job);
  const seconds = job.started_at ? ((end ? Date.parse(end) : now.value) - Date.parse(job.started_at)) / 1_000 : 0;
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

/** @typedef {{ name: string, question?: string, yes?: string, note?: string, field?: string, run: (text: string) => Promise<unknown> }} Action */

/** What can be done with a job in its state. @param {Job} job @param {ReturnType<typeof useIntent>["send"]} send @returns {Action[]} */
function actionsOf(job, send) {
  const { id, state } = job;
  const path = { id };
  const isFinished = FINISHED.has(state);
  /** @type {Action[]} */
  const actions = [];
  if (job.held) actions.push({ name: T.job.start, run: () => post("/api/jobs/{id}/start", { path }) });
  if (state === "submitted") {
    actions.push({ name: T.job.accept, run: () => post("/api/jobs/{id}/accept", { path }) });
    actions.push({ name: T.job.reject, question: T.job.rejectQuestion, field: T.job.rejectReason, run: (reason) => post("/api/jobs/{id}/reject", { path, body: { reason } }) });
  }
  if (!isFinished && state !== "submitted" && !job.cancel_requested_at) {
    actions.push({ name: T.job.cancel, question: T.job.cancelQuestion, yes: T.job.cancelYes, run: () => post("/api/jobs/{id}/cancel", { path, body: {} }) });
  }
  if (canRestart(state)) {
    const restart = (/** @type {string} */ intent) => post("/api/jobs/{id}/restart", { path, body: {}, intent });
    actions.push({ name: T.job.restart, run: async () => go(`/jobs/${(await send(restart)).id}`) });
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
  const { isBusy, error, run } = useDoing();
  const { send } = useIntent();
  const actions = actionsOf(job, send);
  // The job may have ended while it was asked.
  const question = asked && actions.some(({ name }) => name === asked.name) ? asked : null;
  /** @param {Action} action @param {string} [text] */
  const act = (action, text = "") => {
    setAsked(null);
    // Another one may have been faster: show what the job is now.
    void run(() => action.run(text).then(again, onProblem(409, again)));
  };
  return html`
    <p class="line">
      ${actions.map((action) => html`
        <button key=${action.name} type="button" disabled=${isBusy} onClick=${() => (action.question ? setAsked(action) : act(action))}>${action.name}</button>`)}
      <a class="button" href=${`/jobs/new?from=${job.id}`}>${T.job.again}</a>
      <${Copy} text=${`gantry job show ${job.id}`} label="CLI" name="CLI" />
    </p>
    <${Problem} error=${error} />
    ${question && html`<${Confirm} title=${question.question} note=${question.note} field=${question.field} yes=${question.yes ?? question.name} no=${T.job.keep}
      onYes=${(/** @type {string} */ text) => act(question, text)} onNo=${() => setAsked(null)} />`}
  `;
}

/** @param {{ job: Job }} props */
function Head({ job }) {
  const why = [job.reason, job.message].filter(Boolean).join(": ");
  const isWaiting = job.state === "pending";
  return html`
    <${Heading}><${Text}>${job.title}<//><//>
    <p class="line"><${State} state=${job.state} reason=${job.reason} /> <${Elapsed} from=${job.started_at} to=${endOf(job)} /> <${Id} id=${job.id} />
      ${isWaiting && job.held && html`<span class="note">${T.job.held}</span>`}
      ${isWaiting && job.queue_position && html`<span class="note">${T.job.position(job.queue_position)}</span>`}
      ${job.cancel_requested_at && !FINISHED.has(job.state) && html`<span class="note">${T.now.cancelling}</span>`}
      ${job.state === "in_progress" && job.activity && html`<span class="note"><${Text}>${job.activity}<//></span>`}
      ${why && html`<span class="note"><${Text}>${why}<//></span>`}
      ${job.container && html`<span class="note">${T.job.sandbox} <${Text}>${job.container.runtime}<//></span>`}</p>
  `;
}

/** The result, or what there is of one. @param {{ job: Job }} props */
function Result({ job: { result } }) {
  const text = result?.text ?? result?.partial?.text;
  const actions = result?.partial?.last_actions ?? [];
  const name = result?.text ? T.job.result : T.job.partial;
  if (!text && actions.length === 0) return null;
  return html`
    <section class="result" aria-label=${name}>
      <h2>${name} ${text && html`<${Copy} text=${text} name=${name} />`}</h2>
      ${text && html`<pre><${Text}>${text}<//></pre>`}
      ${actions.length > 0 && html`<p class="note">${T.job.lastActions} <${Text}>${actions.join(", ")}<//></p>`}
    </section>
  `;
}

/** The part of the job that a path names. @param {string} path */
const partOf = (path) => TABS.find((name) => name === path.split("/")[3]) ?? "activity";

export default function JobPage() {
  const { params: { id = "" }, path, query } = place.value;
  // The result and the place in the queue are not in the store.
  const { value: job, failure, again, status } = useObject(jobs, id, (signal) => read(id, signal), ["state"]);
  useSubject(job?.title);
  if (!job) return html`<${Heading}>${title}<//>${status}`;
  const name = partOf(path);
  const pathOf = (/** @type {string} */ one) => `/jobs/${id}${one === "activity" ? "" : `/${one}`}${query.size === 0 ? "" : `?${query}`}`;
  const canWrite = who.value?.role !== "viewer";
  const isOver = FINISHED.has(job.state) || job.state === "submitted";
  return html`
    <${Head} job=${job} />
    ${failure}
    ${canWrite && html`<${Actions} job=${job} again=${again} />`}
    <${Meters} job=${job} />
    ${(isOver || job.state === "stuck") && html`<${Result} job=${job} />`}
    <${Tabs} name=${T.job.parts} words=${T.job.tabs} current=${name} path=${pathOf} />
    <${BODIES[name]} job=${job} />
    <${Prompt} job=${job} isOver=${isOver} canWrite=${canWrite} />
    <${CopyAs} cli=${`gantry job show ${id}`} path=${`/api/jobs/${id}`} />
  `;
}
