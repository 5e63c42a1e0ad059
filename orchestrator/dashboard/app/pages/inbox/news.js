// The user's notifications, newest first, each with what it is about and whether it is read.

import { useEffect, useState } from "preact/hooks";
import { get, post } from "../../api.js";
import { bindRows } from "../../keys.js";
import { position, positioned } from "../../live.js";
import { generation, who } from "../../session.js";
import { isUnread, news, resyncs, unread, wantUnread } from "../../store.js";
import { T } from "../../texts.js";
import { CopyAs, Empty, Icon, Problem, Text, Time, html, usePages } from "../../ui.js";
import { Added } from "./added.js";

/** @typedef {import("../../api.js").schemas["Notification"]} Notification */

const LIMIT = 50;
/** A longer text is opened by hand. */
const OPEN_CHARS = 400;

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  await positioned();
  const seen = position();
  const query = { limit: LIMIT, cursor };
  const { items, next_cursor } = await get("/api/notifications", { query, signal });
  return { items, next_cursor, seen };
}

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
  return html`
    <li class="item">
      <p class="line">${isNew && html`<span class="state in_progress"><${Icon} name="in_progress" />${T.news.unread}</span>`}
        ${path ? html`<a class="open" href=${path} onClick=${onOpen}><${Text}>${one.title}<//></a>` : html`<strong><${Text}>${one.title}<//></strong>`}
        <span class="note">${T.news.kinds[one.kind] ?? one.kind} · <${Time} at=${one.created_at} /></span>
        ${isNew && mark && html`<button type="button" class="link" onClick=${() => mark(one.id)}>${T.news.read}<span class="hidden">: <${Text}>${one.title}<//></span></button>`}</p>
      ${!one.gate_id && one.text !== one.title && html`<${Whole} text=${one.text} />`}
    </li>
  `;
}

export function News() {
  const { first, items, isLoading, again, status, more } = usePages(read, [generation.value, resyncs.value]);
  const [failure, setFailure] = useState(/** @type {Error | null} */ (null));
  useEffect(() => bindRows(".rows a.open"), []);
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
