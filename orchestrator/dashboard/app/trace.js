// The events of one job as rows: a call and its result are one row, output flows into its call. Pure, but for the row that changes.
//
// Owns what a row says, how much is kept, and what is missing between rows. Never reads: `pages/job/activity.js` does.

import { cost, tokens, took } from "./format.js";
import { STATES, T } from "./texts.js";

/** @typedef {import("./api.js").schemas["Event"]} Event */
/** @typedef {"messages" | "tools" | "failed" | "egress" | "other"} Group */

/**
 * `seq` is of the first event of the row, `last` of the newest one. `word` says what it is, `text` is of a person, a model or a tool.
 * Rows of the kinds `gap` (not read yet) and `lost` (no longer kept) stand for the events from `seq` to `last`.
 * @typedef {{
 *   seq: number, last: number, at: string, kind: string, icon: string, word: string, text: string, note: string,
 *   group: Group, isFailed: boolean, isOpen: boolean, call: string | null
 * }} Row
 */

export const MAX_ROWS = 5_000;
const TEXT_CHARS = 200;
/** What of a call's output is shown while it runs. */
const LIVE_CHARS = 16_384;

/** Why replies end; other values of `finish_reason` are errors. */
const REASONS = ["stop", "length", "tool_calls", "content_filter", "other"];

/** @param {unknown} value */
const line = (value) => (typeof value === "string" ? value : JSON.stringify(value) ?? "").slice(0, 2 * TEXT_CHARS).replace(/\s+/g, " ").trim().slice(0, TEXT_CHARS);

/** The argument by which people know a call: its command, its path, its address; else all of them. @param {any} input */
function argument(input) {
  if (!input || typeof input !== "object") return line(input);
  const known = ["command", "path", "url", "query", "pattern"].map((name) => input[name]).find((value) => typeof value === "string");
  // The file of a patch is in its second line.
  return line(known ?? /^\+\+\+ (?:b\/)?(.+)$/m.exec(input.patch)?.[1] ?? input);
}

/** What an event says as a row. @param {any} event @returns {Omit<Row, "seq" | "last" | "at" | "kind" | "call">} */
function describe({ kind, data }) {
  const row = { icon: "event", word: kind, text: "", note: "", group: /** @type {Group} */ ("other"), isFailed: false, isOpen: false };
  switch (kind) {
    case "state": {
      const isFailed = ["failed", "stuck"].includes(data.to);
      const why = [data.reason, data.message].filter(Boolean).join(": ");
      return { ...row, icon: data.to, word: STATES[/** @type {import("./texts.js").JobState} */ (data.to)] ?? data.to, text: line(why), isFailed };
    }
    case "message": return { ...row, icon: "message", word: T.trace.roles[/** @type {"user"} */ (data.role)] ?? data.role, text: line(data.content), group: "messages" };
    case "reasoning": return { ...row, icon: "message", word: T.trace.thinks, text: line(data.content), group: "messages" };
    case "plan": return { ...row, icon: "message", word: T.trace.plan, text: line(data.goal), note: T.trace.steps(data.steps.length), group: "messages" };
    case "tool_use": return { ...row, icon: "loading", word: data.tool, text: argument(data.input), group: "tools", isOpen: true };
    case "tool_result": {
      return { ...row, icon: data.success ? "completed" : "failed", word: data.tool, text: line(data.output), note: took(data.duration_ms), group: "tools", isFailed: !data.success };
    }
    case "llm_call": {
      const isFailed = !REASONS.includes(data.finish_reason);
      const note = [T.trace.tokens(tokens(data.input_tokens), tokens(data.output_tokens)), took(data.duration_ms), cost(data.cost_usd)].join(" · ");
      return { ...row, icon: "model", word: T.trace.model, text: data.model, note, isFailed };
    }
    case "status": return { ...row, word: T.trace.status, text: line(data.message) };
    case "log": return { ...row, word: data.stream, text: line(data.text) };
    case "egress": {
      const isFailed = data.decision !== "allowed";
      return { ...row, icon: "egress", word: T.trace.egress, text: `${data.decision} ${data.host}:${data.port}${data.count > 1 ? ` ${data.count}×` : ""}`, note: data.rule, group: "egress", isFailed };
    }
    case "limit": return { ...row, icon: "stuck", word: T.trace.limit, text: `${data.limit}: ${line(data.value)}`, isFailed: true };
    case "result": return { ...row, icon: "message", word: T.trace.result, text: line(data.text), note: data.outcome, group: "messages" };
    default: return { ...row, text: line(data) };
  }
}

