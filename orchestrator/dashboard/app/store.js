// What the API has said, once for all pages: a list and its detail read the same row.
//
// Owns the order of what is read and what events say, the limits of what is kept, and when events are applied. Never holds a whole
// history, prompt or result: a row is what a list shows.

import { batch, computed, signal } from "@preact/signals";
import { ApiError, get, onProblem } from "./api.js";
import { connection, position, positioned } from "./live.js";
import { who } from "./session.js";

/** @typedef {import("./api.js").schemas} schemas */
/** @typedef {schemas["JobSummary"]} Job */
/** @typedef {schemas["InstanceEvent"]} InstanceEvent */
/** `isCut`: its parameters are too long for a row. @typedef {schemas["Gate"] & { isCut: boolean }} Gate */
/** @typedef {schemas["ChatThread"]} Thread */
/** @typedef {Omit<schemas["Routine"], "action" | "guardrails" | "notify" | "state">} Routine */
/** @typedef {Omit<schemas["RoutineRun"], "result" | "trigger_detail" | "last_skipped_detail">} Run */
/** `ids` are of the newest ones; of those before `last`, which is null if there are none, it is not known which are unread.
 * @typedef {{ count: number, ids: Set<string>, last: string | null }} Unread */

const MAX_JOBS = 2_000;
const MAX_GATES = 200;
const MAX_ROUTINES = 1_000;
const MAX_RUNS = 500;
const MAX_THREADS = 1_000;
/** Notifications that were heard of, by id only. */
const MAX_NEWS = 200;
const MAX_UNREAD = 100;
const MAX_PARAMETER_CHARS = 10_000;
const PREVIEW_CHARS = 200;
const HIDDEN_MS = 250;
/** Reads of single objects at once. */
const AT_ONCE = 4;
/** The same object is not read more often. */
const OBJECT_GAP_MS = 5_000;
const COUNTS_GAP_MS = 2_000;
const STATUS_GAP_MS = 5_000;

/** The states of a job that change no more. @type {Set<string>} */
export const FINISHED = new Set(["completed", "accepted", "failed", "cancelled"]);

/**
 * When a job's work ended: the time in which it waits for a review is not in it.
 * @param {{ state: string, reason?: string | null | undefined, finished_at?: string | null | undefined, last_activity_at?: string | null | undefined }} job
 */
export function endOf({ state, reason, finished_at: end, last_activity_at: last }) {
  if (state === "in_progress") return null;
  return (state === "accepted" || reason === "rejected" ? last : end ?? last) ?? null;
}

/** Whether the server restarts a job in this state. @param {string} state */
export const canRestart = (state) => state === "failed" || state === "cancelled";

/**
 * Rows by id, at most `cap`: the ones that were not heard of for longest are left out, except those that a page shows.
 * @template {{ id: string }} Row
 * @param {number} cap
 */
export function createTable(cap) {
  /** `seen` is the position of the stream that the row is not older than. @type {Map<string, { row: Row, seen: number }>} */
  const rows = new Map();
  const version = signal(0);
  /** @type {Set<string>} */
  let shown = new Set();

  /** @param {Row} row @param {number} seen */
  function set(row, seen) {
    rows.delete(row.id);
    rows.set(row.id, { row, seen });
    for (const id of rows.keys()) {
      if (rows.size <= cap) break;
      if (!shown.has(id)) rows.delete(id);
    }
    version.value += 1;
  }

  return {
    /** @param {string} id */
    get: (id) => (version.value, rows.get(id)?.row),
    all: () => (version.value, Array.from(rows.values(), ({ row }) => row)),
    /** The rows that were heard of after a position. @param {number} position */
    since: (position) => (version.value, Array.from(rows.values()).flatMap(({ row, seen }) => (seen > position ? [row] : []))),
    /** Names the rows that a page shows. @param {string[]} ids */
    show: (ids) => void (shown = new Set(ids)),
    /** Takes what was read when the stream was at `seen`, unless something newer is known. @param {Row} row @param {number} seen */
    put(row, seen) {
      if ((rows.get(row.id)?.seen ?? 0) <= seen) set(row, seen);
    },
    /** Takes what an event says about a known row; false if the row is not known. @param {string} id @param {number} seen @param {Partial<Row>} change */
    merge(id, seen, change) {
      const known = rows.get(id);
      if (known && known.seen < seen) set({ ...known.row, ...change }, seen);
      return known !== undefined;
    },
    /** Forgets a row that nothing newer than `seen` is known of. @param {string} id @param {number} [seen] */
    drop: (id, seen = Infinity) => void ((rows.get(id)?.seen ?? Infinity) <= seen && rows.delete(id) && (version.value += 1)),
    clear: () => (rows.clear(), void (version.value += 1)),
  };
}

