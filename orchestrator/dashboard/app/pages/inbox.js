// What waits for the user, what was decided, and news: three lists.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get, post } from "../api.js";
import { bindRows } from "../keys.js";
import { readSince } from "../live.js";
import { Added, Tabs } from "../parts.js";
import { place } from "../router.js";
import { generation, who } from "../session.js";
import { gates, haveGates, isUnread, jobs, news, readGates, resyncs, unread, waiting, wantUnread } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Empty, Heading, Icon, Problem, Text, Time, html, useLoad, usePages } from "../ui.js";
import { Card, Outcome, bindGateKeys } from "./gate/card.js";
import { JobRow } from "./job/row.js";

/** Rows of a list at once. */
const LIMIT = 50;

// --- the user's notifications, newest first, each with what it is about and whether it is read

/** @typedef {import("../api.js").schemas["Notification"]} Notification */

/** A longer text is opened by hand. */
const OPEN_CHARS = 400;

/** @param {string} [cursor] @param {AbortSignal} [signal] */
const readNews = (cursor, signal) => readSince(() => get("/api/notifications", { query: { limit: LIMIT, cursor }, signal }));

/**
 * The page of what a notification is about, if it has one. Pure.
 * @param {Pick<Notification, "gate_id" | "run_id" | "job_id" | "routine_id" | "thread_id">} one
 */
export function subjectOf({ gate_id: gate, run_id: run, job_id: job, routine_id: routine, thread_id: thread }) {
  if (gate) return `/inbox/gates/${gate}`;
  if (run) return `/runs/${run}`;
  if (job) return `/jobs/${job}`;
  if (routine) return `/routines/${routine}`;
  return thread ? `/chat/${thread}` : null;
}

/** @param {{ text: string }} props */
const Whole = ({ text }) => text.length <= OPEN_CHARS ? html`<p class="text"><${Text}>${text}<//></p>`
  : html`<details><summary><${Text}>${text.slice(0, OPEN_CHARS)}…<//></summary><p class="text"><${Text}>${text}<//></p></details>`;

