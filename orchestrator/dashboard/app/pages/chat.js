// Chats: the threads of the user, and one of them.

import { useEffect } from "preact/hooks";
import { get, post } from "../api.js";
import { readSince } from "../live.js";
import { useRows } from "../parts.js";
import { go, place } from "../router.js";
import { who } from "../session.js";
import { isOwnThread, putThread, threadOf, threads, wantThread } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Heading, Icon, Problem, Text, html, useDoing, useIntent } from "../ui.js";
import { Thread, focusMessage } from "./chat/thread.js";
import { MAIN } from "./chat/use_thread.js";

// --- the threads of the user with their states, and the button for another one

/** @typedef {import("../store.js").Thread} Thread */

const LIMIT = 50;
const ICONS = { idle: "event", processing: "in_progress", awaiting_approval: "waits" };

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  const page = await readSince(() => get("/api/chat/threads", { query: { limit: LIMIT, cursor }, signal }));
  for (const thread of page.items) putThread(thread, page.seen, true);
  return page;
}

/** The named threads, such as `main`, before the others, which stay in their order. Pure. @template {{ key?: string | null | undefined }} Row @param {Row[]} rows */
export const namedFirst = (rows) => [...rows.filter(({ key }) => key), ...rows.filter(({ key }) => !key)];

/** Begins another thread with the command that does so in the one in view. @param {{ name: string }} props */
function NewThread({ name }) {
  const { isBusy, error, run } = useDoing();
  const { send, renew } = useIntent();
  // In another thread it is another message.
  useEffect(renew, [name]);
  const begin = () => run(async () => {
    const { thread_id: id } = await send((intent) => post("/api/chat/send", { body: { content: "/new", thread_id: name }, intent }));
    wantThread(id);
    go(`/chat/${id}`);
    focusMessage();
  });
  return html`
    <p class="line"><button type="button" disabled=${isBusy} onClick=${begin}>${T.chat.new}</button></p>
    ${threads.all().some(({ id, key }) => key && [id, key].includes(name)) && html`<p class="note">${T.chat.newNote}</p>`}
    <${Problem} error=${error} />
  `;
}

/** @param {{ thread: Thread, isCurrent: boolean }} props */
const Item = ({ thread, isCurrent }) => html`
  <li><a href=${`/chat/${thread.key ?? thread.id}`} aria-current=${isCurrent ? "page" : undefined}>
    <${Icon} name=${ICONS[thread.state]} /><span class="name"><${Text}>${thread.key ?? (thread.title || T.chat.untitled)}<//></span></a>
    <span class="note">${T.chat.states[thread.state]}</span></li>
`;

/** @param {{ name: string }} props */
export function Threads({ name }) {
  const { first, ids, rows: known, status, more } = useRows(threads, read, []);
  const listed = new Set(ids);
  const added = first ? threads.all().filter(({ id }) => isOwnThread(id) && !listed.has(id) && id > (ids[0] ?? "")) : [];
  const rows = namedFirst([...added.sort((one, other) => (one.id < other.id ? 1 : -1)), ...known]);
  const canWrite = who.value?.role !== "viewer";
  return html`
    <section class="threads" aria-label=${T.chat.threads}>
      ${canWrite && rows.length > 0 && html`<${NewThread} name=${name} />`}
      ${status}
      <ul>${rows.map((thread) => html`<${Item} key=${thread.id} thread=${thread} isCurrent=${[thread.id, thread.key].includes(name)} />`)}</ul>
      ${more}
    </section>
  `;
}

export const title = T.chat.title;

export default function Chat() {
  const name = place.value.params["thread"] ?? MAIN;
  const id = threadOf(name)?.id;
  return html`
    <${Heading}>${title}<//>
    <div class="chat">
      <${Threads} name=${name} />
      <section class="thread" aria-label=${T.chat.thread}><${Thread} key=${name} name=${name} /></section>
    </div>
    ${id && html`<${CopyAs} cli=${`gantry chat --thread ${id}`} path=${`/api/chat/threads/${encodeURIComponent(id)}`} />`}
  `;
}
