// The events of the installation: one stream for all tabs of this browser.
//
// Tabs elect a leader by a lock; it reads the stream and passes on what it reads. Where browsers have no locks (plain HTTP on a name of
// the local network), each visible tab reads its own. Never keeps an event: `store.js` does what follows from it.

import { signal } from "@preact/signals";
import { isRefused } from "./api.js";
import { openStream } from "./stream.js";

/** @typedef {import("./api.js").schemas["InstanceEvent"]} InstanceEvent */
/** @typedef {import("./stream.js").Connection} Connection */
/** @typedef {{ kinds: string[], onEvent: (event: InstanceEvent) => void, onResync: () => void }} Follower */
/** @typedef {{ type: "hello" } | { type: "connection", connection: Connection, cursor: number | null }
 *   | { type: "position", cursor: number, event: InstanceEvent | null } | { type: "live", event: InstanceEvent } | { type: "resync" }} Note */

/** A tab without locks keeps its stream for so long after it is hidden. */
const HIDDEN_MS = 30_000;
/** A page is read without a position after so long: it is better late than never. */
const POSITION_WAIT_MS = 1_000;

/** @type {import("@preact/signals").Signal<Connection>} */
export const connection = signal({ state: "connecting" });

/** The last event that was seen, of all kinds. @type {import("@preact/signals").Signal<number | null>} */
const cursor = signal(null);

/** The position of the stream; what is read now has all events up to it. */
export const position = () => cursor.value ?? 0;

/** Waits until the stream has a position: what is read afterwards misses nothing. */
export function positioned() {
  return new Promise((resolve) => {
    const end = () => (clearTimeout(timer), resolve(undefined), queueMicrotask(() => stop()));
    const timer = setTimeout(end, POSITION_WAIT_MS);
    const stop = cursor.subscribe((value) => value !== null && end());
  });
}

/**
 * Reads what events change. The answer is not older than `seen`, a position of the stream.
 * @template {object} Answer
 * @param {() => Promise<Answer>} read
 */
export async function readSince(read) {
  await positioned();
  const seen = position();
  return { ...(await read()), seen };
}

/** Follows the events until the result is called. @param {Follower} follower */
export function follow({ kinds, onEvent, onResync }) {
  const channel = new BroadcastChannel("gantry-live");
  /** @type {ReturnType<typeof openStream> | null} */
  let stream = null;
  const isOver = new AbortController();
  const post = (/** @type {Note} */ note) => channel.postMessage(note);

  /** @param {number} at @param {InstanceEvent | null} event */
  function take(at, event) {
    // A new leader may begin before what this tab has seen.
    if (cursor.value !== null && at <= cursor.value) return;
    cursor.value = at;
    if (event) onEvent(event);
  }

  /** Events are missing, so the position means nothing any more: pages are read again. */
  function resync() {
    cursor.value = null;
    onResync();
  }

  /** @param {Connection} next */
  function connect(next) {
    connection.value = next;
    if (next.state === "login") isRefused.value = true;
  }

  function lead() {
    stream = openStream({
      url: (after) => `/api/events?kind=${kinds.join()}${after === null ? "" : `&after=${after}`}`,
      after: cursor.value === null ? null : String(cursor.value),
      onConnection(next) {
        connect(next);
        post({ type: "connection", connection: next, cursor: cursor.value });
      },
      onMessage({ id, event, data }) {
        const content = data === null ? null : JSON.parse(data);
        if (event === "resync") {
          post({ type: "resync" });
          stream?.close();
          resync();
          // From now on: all events that are still kept could be thousands.
          lead();
        } else if (id !== null) {
          take(Number(id), content);
          post({ type: "position", cursor: Number(id), event: content });
        } else if (content !== null) {
          // It is not stored: it is as of what was read last.
          const now = { ...content, cursor: position() };
          onEvent(now);
          post({ type: "live", event: now });
        }
      },
    });
  }

  channel.onmessage = (/** @type {MessageEvent<Note>} */ { data: note }) => {
    if (note.type === "hello") {
      if (stream) post({ type: "connection", connection: connection.value, cursor: cursor.value });
    } else if (stream) {
      // Only one tab leads; another one's last words are older than what this one reads.
    } else if (note.type === "connection") {
      connect(note.connection);
      if (note.cursor !== null && cursor.value === null) cursor.value = note.cursor;
    } else if (note.type === "position") take(note.cursor, note.event);
    else if (note.type === "live") onEvent(note.event);
    else resync();
  };

  function unfollow() {
    isOver.abort();
    stream?.close();
    stream = null;
    channel.close();
    cursor.value = null;
    connection.value = { state: "connecting" };
  }

  if (navigator.locks) {
    const held = () => new Promise((release) => {
      if (isOver.signal.aborted) return release(undefined);
      isOver.signal.addEventListener("abort", () => release(undefined));
      lead();
    });
    navigator.locks.request("gantry-live", { signal: isOver.signal }, held).catch(() => {});
    post({ type: "hello" });
  } else {
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    const onVisibility = () => {
      clearTimeout(timer);
      if (!document.hidden && !stream) lead();
      if (document.hidden) timer = setTimeout(() => (stream?.close(), (stream = null)), HIDDEN_MS);
    };
    document.addEventListener("visibilitychange", onVisibility, { signal: isOver.signal });
    onVisibility();
  }
  return { stop: unfollow, retry: () => stream?.retry() };
}