/** The text about a gate names a command; its page has the buttons. @param {{ one: Notification, isNew: boolean, mark: ((id: string) => void) | null }} props */
function Item({ one, isNew, mark }) {
  const path = subjectOf(one);
  const onOpen = () => isNew && mark?.(one.id);
  const gate = gates.get(one.gate_id ?? "");
  const isOver = one.gate_id && haveGates.value && gate?.state !== "pending";
  return html`
    <li class="item">
      <p class="line">${isNew && html`<span class="state in_progress"><${Icon} name="in_progress" />${T.news.unread}</span>`}
        ${path ? html`<a class="open" href=${path} onClick=${onOpen}><${Text}>${one.title}<//></a>` : html`<strong><${Text}>${one.title}<//></strong>`}
        <span class="note">${T.news.kinds[one.kind] ?? one.kind} · <${Time} at=${one.created_at} />${isOver && ` · ${gate ? T.gate.states[gate.state] : T.news.over}`}</span>
        ${isNew && mark && html`<button type="button" class="link" onClick=${() => mark(one.id)}>${T.news.read}<span class="hidden">: <${Text}>${one.title}<//></span></button>`}</p>
      ${!one.gate_id && one.text !== one.title && html`<${Whole} text=${one.text} />`}
    </li>
  `;
}

export function News() {
  const { first, items, isLoading, again, status, more } = usePages(readNews, [generation.value, resyncs.value]);
  const [failure, setFailure] = useState(/** @type {Error | null} */ (null));
  useLayoutEffect(() => bindRows(".rows a.open"), []);
  const canWrite = who.value?.role !== "viewer";
  const listed = new Set(items.map(({ id }) => id));
  const added = first && !isLoading ? news.since(first.seen).filter(({ id }) => !listed.has(id)).length : 0;
  const isNew = (/** @type {Notification} */ one) => isUnread(one, unread.value);
  /** Sends a mark; what is unread then is read again. @param {() => Promise<unknown>} change */
  const send = (change) => (setFailure(null), void change().then(wantUnread, setFailure));
  const mark = (/** @type {string} */ id) => send(() => post("/api/notifications/{id}/read", { path: { id } }));
  const newest = items[0]?.id;
  const markAll = () => send(() => post("/api/notifications/read", { body: { up_to: newest } }));
  return html`
    <${Added} count=${added} show=${again} />
    ${status}
    <${Problem} error=${failure} />
    ${first && items.length === 0 && html`<${Empty}><p>${T.news.none}</p><//>`}
    ${canWrite && items.length > 0 && html`<p><button type="button" disabled=${unread.value?.count === 0} onClick=${markAll}>${T.news.readAll}</button></p>`}
    ${items.length > 0 && html`<ul class="rows">${items.map((one) => html`<${Item} key=${one.id} one=${one} isNew=${isNew(one)} mark=${canWrite ? mark : null} />`)}</ul>`}
    ${more}
    <${CopyAs} cli="gantry notification ls" path="/api/notifications" />
  `;
}

// --- what waits for a person: calls of tools, oldest first, then jobs to review and stuck ones. What was answered stays where it is

const STATES = ["submitted", "stuck"];

/** The ids of rows, oldest first: ids begin with the time. @param {{ id: string }[]} rows */
const idsOf = (rows) => rows.map(({ id }) => id).sort();

/** @param {AbortSignal} signal */
async function readWaiting(signal) {
  const query = { state: STATES.join(), limit: LIMIT };
  const [{ seen, ...page }] = await Promise.all([readSince(() => get("/api/jobs", { query, signal })), readGates(signal)]);
  for (const job of page.items) jobs.put(job, seen);
  const calls = idsOf(gates.all().filter(({ state }) => state === "pending"));
  return { calls, jobs: idsOf(page.items), seen, hasMoreJobs: Boolean(page.next_cursor) };
}

/**
 * How many have come since the lists were read. Pure.
 * @param {{ id: string, state: string }[]} calls @param {{ id: string, state: string }[]} heard jobs that were heard of since
 * @param {{ calls: string[], jobs: string[] }} listed
 */
export function countAdded(calls, heard, listed) {
  const known = new Set([...listed.calls, ...listed.jobs]);
  return calls.filter(({ id, state }) => state === "pending" && !known.has(id)).length + heard.filter(({ id, state }) => STATES.includes(state) && !known.has(id)).length;
}

export function Waiting() {
  const { value, isLoading, again, status } = useLoad(readWaiting, [generation.value, resyncs.value]);
  useLayoutEffect(() => bindRows(".waiting a.open"), []);
  useLayoutEffect(() => bindGateKeys(false), []);
  useEffect(() => {
    gates.show(value?.calls ?? []);
    jobs.show(value?.jobs ?? []);
    return () => (gates.show([]), jobs.show([]));
  }, [value]);
  const calls = value?.calls.slice(0, LIMIT).flatMap((id) => gates.get(id) ?? []) ?? [];
  const rows = value?.jobs.flatMap((id) => jobs.get(id) ?? []) ?? [];
  const others = value?.calls.slice(LIMIT).filter((id) => gates.get(id)?.state === "pending").length ?? 0;
  const added = value && !isLoading ? countAdded(gates.all(), jobs.since(value.seen), value) : 0;
  return html`
    <${Added} count=${added} show=${again} />
    ${status}
    ${value && calls.length + rows.length === 0 && html`<${Empty}><p>${T.inbox.none}</p><//>`}
    <div class="waiting">
      ${calls.length > 0 && html`<h2>${T.inbox.calls}</h2>`}
      ${calls.map((gate) => html`<${Card} key=${gate.id} gate=${gate} level=${3} />`)}
      ${others > 0 && html`<p class="line"><span class="note">${T.inbox.others(others)}</span> <button type="button" onClick=${again}>${T.trace.show}</button></p>`}
      ${rows.length > 0 && html`<h2>${T.inbox.jobs}</h2><ul class="rows">${rows.map((job) => html`<li key=${job.id}><${JobRow} job=${job} /></li>`)}</ul>`}
    </div>
    ${value?.hasMoreJobs && html`<p><a href=${`/jobs?state=${STATES.join()}`}>${T.inbox.allJobs}</a></p>`}
    ${who.value?.role === "viewer" && calls.length > 0 && html`<p class="note">${T.gate.viewer}</p>`}
    <${CopyAs} cli="gantry gate list" path="/api/gates" />
  `;
}

// --- the newest gates that no longer wait: who decided what, and why

/** @typedef {import("../api.js").schemas["Gate"]} Gate */

const RESOLVED = "approved,denied,expired";

/** A row has no parameters: its page has. @param {Gate} gate */
const row = ({ parameters, ...gate }) => gate;

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function readResolved(cursor, signal) {
  const page = await readSince(() => get("/api/gates", { query: { state: RESOLVED, limit: LIMIT, cursor }, signal }));
  return { ...page, items: page.items.map(row) };
}

export function Resolved() {
  const { first, items, isLoading, again, status, more } = usePages(readResolved, [generation.value, resyncs.value]);
  useLayoutEffect(() => bindRows(".rows a.open"), []);
  const listed = new Set(items.map(({ id }) => id));
  const added = first && !isLoading ? gates.since(first.seen).filter(({ id, state }) => state !== "pending" && !listed.has(id)).length : 0;
  return html`
    <${Added} count=${added} show=${again} />
    ${status}
    ${first && items.length === 0 && html`<${Empty}><p>${T.inbox.noneResolved}</p><//>`}
    ${items.length > 0 && html`
      <ul class="rows">${items.map((/** @type {any} */ gate) => html`
        <li key=${gate.id} class="item"><a class="open" href=${`/inbox/gates/${gate.id}`}><${Text}>${gate.tool}<//></a>
          ${who.value?.role === "admin" && html` <span class="note"><${Text}>${gate.user_id}<//></span>`}
          <${Outcome} gate=${gate} /></li>`)}</ul>`}
    ${more}
    <${CopyAs} cli=${`gantry gate list --state ${RESOLVED}`} path=${`/api/gates?state=${RESOLVED}&limit=${LIMIT}`} />
  `;
}

export const title = T.inbox.title;

const TABS = /** @type {const} */ (["waiting", "resolved", "news"]);
const BODIES = { waiting: Waiting, resolved: Resolved, news: News };

/** @param {{ current: string }} props */
function Parts({ current }) {
  const counted = { waiting: waiting.value, resolved: 0, news: unread.value?.count ?? 0 };
  const words = Object.fromEntries(TABS.map((name) => [name, `${T.inbox.tabs[name]}${counted[name] > 0 ? ` (${counted[name]})` : ""}`]));
  const path = (/** @type {string} */ name) => (name === "waiting" ? "/inbox" : `/inbox?tab=${name}`);
  return html`
    <${Tabs} name=${T.inbox.parts} words=${words} current=${current} path=${path} />
  `;
}

export default function Inbox() {
  const name = TABS.find((one) => one === place.value.query.get("tab")) ?? "waiting";
  useEffect(() => wantUnread(), [generation.value]);
  return html`
    <${Heading}>${title}<//>
    <${Parts} current=${name} />
    <${BODIES[name]} key=${name} />
  `;
}
