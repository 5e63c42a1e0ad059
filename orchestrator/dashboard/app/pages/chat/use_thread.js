// Reads and follows a thread: its newest entries, earlier ones when they are asked for, and what comes by a stream while the tab is visible.
//
// Owns when something is read. What becomes of it is in `conversation.js`, what is shown in `thread.js`.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { ApiError, address, get } from "../../api.js";
import { position, positioned } from "../../live.js";
import { generation } from "../../session.js";
import { putThread, resyncs } from "../../store.js";
import { openStream } from "../../stream.js";
import { createConversation } from "./conversation.js";

/** The thread that the first message creates. */
export const MAIN = "main";
const PAGE = 50;
const FRAME_MS = 50;
/** A tab that is hidden for so long follows no thread. */
const HIDDEN_MS = 30_000;

/** @typedef {import("../../api.js").schemas["ChatThread"]} Thread */
/** `isMissing`: the thread `main` does not exist yet. @typedef {{ thread: Thread | null, error: Error | null, isLoading: boolean, isMissing: boolean }} State */

/** @param {string} name the id of the thread, or its key */
export function useThread(name) {
  const [restarts, setRestarts] = useState(0);
  const [tries, setTries] = useState(0);
  const [, redraw] = useState(0);
  const talk = useMemo(createConversation, [name, resyncs.value, restarts]);
  const [state, setState] = useState(/** @type {State} */ ({ thread: null, error: null, isLoading: true, isMissing: false }));
  const isReading = useRef(false);
  /** Of the conversation that is shown. */
  const over = useRef(AbortSignal.abort());

  /** @param {string} id @param {string | null} cursor @param {AbortSignal} signal */
  async function readPage(id, cursor, signal) {
    const seen = position();
    const { messages, next_cursor: next, ...thread } = await get("/api/chat/threads/{id}", { path: { id }, query: { limit: PAGE, cursor }, signal });
    putThread(thread, seen);
    return { thread, messages: /** @type {any[]} */ (messages), next: next ?? null };
  }

  useEffect(() => {
    const controller = new AbortController();
    const { signal } = controller;
    over.current = signal;
    setState((known) => ({ ...known, error: null, isLoading: true }));
    let id = name;
    /** @type {string | null} */
    let last = null;
    let hasRead = false;
    /** @type {ReturnType<typeof openStream> | null} */
    let stream = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let hidden;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let frame;
    const changed = () => (frame ??= setTimeout(() => ((frame = undefined), redraw((count) => count + 1)), FRAME_MS));
    const close = () => (stream?.close(), (stream = null), talk.dropLive());

    async function readNewest() {
      hasRead = true;
      try {
        await positioned();
        const { thread, messages, next } = await readPage(id, null, signal);
        if (signal.aborted) return;
        // A key may name another thread later.
        id = thread.id;
        talk.newest(messages, next);
        setState({ thread, error: null, isLoading: false, isMissing: false });
        // The thread was created after the stream had not found it.
        open();
      } catch (failure) {
        if (signal.aborted) return;
        const isMissing = name === MAIN && failure instanceof ApiError && failure.status === 404;
        setState((known) => ({ ...known, error: isMissing ? null : /** @type {Error} */ (failure), isLoading: false, isMissing }));
      }
    }

    function open() {
      if (stream || document.hidden) return;
      stream = openStream({
        url: (after) => address("/api/chat/events", { query: { thread_id: id, ...(after !== null && { after }) } }),
        after: last,
        onConnection({ state: now }) {
          // Pieces are not sent again.
          talk.dropLive();
          // What is read while the stream is open misses nothing.
          if (now === "live" || now === "gone" || !hasRead) void readNewest();
          if (now === "gone") close();
          changed();
        },
        onMessage({ id: cursor, event, data }) {
          if (cursor !== null) last = cursor;
          if (event === "resync") return setRestarts((count) => count + 1);
          if (data === null) return;
          const content = JSON.parse(data);
          talk.take(event, content);
          // A queued message has got its place, which no event tells.
          if (event === "thread_state" && content.state === "processing") void readNewest();
          changed();
        },
      });
    }
    const onVisibility = () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(close, HIDDEN_MS);
      else open();
    };
    document.addEventListener("visibilitychange", onVisibility);
    open();
    return () => {
      controller.abort();
      close();
      for (const timer of [hidden, frame]) clearTimeout(timer);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [talk, tries, generation.value]);

  /** Reads the page before the first entry, one at a time. */
  async function readEarlier() {
    const [signal, cursor] = [over.current, talk.cursor()];
    if (cursor === null || isReading.current || signal.aborted) return;
    isReading.current = true;
    try {
      const { messages, next } = await readPage(state.thread?.id ?? name, cursor, signal);
      if (!signal.aborted) talk.earlier(messages, next);
      redraw((count) => count + 1);
    } catch (failure) {
      if (!signal.aborted) setState((known) => ({ ...known, error: /** @type {Error} */ (failure) }));
    }
    isReading.current = false;
  }

  return { talk, ...state, readEarlier, again: () => setTries(tries + 1) };
}
