// The events of one job as rows: a call and its result are one row, output flows into its call. Pure, but for the row that changes.
//
// Owns what a row says and how much is kept. Never reads: `pages/job/activity.js` does.

import { cost, tokens } from "./format.js";
import { STATES, T } from "./texts.js";

/** @typedef {import("./api.js").schemas["Event"]} Event */
/** @typedef {"messages" | "tools" | "failed" | "egress" | "other"} Group */

/**
 * `seq` is of the first event of the row, `last` of the newest one. `word` says what it is, `text` is of a person, a model or a tool.
 * @typedef {{
 *   seq: number, last: number, at: string, kind: string, icon: string, word: string, text: string, note: string,
 *   group: Group, isFailed: boolean, isOpen: boolean
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
/** @param {number} ms */
const took = (ms) => (ms < 1_000 ? `${ms} ms` : `${(ms / 1_000).toFixed(1)} s`);

/** The argument by which people know a call: its command, its path, its address; else all of them. @param {any} input */
function argument(input) {
  if (!input || typeof input !== "object") return line(input);
  const known = ["command", "path", "url", "query", "pattern"].map((name) => input[name]).find((value) => typeof value === "string");
  return line(known ?? input);
}

/** What an event says as a row. @param {any} event @returns {Omit<Row, "seq" | "last" | "at" | "kind">} */
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
      const note = [`${tokens(data.input_tokens)} → ${tokens(data.output_tokens)}`, took(data.duration_ms), cost(data.cost_usd)].join("  ");
      return { ...row, icon: "model", word: T.trace.model, text: data.model, note, isFailed };
    }
    case "status": return { ...row, word: T.trace.status, text: line(data.message) };
    case "log": return { ...row, word: data.stream, text: line(data.text) };
    case "egress": {
      const isFailed = data.decision !== "allowed";
      return { ...row, icon: "egress", word: T.trace.egress, text: `${data.decision} ${data.host}:${data.port}`, note: data.rule, group: "egress", isFailed };
    }
    case "limit": return { ...row, icon: "stuck", word: T.trace.limit, text: `${data.limit}: ${line(data.value)}`, isFailed: true };
    case "result": return { ...row, icon: "message", word: T.trace.result, text: line(data.text), note: data.outcome, group: "messages" };
    default: return { ...row, text: line(data) };
  }
}

/** Collects events in any order of pages. */
export function createTrace() {
  /** By `seq`, in order. @type {Row[]} */
  let rows = [];
  /** The rows of calls without a result. @type {Map<string, Row>} */
  const open = new Map();
  /** Results whose call is on an earlier page. @type {Map<string, Row>} */
  const orphans = new Map();
  /** Output of open calls. @type {Map<string, string>} */
  const outputs = new Map();
  let first = 0;
  let last = 0;

  /** @param {any} event @returns {Row | null} a new row */
  function take(event) {
    const { seq, at, kind, data } = event;
    const call = data?.call_id;
    const known = call === undefined ? undefined : open.get(call);
    if (known && kind === "log") {
      outputs.set(call, ((outputs.get(call) ?? "") + data.text).slice(-LIVE_CHARS));
      known.last = seq;
      return null;
    }
    if (known && kind === "tool_result") {
      const { icon, note, isFailed } = describe(event);
      Object.assign(known, { icon, note, isFailed, isOpen: false, last: seq });
      open.delete(call);
      outputs.delete(call);
      return null;
    }
    // Output of a call on an earlier page: its result, which follows, has it too.
    if (kind === "log" && call !== undefined) return null;
    const row = { seq, last: seq, at, kind, ...describe(event) };
    if (kind === "tool_use") open.set(call, row);
    if (kind === "tool_result") orphans.set(call, row);
    return row;
  }

  return {
    rows: () => rows,
    /** The first and the last `seq` that were read: between them nothing is missing. @returns {[number, number]} */
    range: () => [first, last],
    /** @param {string} call */
    output: (call) => outputs.get(call) ?? "",
    /** Takes events that follow the last one. @param {any[]} events */
    append(events) {
      const added = events.filter(({ seq }) => seq > last);
      for (const event of added) {
        const row = take(event);
        if (row) rows.push(row);
        last = event.seq;
        if (first === 0) first = event.seq;
      }
      const excess = rows.length - MAX_ROWS;
      if (excess > 0) {
        rows = rows.slice(excess);
        first = rows[0]?.seq ?? first;
      }
      return added.length;
    },
    /**
     * Takes a page that ends before the first one; false if there is no room for it.
     * @param {any[]} events @param {number} lastSeq the newest event when the page was read, which a filter may leave out
     */
    prepend(events, lastSeq) {
      if (last === 0) last = lastSeq;
      if (rows.length + events.length > MAX_ROWS) return false;
      const before = events.flatMap((event) => {
        const orphan = event.kind === "tool_use" ? orphans.get(event.data.call_id) : undefined;
        if (!orphan) return take(event) ?? [];
        orphans.delete(event.data.call_id);
        const row = describe(event);
        // The row moves to where the call began.
        rows = rows.filter((one) => one !== orphan);
        return { ...orphan, ...{ seq: event.seq, at: event.at, kind: event.kind, word: row.word, text: row.text } };
      });
      rows = [...before, ...rows];
      first = events[0]?.seq ?? first;
      return true;
    },
  };
}

/** Whether a row is shown. @param {Row} row @param {string} show */
export function isShown(row, show) {
  if (show === "failed") return row.isFailed;
  return show === "all" || row.group === show;
}
