// What the first page shows besides what runs: the state of the server, what waits for the user, what failed, and what fires next.
//
// Owns that no list moves by itself: what is new is counted, and shown when it is asked for.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../../api.js";
import { cost, relative, tokens } from "../../format.js";
import { position } from "../../live.js";
import { go } from "../../router.js";
import { generation, serverNow, who } from "../../session.js";
import { canRestart, counts, gates, hasServerFailed, haveGates, jobs, readServer, resyncs, server, waiting, watchServer } from "../../store.js";
import { T } from "../../texts.js";
import { Icon, Loading, Problem, State, Text, Time, html, now, useDoing, useIntent, useLoad } from "../../ui.js";

/** @typedef {import("../../store.js").Job} Job */

/** Rows of each list. */
const MOST = 5;
const FAILED_LIMIT = 20;
const NEXT_LIMIT = 50;
const DAY_MS = 86_400_000;
/** A firing that is due is in no list of the next ones so soon. */
const DUE_MS = 2_000;
const DUE_TRY_MS = 10_000;

// --- the state of the server

/** @param {{ isReady: boolean, text: any, why?: string | null | undefined }} props */
const Part = ({ isReady, text, why }) => html`
  <li><span class="state ${isReady ? "completed" : "failed"}"><${Icon} name=${isReady ? "completed" : "failed"} /><span>${text}</span></span>
    ${!isReady && why && html` <span class="note"><${Text}>${why}<//></span>`}</li>
`;

/** Today's usage against what a user may use in a day; an admin sees that of all users, for which there is no limit. */
function Today() {
  const { value } = useLoad((signal) => get("/api/options", { signal }), [generation.value]);
  const today = counts.value?.usage_today;
  if (!today) return null;
  const isOwn = who.value?.role !== "admin";
  const [most, mostTokens] = isOwn ? [value?.day_max_cost_usd ?? null, value?.day_max_tokens ?? null] : [null, null];
  const used = today.input_tokens + today.output_tokens;
  const text = T.now.today(T.now.ofLimit(cost(today.cost_usd), most === null ? null : cost(most)), T.now.ofLimit(tokens(used), mostTokens === null ? null : tokens(mostTokens)));
  const share = Math.max(most ? (today.cost_usd ?? 0) / most : 0, mostTokens ? used / mostTokens : 0);
  return html`<li class="today">${text}${(most || mostTokens) && html` <meter min="0" max="1" high="0.8" value=${Math.min(1, share)} aria-label=${T.now.budget}></meter>`}</li>`;
}

/** Whether the server can run jobs, how much it does, and what was used today. */
export function Server() {
  useEffect(() => watchServer(), [generation.value]);
  const known = server.value;
  return html`
    <ul class="counts server" aria-label=${T.now.server}>
      ${known && html`
        <${Part} isReady=${known.sandbox.ready} text=${known.sandbox.ready ? T.now.sandbox.ready : T.now.sandbox.failed}
          why=${[known.sandbox.reason, known.sandbox.message].filter(Boolean).join(": ")} />
        ${known.sandbox.ready && !known.ready && html`<${Part} isReady=${false} text=${T.now.noSpace} />`}
        <${Part} isReady=${known.model.ready} text=${html`<${Text}>${known.model.name}<//> ${known.model.ready ? T.now.model.ready : T.now.model.failed}`} why=${known.model.message} />
        <li>${T.now.slots(known.slots.busy, known.slots.total)}, ${T.now.queued(known.queued)}</li>`}
      ${!known && hasServerFailed.value && html`<li class="failure">${T.now.noServer} <button type="button" onClick=${readServer}>${T.again}</button></li>`}
      <${Today} />
    </ul>
  `;
}

// --- lists that do not move

/**
 * The rows of the last look, and how many have come since. `read` changes when the list was read again, and is null before.
 * @template {{ id: string }} Row
 * @param {Row[]} rows those that belong into the list now @param {unknown} read
 */
