// A thread: its entries, the calls that wait in their places, the answer that is being written, and the form for the next message.
//
// Owns the place in the list: it stays when earlier entries come, follows the end, and is found again when the thread is opened again.

import { useLayoutEffect, useMemo, useRef, useState } from "preact/hooks";
import { post } from "../../api.js";
import { go } from "../../router.js";
import { useSending } from "../../sending.js";
import { who } from "../../session.js";
import { gates, threads, wantThread } from "../../store.js";
import { T } from "../../texts.js";
import { Empty, Failed, Icon, Loading, Problem, Text, html, now, useSubject } from "../../ui.js";
import { Card, bindGateKeys, choiceOf, choicesOf, resolveGate } from "../gate/card.js";
import { placesOf } from "./conversation.js";
import { EntryBody } from "./entry.js";
import { useThread } from "./use_thread.js";

/** @typedef {import("../../store.js").Gate} Gate */
/** @typedef {import("./conversation.js").Row} Row */
/** The first entry in view and how far it is scrolled; null at the end. @typedef {{ key: string, offset: number } | null} Spot */

/** So near to the end, new entries are followed. */
const NEAR_PX = 40;
/** So near to the beginning, earlier entries are read. */
const TOP_PX = 200;

/** Where each thread was left. @type {Map<string, Spot>} */
const left = new Map();

/** @param {HTMLElement} box @returns {Spot} */
function spotOf(box) {
  const entries = /** @type {HTMLElement[]} */ ([...box.querySelectorAll("[data-key]")]);
  const first = entries.find(({ offsetTop, offsetHeight }) => offsetTop + offsetHeight > box.scrollTop);
  return first ? { key: first.dataset["key"] ?? "", offset: box.scrollTop - first.offsetTop } : null;
}

/** The scrolled list of a thread. @param {string} name @param {Row[]} rows @param {() => void} readEarlier */
function usePlace(name, rows, readEarlier) {
  const box = useRef(/** @type {HTMLDivElement | null} */ (null));
  const spot = useRef(left.get(name) ?? null);
  const [isFollowing, setIsFollowing] = useState(spot.current === null);
  const onScroll = () => {
    const element = box.current;
    if (!element) return;
    const isAtEnd = element.scrollHeight - element.scrollTop - element.clientHeight < NEAR_PX;
    spot.current = isAtEnd ? null : spotOf(element);
    left.set(name, spot.current);
    setIsFollowing(isAtEnd);
    if (element.scrollTop < TOP_PX) readEarlier();
  };
  const first = rows[0]?.key;
  const isPlaced = useRef(false);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element || !first || !spot.current) return;
    const entry = element.querySelector(`[data-key="${spot.current.key}"]`);
    if (entry instanceof HTMLElement) element.scrollTop = entry.offsetTop + spot.current.offset;
    // It was left at an entry that is on an earlier page.
    else if (!isPlaced.current) setIsFollowing(true);
    isPlaced.current = true;
  }, [first]);
  useLayoutEffect(() => {
    const element = box.current;
    if (!element) return;
    if (isFollowing) element.scrollTop = element.scrollHeight;
    if (rows.length > 0 && element.scrollHeight <= element.clientHeight) readEarlier();
  });
  return { box, onScroll, isFollowing, follow: () => ((spot.current = null), setIsFollowing(true)) };
}

