// What a job does: its events as rows, the newest first read, followed while it works; and one event with all of its texts.

import { useEffect, useRef, useState } from "preact/hooks";
import { get } from "../../api.js";
import { clock, date } from "../../format.js";
import { place, setQuery } from "../../router.js";
import { FINISHED } from "../../store.js";
import { T } from "../../texts.js";
import { MAX_ROWS } from "../../trace.js";
import { Copy, Failed, Icon, Loading, Text, Time, html, now, useLoad, zone } from "../../ui.js";
import { VirtualRows } from "../../virtual.js";
import { SHOWN, useTrace } from "./use_trace.js";

/** @typedef {import("../../trace.js").Row} Row */
/** @typedef {{ text: string, from: number }} Written what a call has written since `from` */

const ROW_PX = 30;
/** On small windows the selected event takes the place of the list. */
const SMALL = "(max-width: 45rem)";

/** @param {any} event */
function textOf({ kind, data }) {
  if (kind === "tool_use") return typeof data.input?.command === "string" ? `$ ${data.input.command}` : JSON.stringify(data.input, null, 2);
  const text = data.content ?? data.output ?? data.text ?? data.message;
  return typeof text === "string" && text !== "" ? text : JSON.stringify(data, null, 2);
}

/** The result of a call. @param {{ result: any }} props */
const Output = ({ result }) => html`
  <h3>${T.trace.output} <span class="note">${result.data.success ? T.trace.ok : T.trace.failed}${result.data.truncated ? ` · ${T.trace.cut}` : ""}</span> <${Copy} text=${result.data.output} name=${T.trace.output} /></h3>
  <pre><${Text}>${result.data.output}<//></pre>
`;

/**
 * One event, and of a call its output: so far, and then its result. `last` and `isOpen` are of its row, which changes when the call ends.
 * @param {{ id: string, seq: number, last: number, isOpen: boolean, output: Written }} props
 */