/**
 * Collects what comes quickly and hands it over together.
 * @template Item
 * @param {(items: Item[]) => void} apply @param {(run: () => void) => void} schedule
 */
export function createQueue(apply, schedule) {
  /** @type {Item[]} */
  let waiting = [];
  return (/** @type {Item} */ item) => {
    if (waiting.push(item) > 1) return;
    schedule(() => {
      const items = waiting;
      waiting = [];
      apply(items);
    });
  };
}

/** Whether a failed read may succeed later. @param {unknown} error */
const canPass = (error) => error instanceof ApiError && (error.status === 0 || error.status === 429 || error.status >= 500);

/**
 * Reads objects that are asked for by id: each once at a time, not again within `gapMs`, a few at once, and none for a hidden tab. After
 * a failure that may pass, nothing is read for a while, and then the object again.
 * @param {(id: string) => Promise<void>} read
 * @param {{ gapMs: number, atOnce?: number, most?: number, isPaused?: () => boolean }} options
 */
export function createFetcher(read, { gapMs, atOnce = AT_ONCE, most = MAX_JOBS, isPaused = () => false }) {
  /** @type {Set<string>} */
  const wanted = new Set();
  /** @type {Set<string>} */
  const resting = new Set();
  let running = 0;
  let isWaiting = false;

  /** @param {string} id @param {number} waitMs */
  function readLater(id, waitMs) {
    wanted.add(id);
    isWaiting = true;
    setTimeout(() => ((isWaiting = false), pump()), waitMs);
  }

  function pump() {
    if (isWaiting || isPaused()) return;
    for (const id of wanted) {
      if (running >= atOnce) return;
      if (resting.has(id)) continue;
      wanted.delete(id);
      resting.add(id);
      running += 1;
      const end = () => {
        running -= 1;
        setTimeout(() => (resting.delete(id), pump()), gapMs);
        pump();
      };
      read(id).catch((error) => canPass(error) && readLater(id, Math.max(gapMs, (error.retryAfter ?? 0) * 1_000))).then(end);
    }
  }

  return {
    pump,
    /** @param {string} id */
    want(id) {
      wanted.add(id);
      // With so many, the newest are those that may be looked at.
      for (const oldest of wanted) {
        if (wanted.size <= most) break;
        wanted.delete(oldest);
      }
      pump();
    },
    clear: () => wanted.clear(),
  };
}

/** @type {ReturnType<typeof createTable<Job>>} */
export const jobs = createTable(MAX_JOBS);

/** Calls of tools that wait for a person, or have waited. @type {ReturnType<typeof createTable<Gate>>} */
export const gates = createTable(MAX_GATES);

/** @type {ReturnType<typeof createTable<Thread>>} */
export const threads = createTable(MAX_THREADS);

/** @type {ReturnType<typeof createTable<Routine>>} */
export const routines = createTable(MAX_ROUTINES);

/** The newest runs, and those that a page shows. @type {ReturnType<typeof createTable<Run>>} */
export const runs = createTable(MAX_RUNS);

/** The notifications of the user that were heard of. @type {ReturnType<typeof createTable<{ id: string }>>} */
export const news = createTable(MAX_NEWS);

/** Whether the gates that wait are known. */
export const haveGates = signal(false);

/**
 * How much waits for a user: the user's calls, and jobs to review and stuck ones. Pure.
 * @param {Pick<Gate, "state" | "user_id">[]} all @param {schemas["StateCounts"] | undefined} states @param {string | undefined} user
 */
