// Reads and follows the events of a job: the newest first, the earlier ones when they are asked for, the next ones by a stream.
//
// Owns when events are read. What becomes of them is in `trace.js`, what is shown in `activity.js`.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../api.js";
import { generation } from "../../session.js";
import { resyncs } from "../../store.js";
import { openStream } from "../../stream.js";
import { createTrace } from "../../trace.js";

/** @typedef {import("../../trace.js").Row} Row */
/** @typedef {import("../../api.js").schemas["EventPage"]} EventPage */

const PAGE = 200;
const MAX_TEXT = 400;
const FRAME_MS = 100;
/** With fewer rows, the list may not be full: earlier events are read as well. */
const MIN_ROWS = 60;
/** A tab that is hidden for so long follows no job. */
const HIDDEN_MS = 30_000;
const NEWEST = Number.MAX_SAFE_INTEGER;

/** What is read for each choice of what is shown: in pages, and by the stream, which also has the output of calls. */
const FILTERS = {
  all: { page: {}, stream: "" },
  messages: { page: { kind: "message,reasoning,plan,result" }, stream: "message,reasoning,plan,result" },
  tools: { page: { kind: "tool_use,tool_result" }, stream: "tool_use,tool_result,log" },
  // The stream does not know failures: the trace keeps them only.
  failed: { page: { failed: "true" }, stream: "state,tool_result,llm_call,egress,limit" },
  egress: { page: { kind: "egress" }, stream: "egress" },
};
/** @typedef {keyof typeof FILTERS} Shown */
export const SHOWN = /** @type {Shown[]} */ (Object.keys(FILTERS));

/**
 * Follows the events after `after`; the result stops it.
 * @param {{ id: string, after: number, kinds: string, onEvents: (events: any[]) => void, onResync: (oldest: number) => void, onEnd: () => void }} of
 */
function followJob({ id, after, kinds, onEvents, onResync, onEnd }) {
  /** @type {any[]} */
  let waiting = [];
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let timer;
  const apply = () => {
    clearTimeout(timer);
    timer = undefined;
    const events = waiting;
    waiting = [];
    if (events.length > 0) onEvents(events);
  };
  const stream = openStream({
    url: (position) => `/api/jobs/${id}/events?after=${position ?? after}${kinds && `&kind=${kinds}`}`,
    after: String(after),
    onConnection: () => {},
    onMessage({ event, data }) {
      const content = data === null ? null : JSON.parse(data);
      if (event === "end") {
        apply();
        onEnd();
      } else if (event === "resync") {
        apply();
        onResync(content?.seq ?? 0);
      } else if (content !== null) {
        waiting.push(content);
        timer ??= setTimeout(apply, FRAME_MS);
      }
    },
  });
  return () => {
    stream.close();
    apply();
  };
}

/**
 * The trace of a job. `around` is an event that is to be among those that are read first.
 * @param {string} id @param {boolean} isFinished @param {Shown} show @param {number | null} around
 */
export function useTrace(id, isFinished, show, around) {
  const [restarts, setRestarts] = useState(0);
  const [tries, setTries] = useState(0);
  const [, redraw] = useState(0);
  const trace = useMemo(() => createTrace(show), [id, show, resyncs.value, restarts]);
  const [state, setState] = useState(/** @type {{ error: Error | null, isLoading: boolean }} */ ({ error: null, isLoading: true }));
  /** Of the trace that is shown: so nothing is read twice, and nothing arrives in another trace. */
  const present = useRef({ isReading: false, signal: AbortSignal.abort() });
  const given = useRef({ isFinished, around });
  given.current = { isFinished, around };

  /** @param {Record<string, string | number>} query @param {AbortSignal} signal @returns {Promise<EventPage>} */
  const page = (query, signal) => get("/api/jobs/{id}/events", { path: { id }, query: { ...FILTERS[show].page, limit: PAGE, max_text: MAX_TEXT, ...query }, signal });

  /** Reads, and shows what came of it; false after a failure. @param {(signal: AbortSignal) => Promise<void>} work */
  async function read(work) {
    const { signal } = present.current;
    /** @type {Error | null} */
    let error = null;
    await work(signal).catch((failure) => void (error = failure));
    if (signal.aborted) return false;
    setState({ error, isLoading: false });
    return error === null;
  }

  /** Reads what the reader of the page asks for, one at a time. @param {(signal: AbortSignal) => Promise<void>} work */
  async function readAsked(work) {
    const reader = present.current;
    if (reader.isReading || reader.signal.aborted) return;
    reader.isReading = true;
    await read(work);
    reader.isReading = false;
  }

  /** @param {AbortSignal} signal */
  async function readEarlier(signal) {
    const [first] = trace.range();
    const { items, last_seq: newest, next_before: next } = await page({ before: first || NEWEST }, signal);
    if (!signal.aborted) trace.prepend(items, newest, Boolean(next));
  }

  /** Reads the newest events, at first also those around the wanted one. @param {AbortSignal} signal */
  async function readNewest(signal) {
    const isFirst = trace.range()[1] === 0;
    const tail = await page({ before: NEWEST }, signal);
    const wanted = given.current.around;
    const begin = tail.items[0]?.seq ?? 0;
    const near = isFirst && wanted !== null && wanted < begin ? await page({ before: wanted + PAGE / 2 }, signal) : null;
    if (signal.aborted) return;
    if (near && near.items.length > 0) trace.append(near.items, 0, Boolean(near.next_before));
    trace.append(tail.items, tail.last_seq, Boolean(tail.next_before));
    while (!signal.aborted && trace.hasEarlier() && !trace.isFull() && trace.rows().length < MIN_ROWS) await readEarlier(signal);
  }

  useEffect(() => {
    const over = new AbortController();
    present.current = { isReading: false, signal: over.signal };
    setState((known) => ({ ...known, error: null, isLoading: true }));
    let isEnded = false;
    /** @type {(() => void) | null} */
    let stop = null;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let hidden;
    const changed = () => redraw((count) => count + 1);
    const close = () => (stop?.(), (stop = null));
    async function open() {
      if (stop || isEnded || document.hidden) return;
      // All events of a finished job are there when it is read.
      const { isFinished: wasFinished } = given.current;
      if (!(await read(readNewest)) || stop || document.hidden) return;
      if (wasFinished) return void (isEnded = true);
      const [, last] = trace.range();
      stop = followJob({
        id, after: last, kinds: FILTERS[show].stream,
        onEvents: (events) => trace.append(events) > 0 && changed(),
        onResync: (oldest) => {
          // An older state of the database has been restored: it is another history.
          if (oldest <= trace.range()[1]) return setRestarts((count) => count + 1);
          trace.lose(oldest);
          changed();
        },
        onEnd: () => ((isEnded = true), close()),
      });
    }
    const onVisibility = () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(close, HIDDEN_MS);
      else void open();
    };
    document.addEventListener("visibilitychange", onVisibility);
    void open();
    return () => {
      over.abort();
      close();
      clearTimeout(hidden);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [trace, tries, generation.value]);

  return {
    trace,
    ...state,
    canReadMore: trace.hasEarlier() && !trace.isFull(),
    readMore: () => trace.hasEarlier() && !trace.isFull() && void readAsked(readEarlier),
    /** Reads the beginning of what is missing. @param {Row} gap */
    load: (gap) => void readAsked(async (signal) => {
      const { items, next_after: next } = await page({ after: gap.seq - 1 }, signal);
      if (!signal.aborted) trace.fill(gap, items, Boolean(next));
    }),
    again: () => setTries(tries + 1),
  };
}