export function useStill(rows, read) {
  const [look, setLook] = useState(0);
  const kept = useRef({ read, look: -1, ids: /** @type {string[]} */ ([]), known: /** @type {Set<string>} */ (new Set()) });
  if (kept.current.read !== read || kept.current.look !== look) {
    const ids = rows.map(({ id }) => id);
    kept.current = { read, look, ids: ids.slice(0, MOST), known: new Set(ids) };
  }
  const { ids, known } = kept.current;
  const added = rows.filter(({ id }) => !known.has(id)).length;
  const rest = rows.filter(({ id }) => known.has(id) && !ids.includes(id)).length;
  return { ids, added, rest, show: () => setLook(look + 1) };
}

/** A part of the page. What comes and goes is in its first line, where it finds its room. @param {{ name: string, count?: number, all?: any, added?: number, show?: () => void, children?: any }} props */
export const Section = ({ name, count = 0, all, added = 0, show, children }) => html`
  <section aria-label=${name}>
    <div class="line head"><h2>${name}${count > 0 && ` (${count})`}</h2> ${all} ${added > 0 && html`<button type="button" onClick=${show}>${T.jobs.added(added)}</button>`}</div>
    ${children}
  </section>
`;

// --- what waits

/** @param {{ id: string }} props */
function Call({ id }) {
  const gate = gates.get(id);
  if (!gate) return null;
  const isPending = gate.state === "pending";
  return html`
    <li class="item brief"><span><span class="state ${isPending ? "submitted" : "cancelled"}"><${Icon} name=${isPending ? "waits" : "completed"} />${isPending ? T.gate.title : T.gate.states[gate.state]}</span>
        <a class="open" href=${`/inbox/gates/${id}`}><${Text}>${gate.tool}<//></a></span><span></span>
      <span class="note">${isPending && html`${T.gate.expires} ${relative(Date.parse(gate.expires_at), now.value)}`}</span></li>
  `;
}