export function countWaiting(all, states, user) {
  const calls = all.filter(({ state, user_id: owner }) => state === "pending" && owner === user).length;
  return calls + (states ? states.submitted + states.stuck : 0);
}

/** Whether a notification is unread, by what was read last. Pure. @param {{ id: string, read_at?: string | null | undefined }} one @param {Unread | null} known */
export function isUnread({ id, read_at: readAt }, known) {
  if (readAt) return false;
  return !known || known.ids.has(id) || (known.last !== null && id < known.last);
}

/** Grows when events were missed: pages are read again. */
export const resyncs = signal(0);

// Without a connection a read would fail as well; `wake` is called when there is one.
const isPaused = () => document.hidden || connection.value.state === "reconnecting" || connection.value.state === "login";

/** A job without its long texts; what it does now, only events and lists tell. @param {schemas["Job"]} job @returns {Job} */
function summary({ prompt, result, metadata, queue_position, ...rest }) {
  return { ...rest, prompt_preview: prompt.slice(0, PREVIEW_CHARS), activity: (rest.state === "in_progress" && jobs.get(rest.id)?.activity) || null };
}

/** Takes a job that was read as a whole. @param {schemas["Job"]} job @param {number} seen */
export const putJob = (job, seen) => jobs.put(summary(job), seen);

/** All of them, which a tab that becomes visible lets go on. @type {ReturnType<typeof createFetcher>[]} */
const fetchers = [];

/** @param {(id: string) => Promise<void>} read @param {number} gapMs @param {number} [atOnce] */
function fetcher(read, gapMs, atOnce = 1) {
  const made = createFetcher(read, { gapMs, atOnce, isPaused });
  fetchers.push(made);
  return made;
}

/**
 * Reads rows of a table by id; one that there is no more is forgotten.
 * @template Read
 * @param {{ drop: (id: string) => void }} table @param {(id: string) => Promise<Read>} read @param {(row: Read, seen: number) => void} put
 */
const rowFetcher = (table, read, put) => fetcher(async (id) => {
  const seen = position();
  put(await read(id).catch(onProblem(404, () => table.drop(id))), seen);
}, OBJECT_GAP_MS, AT_ONCE);

/**
 * An answer that is read again when it may be another; null until a page asks for it.
 * @template Value
 * @param {() => Promise<Value>} read @param {number} gapMs
 */
function createAnswer(read, gapMs) {
  const [value, hasFailed] = [signal(/** @type {Value | null} */ (null)), signal(false)];
  const { want } = fetcher(async () => {
    value.value = await read().catch((error) => {
      hasFailed.value = true;
      throw error;
    });
    hasFailed.value = false;
  }, gapMs);
  return { value, hasFailed, read: () => want("") };
}

/** Reads a job soon whose title is not known. */
export const wantJob = rowFetcher(jobs, (id) => get("/api/jobs/{id}", { path: { id } }), putJob).want;

/** The jobs by state, and the usage of the day. */
export const { value: counts, hasFailed: haveCountsFailed, read: readCounts } = createAnswer(() => get("/api/jobs/summary"), COUNTS_GAP_MS);

/** What the server can do now. */
export const { value: server, hasFailed: hasServerFailed, read: readServer } = createAnswer(() => get("/api/status"), STATUS_GAP_MS);

/** What waits for the user. */
export const waiting = computed(() => countWaiting(gates.all(), counts.value?.states, who.value?.user));

/** Takes a gate that was read. One that was resolved never waits again. @param {schemas["Gate"]} gate @param {number} seen */
export function putGate(gate, seen) {
  if (gate.state === "pending" && (gates.get(gate.id)?.state ?? "pending") !== "pending") return;
  const isCut = JSON.stringify(gate.parameters).length > MAX_PARAMETER_CHARS;
  gates.put({ ...gate, isCut, ...(isCut && { parameters: null }) }, seen);
}

/** Reads one gate. @param {string} id @param {AbortSignal} [signal] */
export async function readGate(id, signal) {
  const seen = position();
  const gate = await get("/api/gates/{id}", { path: { id }, signal });
  putGate(gate, seen);
  return gate;
}