/** The answer so far. @param {{ talk: ReturnType<typeof import("./conversation.js").createConversation>, isWorking: boolean }} props */
function Live({ talk, isWorking }) {
  const live = talk.live();
  if (!isWorking && !live) return null;
  return html`
    <div class="entry"><p class="line"><strong>${T.chat.roles.assistant}</strong> <span class="note"><${Icon} name="loading" /><${Text}>${talk.progress() || T.chat.writes}<//></span></p>
      ${live?.reasoning && !live.text && html`<p class="note text"><${Text}>${live.reasoning}<//></p>`}
      ${live?.text && html`<p class="text"><${Text}>${live.isCut && "… "}${live.text}<//></p>`}</div>
  `;
}

/** @param {Gate[]} gates */
const cardsOf = (gates) => gates.map((gate) => html`<${Card} key=${gate.id} gate=${gate} />`);

/** A row with its gates. The same nodes are not drawn again. @param {{ row: Row, parked: Gate[] }} props */
const Item = ({ row, parked }) => useMemo(() => html`
  <li data-key=${row.key} class="entry ${row.entry.role}"><${EntryBody} row=${row} />${cardsOf(parked)}</li>`, [row, ...parked]);

/** The entries, of which only the changed ones are drawn again. @param {{ rows: Row[], places: Map<string | null, Gate[]> }} props */
const Entries = ({ rows, places }) => html`
  <ul>${rows.map((row) => html`<${Item} key=${row.key} row=${row} parked=${places.get(row.key) ?? []} />`)}</ul>
  ${cardsOf(places.get(null) ?? [])}
`;

/** The focus goes to the message of the thread that is shown next. */
export const focusMessage = () => void setTimeout(() => document.getElementById("message")?.focus());

/** `waiting`: the call that a word answers. @param {{ name: string, id: string | null, waiting: Gate | null, isActive: boolean, queued: number, onSent: () => void }} props */
function Composer({ name, id, waiting, isActive, queued, onSent }) {
  const [failure, setFailure] = useState(/** @type {Error | null} */ (null));
  const { text, isBusy, error, onInput, onSubmit, onKeyDown } = useSending(`chat.${name}`, async (content, intent) => {
    const choice = waiting && choiceOf(content);
    // As a message it would answer without saying which parameters were shown.
    if (choice) return void (await resolveGate(waiting, choice));
    const { thread_id: sent } = await post("/api/chat/send", { body: { content: content.trimEnd(), thread_id: id ?? name }, intent });
    wantThread(sent);
    onSent();
    // The command /new begins another thread.
    if (id === null || sent === id) return;
    go(`/chat/${sent}`);
    focusMessage();
  });
  const stop = () => {
    setFailure(null);
    post("/api/chat/threads/{id}/stop", { path: { id: id ?? name } }).catch(setFailure);
  };
  const wrong = error ?? failure;
  return html`
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="message">${T.chat.message}</label>
      <textarea id="message" rows="3" value=${text} onInput=${onInput} onKeyDown=${onKeyDown} aria-describedby="message-note"></textarea>
      <div class="line">
        <button type="submit" disabled=${isBusy || !text.trim()}>${isBusy ? T.prompt.busy : T.prompt.send}</button>
        ${isActive && html`<button type="button" onClick=${stop}>${T.chat.stop}</button>`}
        <span class="note" id="message-note">${waiting && `${T.chat.words} · `}${T.chat.commands}${queued > 0 && ` · ${T.chat.queued(queued)}`}</span>
      </div>
      <${Problem} error=${wrong} />
    </form>
  `;
}

/** @param {{ name: string }} props */
export function Thread({ name }) {
  const { talk, thread: read, error, isLoading, isMissing, readEarlier, again } = useThread(name);
  const thread = read && (threads.get(read.id) ?? read);
  const rows = talk.rows();
  const parked = gates.all().filter(({ thread_id: of }) => of === thread?.id);
  const places = useMemo(() => placesOf(rows, parked), [rows, parked.map(({ id, state }) => `${id} ${state}`).join()]);
  const entries = useMemo(() => html`<${Entries} rows=${rows} places=${places} />`, [rows, places]);
  const { box, onScroll, isFollowing, follow } = usePlace(name, rows, () => void (!error && readEarlier()));
  useSubject(thread?.title || thread?.key);
  useLayoutEffect(() => bindGateKeys(false), []);
  const isActive = thread !== null && thread.state !== "idle";
  // A thread waits for one call at a time. Only its owner answers it with a word.
  const waiting = thread?.state === "awaiting_approval" ? parked.findLast((gate) => choicesOf(gate, who.value, now.value).includes("once")) ?? null : null;
  const queued = rows.filter(({ entry }) => entry.seq === null).length;
  const canWrite = who.value?.role !== "viewer";
  return html`
    ${error && html`<${Failed} error=${error} again=${again} />`}
    <div class="conversation" tabindex="0" role="group" aria-label=${T.chat.entries} ref=${box} onScroll=${onScroll}>
      ${isLoading && rows.length === 0 && html`<${Loading} />`}
      ${!isLoading && !error && rows.length === 0 && html`<${Empty}><p>${T.chat.empty}</p><//>`}
      ${talk.isFull() && html`<p class="note">${T.chat.full}</p>`}
      ${entries}
      <${Live} talk=${talk} isWorking=${thread?.state === "processing"} />
    </div>
    <p class="added-items">${!isFollowing && html`<button type="button" class="link" onClick=${follow}>${T.trace.follow}</button>`}</p>
    ${canWrite ? html`<${Composer} name=${name} id=${thread?.id ?? null} waiting=${waiting} isActive=${isActive} queued=${queued} onSent=${() => isMissing && again()} />`
      : html`<p class="note">${T.chat.viewer}</p>`}
  `;
}
