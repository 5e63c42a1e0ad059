// What a job does: its events as rows, the newest first read, followed while it works; and one event with all of its texts.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get } from "../../api.js";
import { bind } from "../../keys.js";
import { place, setQuery } from "../../router.js";
import { generation } from "../../session.js";
import { resyncs } from "../../store.js";
import { openStream } from "../../stream.js";
import { createTrace, isShown } from "../../trace.js";
import { T } from "../../texts.js";
import { Copy, Failed, Icon, Loading, Text, Time, html, useLoad } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { FINISHED } from "./row.js";

/** @typedef {import("../../trace.js").Row} Row */

const PAGE = 200;
const MAX_TEXT = 400;
const ROW_PX = 30;
const FRAME_MS = 100;
/** A tab that is hidden for so long follows no job. */
const HIDDEN_MS = 30_000;
/** What is read for each choice of what is shown. */
const FILTERS = {
  all: {},
  messages: { kind: "message,reasoning,plan,result" },
  tools: { kind: "tool_use,tool_result" },
  failed: { failed: true },
  egress: { kind: "egress" },
};
/** @typedef {keyof typeof FILTERS} Shown */
const SHOWN = /** @type {Shown[]} */ (Object.keys(FILTERS));

/** Reads and follows the events of a job. @param {string} id @param {boolean} isFinished @param {Shown} show */
function useTrace(id, isFinished, show) {
  const trace = useMemo(createTrace, [id, show, resyncs.value]);
  const [, redraw] = useState(0);
  const [state, setState] = useState(/** @type {{ error: Error | null, isLoading: boolean, hasMore: boolean }} */ ({ error: null, isLoading: true, hasMore: false }));
  const isReading = useRef(false);
  const [tries, setTries] = useState(0);

  /** @param {number} before */
  async function readBefore(before) {
    if (isReading.current) return;
    isReading.current = true;
    try {
      const page = await get("/api/jobs/{id}/events", { path: { id }, query: { ...FILTERS[show], before, limit: PAGE, max_text: MAX_TEXT } });
      const hasRoom = trace.prepend(page.items, page.last_seq);
      setState({ error: null, isLoading: false, hasMore: hasRoom && page.next_before !== null });
    } catch (error) {
      setState((known) => ({ ...known, error: /** @type {Error} */ (error), isLoading: false }));
    }
    isReading.current = false;
  }

  useEffect(() => {
    let isOver = false;
    /** @type {ReturnType<typeof openStream> | null} */
    let stream = null;
    /** @type {any[]} */
    let waiting = [];
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let timer;
    /** @type {ReturnType<typeof setTimeout> | undefined} */
    let hidden;
    const apply = () => {
      timer = undefined;
      const events = waiting;
      waiting = [];
      if (trace.append(events) > 0) redraw((count) => count + 1);
    };
    const open = () => {
      if (isOver || stream || isFinished) return;
      const [, last] = trace.range();
      stream = openStream({
        url: (after) => `/api/jobs/${id}/events?after=${after ?? last}`,
        after: String(last),
        onConnection: () => {},
        onMessage({ event, data }) {
          if (event === "end" || event === "resync" || data === null) return;
          waiting.push(JSON.parse(data));
          timer ??= setTimeout(apply, FRAME_MS);
        },
      });
    };
    const close = () => (stream?.close(), (stream = null));
    const onVisibility = () => {
      clearTimeout(hidden);
      if (document.hidden) hidden = setTimeout(close, HIDDEN_MS);
      else open();
    };
    document.addEventListener("visibilitychange", onVisibility);
    readBefore(Number.MAX_SAFE_INTEGER).then(() => !document.hidden && open());
    return () => {
      isOver = true;
      close();
      clearTimeout(timer);
      clearTimeout(hidden);
      document.removeEventListener("visibilitychange", onVisibility);
    };
  }, [trace, isFinished, tries, generation.value]);

  const readMore = () => {
    const [first] = trace.range();
    if (state.hasMore && first > 1) void readBefore(first);
  };
  return { trace, ...state, readMore, again: () => setTries(tries + 1) };
}