/** Reads the gates that wait. @param {AbortSignal} [signal] */
export async function readGates(signal) {
  await positioned();
  const seen = position();
  const { items, next_cursor: next } = await get("/api/gates", { query: { limit: MAX_GATES }, signal });
  const listed = new Set(items.map(({ id }) => id));
  const oldest = (next && items.at(-1)?.id) || "";
  batch(() => {
    // Those that are deleted with their thread have no event.
    for (const { id, state } of gates.all()) if (state === "pending" && id > oldest && !listed.has(id)) gates.drop(id, seen);
    // The newest ones last: they are kept.
    for (const gate of items.toReversed()) putGate(gate, seen);
    haveGates.value = true;
  });
}

const gatesFetcher = fetcher(() => readGates(), COUNTS_GAP_MS);
export const wantGates = () => gatesFetcher.want("");

/** The threads of the user; an admin reads those of others, too. @type {Set<string>} */
const ownThreads = new Set();

/** @param {string} id */
export const isOwnThread = (id) => ownThreads.has(id);

/** The thread of the user with an id or a key, or one of another user with an id. @param {string} name */
export const threadOf = (name) => threads.get(name) ?? threads.all().find(({ id, key }) => key === name && isOwnThread(id));

/**
 * Takes a thread that was read, without its messages.
 * @param {Thread & { messages?: unknown, next_cursor?: unknown }} read @param {number} seen @param {boolean} [isOwn] whether it is known to be the user's
 */
export function putThread({ messages, next_cursor, ...thread }, seen, isOwn = false) {
  batch(() => {
    if (isOwn) ownThreads.add(thread.id);
    threads.put(thread, seen);
    if (!thread.key || !isOwnThread(thread.id) || threads.get(thread.id) !== thread) return;
    // The command /new gives the key to another thread.
    for (const one of threads.all()) if (one.key === thread.key && one.id !== thread.id && isOwnThread(one.id)) threads.put({ ...one, key: null }, seen);
  });
}

/** Reads a thread of the user soon. */
export const wantThread = rowFetcher(threads, (id) => get("/api/chat/threads/{id}", { path: { id }, query: { limit: 1 } }), (thread, seen) => putThread(thread, seen, true)).want;

/** Takes a routine, without its long texts. @param {schemas["Routine"]} routine @param {number} seen */
export function putRoutine({ action, guardrails, notify, state, description, ...row }, seen) {
  routines.put({ ...row, description: description?.slice(0, PREVIEW_CHARS) ?? null }, seen);
}

/** Takes a run, without its long texts. @param {schemas["RoutineRun"]} run @param {number} seen */
export function putRun({ result, trigger_detail, last_skipped_detail, result_summary: text, message, ...row }, seen) {
  runs.put({ ...row, message: message?.slice(0, PREVIEW_CHARS) ?? null, result_summary: text?.slice(0, PREVIEW_CHARS) ?? null }, seen);
}

const wantRoutine = rowFetcher(routines, (id) => get("/api/routines/{id}", { path: { id } }), putRoutine).want;

/** What the status of a routine probably is after one of its runs; a read tells. @type {Partial<Record<Run["status"], Routine["status"]>>} */
const STATUS_AFTER = { running: "running", ok: "active", attention: "attention", failed: "failing" };

/** The unread notifications. */
export const { value: unread, read: wantUnread } = createAnswer(async () => {
  const { items, next_cursor: next, unread_count: count } = await get("/api/notifications", { query: { unread: true, limit: MAX_UNREAD } });
  return /** @type {Unread} */ ({ count, ids: new Set(items.map(({ id }) => id)), last: (next && items.at(-1)?.id) || null });
}, COUNTS_GAP_MS);

/** Reads again what is unread, if a page has asked for it. */
const renewUnread = () => unread.value && wantUnread();

/** Whether an event is about what is the user's. @param {InstanceEvent} event */
const isOwnEvent = ({ user_id: user }) => user === who.value?.user;

/** How many pages show the state of the server. */
let serverWatchers = 0;
const renewServer = () => serverWatchers > 0 && readServer();

/** Keeps the state of the server up to date until the result is called. */
export function watchServer() {
  serverWatchers += 1;
  readServer();
  return () => void (serverWatchers -= 1);
}