/** Names a call: other attempts may use the same id. @param {any} event */
const callOf = ({ attempt, data }) => (data?.call_id ? `${attempt} ${data.call_id}` : null);

/** A row for events that are not there. @param {number} from @param {number} to @param {boolean} isLost @returns {Row} */
const missing = (from, to, isLost) => ({
  seq: from, last: to, at: "", kind: isLost ? "lost" : "gap", icon: "stuck", word: T.trace.missing, note: "", group: "other", isFailed: false, isOpen: false, call: null,
  text: isLost ? T.trace.lost(from, to) : T.trace.gap(from, to),
});

/** Whether a row is shown. @param {Pick<Row, "group" | "isFailed">} row @param {string} show */
export function isShown(row, show) {
  if (show === "failed") return row.isFailed;
  return show === "all" || row.group === show;
}

/** Collects events in any order of pages: those that are shown, so that others take no room. @param {string} [show] */
export function createTrace(show = "all") {
  /** Only without a filter does a step of more than 1 mean that events are missing. */
  const isWhole = show === "all";
  /** By `seq`, in order. @type {Row[]} */
  let rows = [];
  /** The rows of calls without a result. @type {Map<string, Row>} */
  const open = new Map();
  /** Results whose call is on an earlier page. @type {Map<string, Row>} */
  const orphans = new Map();
  /** Output of open calls, and the event with which it begins: -1 if its beginning was cut. @type {Map<string, { text: string, from: number }>} */
  const outputs = new Map();
  let first = 0;
  let last = 0;
  let hasEarlier = false;
  let isFull = false;

  /** @param {any} event @returns {Row | null} a new row */
  function take(event) {
    const { seq, at, kind } = event;
    const call = callOf(event);
    const known = call === null ? undefined : open.get(call);
    if (call !== null && known && kind === "log") {
      const { text, from } = outputs.get(call) ?? { text: "", from: seq };
      const all = text + event.data.text;
      outputs.set(call, { text: all.slice(-LIVE_CHARS), from: all.length > LIVE_CHARS ? -1 : from });
      known.last = seq;
      return null;
    }
    if (call !== null && known && kind === "tool_result") {
      const { icon, note, isFailed } = describe(event);
      Object.assign(known, { icon, note, isFailed, isOpen: false, last: seq });
      open.delete(call);
      outputs.delete(call);
      return null;
    }
    // Output of a call on an earlier page: its result, which follows, has it too.
    if (kind === "log" && call !== null) return null;
    const row = { seq, last: seq, at, kind, call, ...describe(event) };
    if (!isShown(row, show)) return null;
    if (call !== null && kind === "tool_use") open.set(call, row);
    if (call !== null && kind === "tool_result") orphans.set(call, row);
    return row;
  }

  /** The new rows of events that were read late: calls are joined to results that are there. @param {any[]} events */
  const join = (events) => events.flatMap((event) => {
    const call = event.kind === "tool_use" ? callOf(event) : null;
    const orphan = call === null ? undefined : orphans.get(call);
    if (call === null || !orphan) return take(event) ?? [];
    orphans.delete(call);
    const { word, text } = describe(event);
    // The row moves to where the call began.
    rows = rows.filter((one) => one !== orphan);
    return { ...orphan, seq: event.seq, at: event.at, kind: event.kind, word, text };
  });

  function trim() {
    const excess = rows.slice(0, Math.max(0, rows.length - MAX_ROWS));
    if (excess.length === 0) return;
    rows = rows.slice(excess.length);
    for (const { call } of excess) if (call !== null) for (const table of [open, orphans, outputs]) table.delete(call);
    first = rows[0]?.seq ?? first;
    [hasEarlier, isFull] = [true, true];
  }

  const hasGaps = () => rows.some(({ kind }) => kind === "gap" || kind === "lost");

  return {
    rows: () => rows,
    /** The first and the last `seq` that were read. @returns {[number, number]} */
    range: () => [first, last],
    hasGaps,
    /** Whether all events from 1 on are there. */
    isComplete: () => isWhole && first <= 1 && !hasGaps(),
    /** Whether the server has earlier ones. */
    hasEarlier: () => hasEarlier,
    /** Whether there is no room for earlier ones. */
    isFull: () => isFull,
    /** What a call has written so far. @param {string | null} call */
    output: (call) => (call === null ? "" : outputs.get(call)?.text ?? ""),
    /** Where that begins; 0 if there is none. @param {string | null} call */
    outputFrom: (call) => (call === null ? 0 : outputs.get(call)?.from ?? 0),
    /**
     * Takes events that follow the last one, and returns how many were new. Those of a page may have others before them:
     * @param {any[]} events @param {number} newest the newest event when the page was read, which a filter may leave out
     * @param {boolean} hasOthers whether the server has others before the page
     */
    append(events, newest = 0, hasOthers = false) {
      const added = events.filter(({ seq }) => seq > last);
      const isApart = hasOthers && added.length === events.length;
      if (last === 0) hasEarlier = hasOthers;
      for (const event of added) {
        const isAfterGap = last > 0 && event.seq > last + 1 && (isWhole || (isApart && event === added[0]));
        if (isAfterGap) rows.push(missing(last + 1, event.seq - 1, false));
        const row = take(event);
        if (row) rows.push(row);
        last = event.seq;
        if (first === 0) first = event.seq;
      }
      last = Math.max(last, newest);
      trim();
      return added.length;
    },
    /** Notes that the server no longer has the events between the last one and `oldest`. @param {number} oldest */
    lose(oldest) {
      if (oldest <= last + 1) return;
      if (last > 0) rows.push(missing(last + 1, oldest - 1, true));
      last = oldest - 1;
    },
    /**
     * Takes a page that ends before the first one; false if there is no room for it.
     * @param {any[]} events @param {number} newest the newest event when the page was read @param {boolean} hasOthers before the page
     */
    prepend(events, newest, hasOthers = false) {
      const earlier = first === 0 ? events : events.filter(({ seq }) => seq < first);
      if (rows.length + earlier.length > MAX_ROWS) {
        isFull = true;
        return false;
      }
      if (last === 0) last = Math.max(newest, earlier.at(-1)?.seq ?? 0);
      const before = join(earlier);
      rows = [...before, ...rows];
      first = earlier[0]?.seq ?? first;
      hasEarlier = hasOthers;
      return true;
    },
    /** Takes a page that was read from the beginning of a gap. @param {Row} gap @param {any[]} events @param {boolean} hasMore whether others follow the page */
    fill(gap, events, hasMore) {
      const inside = events.filter(({ seq }) => seq >= gap.seq && seq <= gap.last);
      const read = inside.at(-1)?.seq ?? gap.seq - 1;
      const isCut = hasMore && inside.length === events.length && read < gap.last;
      const added = join(inside);
      if (isCut) added.push(missing(read + 1, gap.last, false));
      else if (isWhole && read < gap.last) added.push(missing(read + 1, gap.last, true));
      rows = rows.flatMap((row) => (row === gap ? added : row));
      trim();
    },
  };
}