function Selected({ id, seq, last, isOpen, output }) {
  const { value, error, isLoading, again } = useLoad((signal) => get("/api/jobs/{id}/events/{seq}", { path: { id, seq: String(seq) }, signal }), [id, seq]);
  const event = /** @type {any} */ (value);
  const call = event?.kind === "tool_use" ? event.data.call_id : undefined;
  const result = useLoad(async (signal) => {
    if (!call || isOpen) return null;
    const page = await get("/api/jobs/{id}/events", { path: { id }, query: { after: seq, call_id: call, kind: "tool_result", limit: 1 }, signal });
    return /** @type {any} */ (page.items[0] ?? null);
  }, [call, isOpen, isOpen ? 0 : last]);
  // What it wrote before the page followed it.
  const before = useLoad(async (signal) => {
    if (!call || !isOpen) return [];
    const page = await get("/api/jobs/{id}/events", { path: { id }, query: { before: Number.MAX_SAFE_INTEGER, call_id: call, kind: "log", limit: 200 }, signal });
    return /** @type {any[]} */ (page.items);
  }, [call]);
  // What it wrote stays until its result is there.
  const written = useRef("");
  if (isOpen) written.current = (before.value ?? []).filter((one) => output.from === 0 || one.seq < output.from).map((one) => one.data.text).join("") + output.text;
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!event || isLoading) return html`<${Loading} />`;
  return html`
    <h3><${Text}>${event.data.tool ?? event.kind}<//> <span class="note">${seq} · <${Time} at=${event.at} /></span> <${Copy} text=${JSON.stringify(event, null, 2)} label="JSON" name="JSON" /></h3>
    ${event.data.reasoning && html`<p><span class="note">${T.trace.why}</span> <${Text}>${event.data.reasoning}<//></p>`}
    <pre><${Text}>${textOf(event)}<//></pre>
    ${result.error && html`<${Failed} error=${result.error} again=${result.again} />`}
    ${result.value ? html`<${Output} result=${result.value} />` : written.current && html`<h3>${T.trace.live}</h3><pre><${Text}>${written.current}<//></pre>`}
  `;
}

/** The time of a row, with its day where that changes. @param {{ row: Row, before: Row | undefined }} props */
function At({ row, before }) {
  if (!row.at) return html`<span class="at"></span>`;
  const at = Date.parse(row.at);
  const day = date(at, zone.value);
  const known = date(before?.at ? Date.parse(before.at) : now.peek(), zone.value);
  return html`<span class="at"><time datetime=${row.at} title=${`${date(at, "UTC")}, ${clock(at, "UTC")} UTC`}>${clock(at, zone.value)}</time></span>${day !== known && html`<span class="note day">${day}</span>`}`;
}

/** The jobs whose first failure was selected: it can be closed. @type {Set<string>} */
const offered = new Set();

/** Selects the first failure of a failed job that is opened without a selected event. @param {import("../../api.js").schemas["Job"]} job @param {boolean} isSelected */
function useFirstFailure({ id, state, reason }, isSelected) {
  const [isWanted] = useState(!isSelected && !offered.has(id) && ((state === "failed" && reason !== "rejected") || state === "stuck"));
  useEffect(() => void offered.add(id), [id]);
  const { value, isLoading, error } = useLoad(async (signal) => {
    if (!isWanted) return null;
    const page = await get("/api/jobs/{id}/events", { path: { id }, query: { after: 0, failed: "true", limit: 1, max_text: 200 }, signal });
    return page.items[0]?.seq ?? null;
  }, [id]);
  useEffect(() => {
    if (value !== null && !place.peek().query.has("e")) setQuery({ e: String(value) });
  }, [value]);
  return isWanted && isLoading && !error;
}

/** @param {{ trace: ReturnType<typeof import("../../trace.js").createTrace>, show: string }} props */
function Completeness({ trace, show }) {
  const [first, last] = trace.range();
  if (trace.isFull()) return T.trace.full(MAX_ROWS);
  if (trace.hasGaps()) return T.trace.gaps(first, last);
  if (show !== "all") return T.trace.filtered(trace.rows().length, trace.hasEarlier());
  if (last === 0) return null;
  if (trace.isComplete()) return T.trace.complete(last);
  return `${T.trace.part(first, last)}${first > 1 && !trace.hasEarlier() ? ` ${T.trace.lost(1, first - 1)}` : ""}`;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
function Rows({ job }) {
  const query = place.value.query;
  const show = SHOWN.find((name) => name === query.get("show")) ?? "all";
  const wanted = Number(query.get("e")) || null;
  const { trace, error, isLoading, canReadMore, readMore, load, again } = useTrace(job.id, FINISHED.has(job.state), show, wanted);
  const rows = trace.rows();
  // The result of a call is in the call's row.
  const row = wanted === null ? undefined : rows.find(({ seq }) => seq === wanted) ?? rows.find(({ last }) => last === wanted);
  const selected = row?.seq ?? wanted;
  const [isFollowing, setIsFollowing] = useState(wanted === null);
  const aside = useRef(/** @type {HTMLElement | null} */ (null));
  useEffect(() => {
    if (selected !== null && matchMedia(SMALL).matches) aside.current?.focus();
  }, [selected]);

  const select = (/** @type {number | null} */ seq) => setQuery({ e: seq === null ? null : String(seq) });
  const move = (/** @type {Row} */ { seq }) => (setIsFollowing(false), select(seq));
  const press = (/** @type {Row} */ one) => {
    if (one.kind === "gap") load(one);
    else if (one.kind !== "lost") select(one.seq === selected ? null : one.seq);
  };
  const draw = (/** @type {Row} */ one, /** @type {number} */ index, /** @type {boolean} */ isActive) => html`
    <button type="button" class="event ${one.isFailed ? "failed" : ""}" data-seq=${one.seq} tabindex=${isActive ? 0 : -1} aria-pressed=${one.seq === selected}
      onClick=${() => press(one)}>
      <${At} row=${one} before=${rows[index - 1]} /><${Icon} name=${one.icon} /><span class="word"><${Text}>${one.word}<//></span>
      <span class="text"><${Text}>${one.text}<//></span><span class="note"><${Text}>${one.note}<//></span>
    </button>`;
  return html`
    <p class="line">
      <span class="note">${T.trace.show}</span>
      ${SHOWN.map((name) => html`<button key=${name} type="button" class="small" aria-pressed=${name === show} onClick=${() => setQuery({ show: name === "all" ? null : name }, { isPushed: true })}>${T.trace.filters[name]}</button>`)}
    </p>
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${isLoading && rows.length === 0 && html`<${Loading} />`}
    <div class="trace ${selected === null ? "" : "split"}">
      <${VirtualRows} key=${show} rows=${rows} rowHeight=${ROW_PX} label=${T.job.tabs.activity} draw=${draw} selected=${selected}
        target=".event" onMove=${move} isFollowing=${isFollowing} onFollow=${setIsFollowing} onTop=${readMore} />
      ${selected !== null && html`<aside class="selected" aria-label=${T.trace.selected} tabindex="-1" ref=${aside}>
        <button type="button" class="small close" onClick=${() => select(null)}>${T.close}</button>
        <${Selected} key=${selected} id=${job.id} seq=${selected} last=${row?.last ?? 0} isOpen=${row?.isOpen ?? false} output=${{ text: trace.output(row?.call ?? null), from: trace.outputFrom(row?.call ?? null) }} /></aside>`}
    </div>
    <p class="note line">${!isLoading && html`<span><${Completeness} trace=${trace} show=${show} /></span>`}
      ${canReadMore && html`<button type="button" class="link" onClick=${readMore}>${T.trace.earlier}</button>`}
      ${!isFollowing && html`<button type="button" class="link" onClick=${() => setIsFollowing(true)}>${T.trace.follow}</button>`}</p>
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Activity({ job }) {
  const isSearching = useFirstFailure(job, place.value.query.has("e"));
  return isSearching ? html`<${Loading} />` : html`<${Rows} job=${job} />`;
}