/** @param {{ id: string, seq: number, output: (call: string) => string }} props */
function Selected({ id, seq, output }) {
  const { value, error, isLoading, again } = useLoad((signal) => get("/api/jobs/{id}/events/{seq}", { path: { id, seq: String(seq) }, signal }), [id, seq]);
  const result = useLoad(async (signal) => {
    const call = /** @type {any} */ (value)?.data?.call_id;
    if (!call || value?.kind !== "tool_use") return null;
    const page = await get("/api/jobs/{id}/events", { path: { id }, query: { after: seq, call_id: call, kind: "tool_result", limit: 1 }, signal });
    return /** @type {any} */ (page.items[0] ?? null);
  }, [value?.seq]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!value || isLoading) return html`<${Loading} />`;
  const event = /** @type {any} */ (value);
  const call = event.data.call_id;
  return html`
    <h3>${event.data.tool ?? event.kind} <span class="note">${seq} · <${Time} at=${event.at} /></span> <${Copy} text=${JSON.stringify(event, null, 2)} label="JSON" name="JSON" /></h3>
    ${event.data.reasoning && html`<p><span class="note">${T.trace.why}</span> <${Text}>${event.data.reasoning}<//></p>`}
    <pre><${Text}>${textOf(event)}<//></pre>
    ${result.value && html`<h3>${T.trace.output} <span class="note">${result.value.data.success ? T.trace.ok : T.trace.failed}${result.value.data.truncated ? ` · ${T.trace.cut}` : ""}</span> <${Copy} text=${result.value.data.output} name=${T.trace.output} /></h3>
      <pre><${Text}>${result.value.data.output}<//></pre>`}
    ${!result.value && call && output(call) && html`<h3>${T.trace.live}</h3><pre><${Text}>${output(call)}<//></pre>`}
  `;
}

/** @param {any} event */
function textOf({ kind, data }) {
  if (kind === "tool_use") return typeof data.input?.command === "string" ? `$ ${data.input.command}` : JSON.stringify(data.input, null, 2);
  const text = data.content ?? data.output ?? data.text ?? data.message;
  return typeof text === "string" && text !== "" ? text : JSON.stringify(data, null, 2);
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Activity({ job }) {
  const query = place.value.query;
  const show = SHOWN.find((name) => name === query.get("show")) ?? "all";
  const { trace, error, isLoading, hasMore, readMore, again } = useTrace(job.id, FINISHED.has(job.state), show);
  const selected = Number(query.get("e")) || null;
  const [isFollowing, setIsFollowing] = useState(selected === null);
  const rows = trace.rows().filter((row) => isShown(row, show));
  const [first, last] = trace.range();
  const select = (/** @type {number | null} */ seq) => setQuery({ e: seq === null ? null : String(seq) });
  /** @param {number} step */
  const move = (step) => {
    const index = rows.findIndex(({ seq }) => seq === selected);
    const next = rows[index < 0 ? (step > 0 ? 0 : rows.length - 1) : Math.min(rows.length - 1, Math.max(0, index + step))];
    if (next) (setIsFollowing(false), select(next.seq));
  };
  const mover = useRef(move);
  mover.current = move;
  useEffect(() => bind([
    { key: "j", text: T.keys.next, run: () => mover.current(1) },
    { key: "k", text: T.keys.previous, run: () => mover.current(-1) },
  ]), []);
  const draw = (/** @type {Row} */ row) => html`
    <button type="button" class="event ${row.isFailed ? "failed" : ""}" aria-pressed=${row.seq === selected} onClick=${() => select(row.seq === selected ? null : row.seq)}>
      <span class="at"><${Time} at=${row.at} /></span><${Icon} name=${row.icon} /><span class="word">${row.word}</span>
      <span class="text"><${Text}>${row.text}<//></span><span class="note">${row.note}</span>
    </button>`;
  return html`
    <p class="line">
      <span class="note">${T.trace.show}</span>
      ${SHOWN.map((name) => html`<button key=${name} type="button" class="small" aria-pressed=${name === show} onClick=${() => setQuery({ show: name === "all" ? null : name })}>${T.trace.filters[name]}</button>`)}
    </p>
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${isLoading && rows.length === 0 && html`<${Loading} />`}
    <div class="trace ${selected === null ? "" : "split"}">
      <${VirtualRows} rows=${rows} rowHeight=${ROW_PX} label=${T.job.tabs.activity} draw=${draw} selected=${selected}
        isFollowing=${isFollowing} onFollow=${setIsFollowing} onTop=${readMore} />
      ${selected !== null && html`<aside class="selected" aria-label=${T.trace.selected}>
        <button type="button" class="small close" onClick=${() => select(null)}>${T.close}</button>
        <${Selected} id=${job.id} seq=${selected} output=${trace.output} /></aside>`}
    </div>
    <p class="note">${show === "all" ? last > 0 && (first <= 1 ? T.trace.complete(last) : T.trace.part(first, last)) : !isLoading && T.trace.filtered(rows.length, hasMore)}
      ${!isFollowing && html` <button type="button" class="link" onClick=${() => setIsFollowing(true)}>${T.trace.follow}</button>`}</p>
  `;
}
