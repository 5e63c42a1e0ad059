// The first page: the state of the server, what waits for the user, which jobs run now, what failed and what fires next.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../api.js";
import { readSince } from "../live.js";
import { go } from "../router.js";
import { drafts, generation, who } from "../session.js";
import { counts, haveCountsFailed, jobs, readCounts, resyncs } from "../store.js";
import { STATES, T } from "../texts.js";
import { Copy, CopyAs, Empty, Failed, Heading, Loading, Problem, State, announce, html, useDoing, useIntent, useLoad } from "../ui.js";
import { JobRow } from "./job/row.js";
import { FailedJobs, Next, Section, Server, Waits } from "./now/parts.js";

/** @typedef {import("../store.js").Job} Job */

export const title = T.now.title;

const LIMIT = 50;
const MAX_ROWS = 60;
const QUERY = { state: "in_progress,submitted,stuck", limit: 2 * LIMIT };

/** @param {AbortSignal} signal */
async function read(signal) {
  const { items, seen } = await readSince(() => get("/api/jobs", { query: QUERY, signal }));
  for (const job of items) jobs.put(job, seen);
  // The oldest first: a new job then moves no other row.
  return { ids: items.filter(({ state }) => state === "in_progress").map(({ id }) => id).reverse() };
}

/** What runs, and what has ended since the page was read: rows stay where they are. @param {string[] | null} listed */
function useRows(listed) {
  const shown = useRef({ listed, ids: [...(listed ?? [])] });
  if (shown.current.listed !== listed) shown.current = { listed, ids: [...(listed ?? [])] };
  const known = new Set(shown.current.ids);
  const added = jobs.all().filter(({ id, state }) => state === "in_progress" && !known.has(id)).map(({ id }) => id).sort();
  let excess = known.size + added.length - MAX_ROWS;
  // Those that have ended make room for others.
  const kept = [...known].filter((id) => jobs.get(id)?.state === "in_progress" || (excess -= 1) < 0);
  shown.current.ids = [...kept, ...added].slice(0, MAX_ROWS);
  useEffect(() => jobs.show(shown.current.ids), [shown.current.ids.join()]);
  useEffect(() => () => jobs.show([]), []);
  return shown.current.ids.flatMap((id) => jobs.get(id) ?? []);
}

/** Says when a job that was shown as running has ended. @param {Job[]} rows */
function useAnnouncements(rows) {
  const before = useRef(/** @type {Map<string, Job["state"]>} */ (new Map()));
  const states = rows.map(({ state }) => state).join();
  useEffect(() => {
    for (const { id, state, title } of rows) {
      if (before.current.get(id) === "in_progress" && state !== "in_progress") announce(T.now.ended(title, STATES[state]));
    }
    before.current = new Map(rows.map(({ id, state }) => [id, state]));
  }, [states]);
}

function Counts() {
  const known = counts.value;
  if (!known) {
    return haveCountsFailed.value
      ? html`<p class="failure">${T.now.noCounts} <button type="button" onClick=${readCounts}>${T.again}</button></p>`
      : html`<${Loading} />`;
  }
  const { states } = known;
  // All of them, also those of which there are none: nothing moves when there is one.
  const names = /** @type {Job["state"][]} */ (Object.keys(STATES));
  return html`
    <ul class="states" aria-label=${T.now.counts}>
      ${names.map((name) => html`<li key=${name}><a href=${`/jobs?state=${name}`}><${State} state=${name} /> <strong>${states[name]}</strong></a></li>`)}
    </ul>
  `;
}

/** One field for the first job. What is written is the draft of the form as well. */
function FirstJob() {
  const [prompt, setPrompt] = useState(() => String(drafts.get("job")?.draft?.prompt ?? ""));
  const { isBusy, error, run } = useDoing();
  const { send, renew } = useIntent();
  function write(/** @type {string} */ text) {
    // Another prompt is another job.
    renew();
    setPrompt(text);
    drafts.set("job", { draft: { ...drafts.get("job")?.draft, prompt: text } });
  }
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    void run(async () => {
      const { id } = await send((intent) => post("/api/jobs", { body: { prompt }, intent }));
      drafts.remove("job");
      go(`/jobs/${id}`);
    });
  };
  return html`
    <form class="job" onSubmit=${submit}>
      <label for="prompt">${T.now.prompt}</label>
      <textarea id="prompt" rows="4" required placeholder=${T.now.task} value=${prompt} onInput=${(/** @type {any} */ event) => write(event.target.value)}></textarea>
      <${Problem} error=${error} />
      <p class="line"><button type="submit" disabled=${isBusy || !prompt.trim()}>${isBusy ? T.now.busy : T.now.submit}</button>
        <button type="button" onClick=${() => write(T.now.task)}>${T.now.example}</button> <a href="/jobs/new?more=true">${T.now.more}</a></p>
    </form>
  `;
}

const First = () => html`
  <${Empty}>
    <h2>${T.now.noJobs}</h2>
    ${who.value?.role !== "viewer" && html`
      <p>${T.now.first}</p>
      <${FirstJob} />
      <p class="line"><code>${T.now.command}</code> <${Copy} text=${T.now.command} name=${T.now.command} /></p>`}
  <//>
`;

export default function Now() {
  const { value, error, isLoading, again } = useLoad(read, [generation.value, resyncs.value]);
  const rows = useRows(value?.ids ?? null);
  useAnnouncements(rows);
  const states = counts.value?.states;
  const hasNone = states && Object.values(states).every((count) => count === 0);
  const left = states ? states.in_progress - rows.filter(({ state }) => state === "in_progress").length : 0;
  const isEmpty = rows.length === 0;
  const isFirst = isEmpty && hasNone && !isLoading && !error;
  // The heading stays, and so does the focus that it has.
  return html`
    <div class="line"><${Heading}>${title}<//> ${!isFirst && who.value?.role !== "viewer" && html`<a class="button" href="/jobs/new">${T.newJob.title}</a>`}</div>
    <${Server} />
    ${isFirst ? html`<${First} />` : html`
    <${Counts} />
    <div class="now">
      <${Waits} read=${value} isLoading=${isLoading} />
      <div class="aside">${(value || error) && html`<${FailedJobs} /><${Next} />`}</div>
      <${Section} name=${T.now.running} count=${states?.in_progress ?? 0}>
        ${error && html`<${Failed} error=${error} again=${again} />`}
        ${isEmpty && isLoading && html`<${Loading} />`}
        ${isEmpty && !isLoading && !error && html`<p class="note">${T.now.none} <a href="/jobs">${T.now.all}</a></p>`}
        ${!isEmpty && html`<ul class="rows">${rows.map((job) => html`<li key=${job.id}><${JobRow} job=${job} /></li>`)}</ul>`}
        ${left > 0 && rows.length >= LIMIT && html`<p class="note">${T.now.others(left)}</p>`}
      <//>
    </div>
    <${CopyAs} cli="gantry job list --state in_progress" path=${`/api/jobs?state=in_progress&limit=${LIMIT}`} />`}
  `;
}