/** A job in one line. @param {{ id: string, children?: any }} props */
function JobLine({ id, children }) {
  const job = jobs.get(id);
  if (!job) return null;
  const why = [job.reason, job.message].filter(Boolean).join(": ");
  return html`
    <li class="item brief">
      <span class="clamped"><span><${State} state=${job.state} reason=${job.reason} /> <a class="open" href=${`/jobs/${id}`}><${Text}>${job.title || job.prompt_preview}<//></a></span></span>
      <span>${children}</span>
      <span class="note clamped"><span><${Time} at=${job.finished_at ?? job.last_activity_at ?? job.created_at} />${who.value?.role === "admin" && html` · <${Text}>${job.user_id}<//>`}
        ${why && html` · <${Text}>${why}<//>`}</span></span></li>
  `;
}

/** The user's calls, then jobs to review and stuck ones, oldest first. @param {{ read: unknown, isLoading: boolean }} props */
export function Waits({ read, isLoading }) {
  const isReady = haveGates.value && Boolean(read);
  const sorted = (/** @type {{ id: string }[]} */ rows) => rows.map(({ id }) => ({ id })).sort((one, other) => (one.id < other.id ? -1 : 1));
  const calls = sorted(gates.all().filter(({ state, user_id: user }) => state === "pending" && user === who.value?.user));
  const rows = [...calls, ...sorted(jobs.all().filter(({ state }) => state === "submitted" || state === "stuck"))];
  const { ids, added, show } = useStill(rows, isReady ? read : null);
  const shown = ids.filter((id) => gates.get(id) || jobs.get(id));
  const all = html`<a href="/inbox">${T.now.toInbox}</a>`;
  return html`
    <${Section} name=${T.now.waiting} count=${waiting.value} all=${all} added=${added} show=${show}>
      ${!isReady && isLoading && html`<${Loading} />`}
      ${isReady && shown.length === 0 && html`<p class="note">${waiting.value === 0 && T.inbox.none}</p>`}
      ${shown.length > 0 && html`<ul class="rows">${shown.map((id) => (gates.get(id) ? html`<${Call} key=${id} id=${id} />` : html`<${JobLine} key=${id} id=${id} />`))}</ul>`}
    <//>
  `;
}

// --- what failed

/** @param {{ id: string }} props */
function Restart({ id }) {
  const { isBusy, error, run } = useDoing();
  const { send } = useIntent();
  const restart = () => run(async () => go(`/jobs/${(await send((intent) => post("/api/jobs/{id}/restart", { path: { id }, body: {}, intent }))).id}`));
  const title = jobs.get(id)?.title;
  return html`
    <button type="button" disabled=${isBusy} onClick=${restart}>${T.job.restart}<span class="hidden">: <${Text}>${title}<//></span></button>
    <${Problem} error=${error} />
  `;
}

const dayAgo = () => new Date(serverNow() - DAY_MS).toISOString().replace(/\.\d+Z/, "Z");

/** @param {AbortSignal} signal */
async function readFailed(signal) {
  const [seen, since] = [position(), dayAgo()];
  const { items, next_cursor: next } = await get("/api/jobs", { query: { state: "failed", since, limit: FAILED_LIMIT }, signal });
  for (const job of items) jobs.put(job, seen);
  return { since, hasMore: Boolean(next) };
}

/** The jobs that have failed in the last day, the newest first. */
export function FailedJobs() {
  const { value, status } = useLoad(readFailed, [generation.value, resyncs.value]);
  const since = Date.parse(value?.since ?? dayAgo());
  const rows = jobs.all().filter(({ state, finished_at: at }) => state === "failed" && at && Date.parse(at) >= since);
  rows.sort((one, other) => Date.parse(other.finished_at ?? "") - Date.parse(one.finished_at ?? ""));
  const { ids, added, rest, show } = useStill(rows, value);
  const shown = ids.filter((id) => jobs.get(id));
  const canWrite = who.value?.role !== "viewer";
  const all = value && (rest > 0 || value.hasMore) && html`<a href=${`/jobs?state=failed&since=${value.since}`}>${T.now.rest(value.hasMore ? `${rest}+` : String(rest))}</a>`;
  return html`
    <${Section} name=${T.now.failed} all=${all} added=${added} show=${show}>
      ${status}
      ${value && shown.length === 0 && html`<p class="note">${added === 0 && !value.hasMore && T.now.noneFailed}</p>`}
      ${shown.length > 0 && html`<ul class="rows">${shown.map((id) => html`<${JobLine} key=${id} id=${id}>${canWrite && canRestart(jobs.get(id)?.state ?? "") && html`<${Restart} id=${id} />`}<//>`)}</ul>`}
    <//>
  `;
}

// --- what fires next

/** The next firing of each routine, of those that fire next. They are read again when one is due, unless the list is being used. */
export function Next() {
  const { value, again, status } = useLoad((signal) => get("/api/routines/upcoming", { query: { limit: NEXT_LIMIT }, signal }), [generation.value, resyncs.value]);
  const list = useRef(/** @type {HTMLUListElement | null} */ (null));
  const first = value?.items[0];
  const shown = value?.items.filter((one, index, all) => all.findIndex(({ routine_id: id }) => id === one.routine_id) === index).slice(0, MOST) ?? [];
  const due = first && Date.parse(first.utc) + DUE_MS < now.value ? Math.floor(now.value / DUE_TRY_MS) : 0;
  useEffect(() => {
    if (due && !list.current?.matches(":hover, :focus-within")) again();
  }, [due]);
  return html`
    <${Section} name=${T.now.next}>
      ${status}
      ${value && !first && html`<p class="note">${T.now.noneNext}</p>`}
      ${first && html`
        <ul class="rows" ref=${list}>${shown.map((one) => html`
          <li key=${one.routine_id} class="item line"><a class="open" href=${`/routines/${one.routine_id}`}><span class="clamped"><${Text}>${one.routine_name}<//></span></a>
            <span class="note"><${Time} at=${one.utc} /> · ${who.value?.role === "admin" && html`<${Text}>${one.user_id}<//> · `}${relative(Date.parse(one.utc), now.value)}</span></li>`)}</ul>`}
    <//>
  `;
}