/** What each kind of event changes. A kind that is not here is not asked for. */
const HANDLERS = {
  /** @param {Extract<InstanceEvent, { kind: "job" }>} event */
  job({ cursor, data }) {
    const before = jobs.get(data.id)?.state;
    jobs.put(data, cursor);
    if (data.state === before) return;
    readCounts();
    renewServer();
  },
  /** @param {Extract<InstanceEvent, { kind: "job_deleted" }>} event */
  job_deleted({ cursor, data }) {
    jobs.drop(data.id, cursor);
    readCounts();
  },
  readiness: () => void renewServer(),
  /** @param {Extract<InstanceEvent, { kind: "gate_required" }>} event */
  gate_required({ cursor, data }) {
    putGate(data, cursor);
    wantGates();
  },
  /** @param {Extract<InstanceEvent, { kind: "gate_resolved" }>} event */
  gate_resolved(event) {
    putGate(event.data, event.cursor);
    wantGates();
    // Its notification is marked as read, without an event.
    if (isOwnEvent(event)) renewUnread();
  },
  /** @param {Extract<InstanceEvent, { kind: "notification" }>} event */
  notification(event) {
    if (!isOwnEvent(event)) return;
    news.put({ id: event.data.id }, event.cursor);
    renewUnread();
  },
  /** Which ones were marked, only a read tells. @param {Extract<InstanceEvent, { kind: "notifications_read" }>} event */
  notifications_read(event) {
    if (isOwnEvent(event)) renewUnread();
  },
  /** @param {Extract<InstanceEvent, { kind: "thread_state" }>} event */
  thread_state(event) {
    const { cursor, at, data: { thread_id: id, state } } = event;
    const isOwn = isOwnEvent(event);
    if (isOwn) ownThreads.add(id);
    const known = threads.get(id);
    threads.merge(id, cursor, { state, updated_at: at });
    // The event has no title. Nothing is read before a page has asked for threads.
    if (!known?.title && isOwn && threads.all().length > 0) wantThread(id);
  },
  /** @param {Extract<InstanceEvent, { kind: "run" }>} event */
  run({ cursor, data }) {
    putRun(data, cursor);
    const known = routines.get(data.routine_id);
    if (!known) return;
    const status = known.enabled ? STATUS_AFTER[data.status] : undefined;
    if (status) routines.merge(known.id, cursor, { status });
    // The event has neither when the routine fires next nor whether it is disabled now.
    wantRoutine(known.id);
  },
  /** @param {Extract<InstanceEvent, { kind: "routine" }>} event */
  routine({ cursor, data: { change, ...routine } }) {
    if (change === "deleted") routines.drop(routine.id);
    else putRoutine(routine, cursor);
  },
};

export const KINDS = Object.keys(HANDLERS);

/** Applies an event soon: with the others of the same frame, or of 250 ms in a hidden tab. */
export const push = createQueue(
  (/** @type {InstanceEvent[]} */ events) => batch(() => {
    for (const event of events) {
      const handler = /** @type {Record<string, ((event: any) => void) | undefined>} */ (HANDLERS)[event.kind];
      handler?.(event);
    }
  }),
  (run) => {
    let frame = 0;
    const once = () => (cancelAnimationFrame(frame), clearTimeout(timer), run());
    // A tab that is hidden meanwhile gets no frame.
    const timer = setTimeout(once, HIDDEN_MS);
    if (!document.hidden) frame = requestAnimationFrame(once);
  },
);

/** Discards what was derived from events and asks pages to read again. */
export function resync() {
  // Together, so that what is missing meanwhile is known to come again.
  batch(() => {
    forget();
    resyncs.value += 1;
  });
  readCounts();
  wantGates();
  renewUnread();
  renewServer();
}

function forget() {
  for (const table of [jobs, gates, threads, routines, runs, news]) table.clear();
  for (const { clear } of fetchers) clear();
  ownThreads.clear();
  haveGates.value = false;
}

/** Forgets everything: it was another session's. */
export function clear() {
  forget();
  for (const answer of [counts, server, unread]) answer.value = null;
}

/** Reads what a hidden tab, or one without a connection, has not read. */
export function wake() {
  for (const { pump } of fetchers) pump();
}
