// One routine: how it is, its last runs, when it fires next, its definition, and what can be done with it.

import { useEffect, useLayoutEffect } from "preact/hooks";
import { get } from "../api.js";
import { cost, tokens } from "../format.js";
import { bindRows } from "../keys.js";
import { readSince } from "../live.js";
import { Fact, Meter, Table, useObject } from "../parts.js";
import { go, place } from "../router.js";
import { generation, who } from "../session.js";
import { putRoutine, putRun, resyncs, routines, runs } from "../store.js";
import { T } from "../texts.js";
import { Copy, CopyAs, Empty, Heading, Id, Text, Time, html, now, useLoad, useSubject } from "../ui.js";
import { Actions } from "./routine/actions.js";
import { definitionOf } from "./routine/definition.js";
import { Firings, Saved, Warned } from "./routine/preview.js";
import { Bars, RoutineState, RunState, interval, short, textOf, tookMs, triggerWords, whyOf } from "./routine/words.js";

// --- the newest deliveries to the webhook of a routine, and what became of each

const LIMIT = 20;

/** @param {{ id: string, fired: number }} props `fired` changes with each run */
export function Deliveries({ id, fired }) {
  const { value, status } = useLoad((signal) => get("/api/routines/{id}/deliveries", { path: { id }, query: { limit: LIMIT }, signal }), [id, fired, generation.value]);
  return html`
    <h2>${T.routine.deliveries}</h2>
    ${status}
    ${value?.items.length === 0 && html`<${Empty}><p>${T.routine.noDeliveries}</p><//>`}
    ${value && value.items.length > 0 && html`
      <${Table} name=${T.routine.deliveries} columns=${T.routine.deliveryColumns}>${value.items.map(({ at, id: name, verdict, status, run_id: run }, index) => html`
          <tr key=${index}><td><${Time} at=${at} /></td><td>${verdict}</td><td>${status}</td><td class="clip"><${Text}>${name}<//></td>
            <td>${run && html`<a href=${`/runs/${run}`}>${T.routine.show}</a>`}</td></tr>`)}<//>`}
  `;
}

// --- the definition of a routine for reading: what fires it, what it does, within which limits, and whom it tells

/** @typedef {import("../api.js").schemas["Routine"]} Routine */

/** @param {unknown} value */
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The values of an object that are set, but for those that are shown otherwise. @param {{ of: Record<string, any>, but?: string[] }} props */
const Facts = ({ of, but = [] }) => Object.entries(of).filter(([name, value]) => !but.includes(name) && value !== null && value !== undefined && value !== "")
  .map(([name, value]) => html`<${Fact} key=${name} name=${name.replaceAll("_", " ")}><${Text}>${name.endsWith("_seconds") && Number(value) > 0 ? interval(value) : plain(value)}<//><//>`);

/** How much of the budget of the period is used. @param {{ routine: Routine }} props */
function Budget({ routine }) {
  const { budget } = routine.guardrails;
  const used = /** @type {{ budget_used?: { cost_usd: number | null, tokens: number, since: string } | null }} */ (routine).budget_used;
  if (!budget) return null;
  const name = `${T.routine.budget} / ${T.routine.per[budget.per ?? "day"]}`;
  return html`
    <p class="meters">
      ${budget.max_cost_usd != null && html`<${Meter} name=${name} used=${used?.cost_usd ?? 0} limit=${budget.max_cost_usd} text=${`${used ? cost(used.cost_usd) : "–"} / ${cost(budget.max_cost_usd)}`} />`}
      ${budget.max_tokens != null && html`<${Meter} name=${name} used=${used?.tokens ?? 0} limit=${budget.max_tokens} text=${`${used ? tokens(used.tokens) : "–"} / ${tokens(budget.max_tokens)}`} />`}
      ${used?.since && html`<span class="note">${T.runs.since} <${Time} at=${used.since} /></span>`}
    </p>
  `;
}

/** @param {{ routine: Routine }} props */
export function Definition({ routine }) {
  const { trigger, action, guardrails, notify } = routine;
  const [name, text] = textOf(action);
  const address = trigger.type === "webhook" ? `${location.origin}/api/webhooks/${trigger.path}` : null;
  const shown = { cron: ["schedule"], at: ["at"], every: ["every_seconds"], event: ["channel", "pattern"], system_event: ["source", "event_type"], webhook: ["path"] };
  const rest = { wake_mode: routine.wake_mode, deliver: routine.deliver, post_to_main: routine.post_to_main, post_to_main_prefix: routine.post_to_main_prefix, persist_payload: routine.persist_payload };
  return html`
    <h2>${T.editRoutine.trigger}</h2>
    <p><code><${Text}>${triggerWords(trigger)}<//></code>${address && html` ${T.routine.address} <code><${Text}>${address}<//></code> <${Copy} text=${address} name=${address} />`}</p>
    <dl class="facts"><${Facts} of=${trigger} but=${["type", ...(shown[/** @type {"cron"} */ (trigger.type)] ?? [])]} /></dl>
    <h2>${T.editRoutine.action}: ${T.routine.actions[/** @type {"full_job"} */ (action.type)] ?? action.type} <${Copy} text=${text} name=${T.routine.action} /></h2>
    <pre tabindex="0" role="group" aria-label=${T.routine.action}><${Text}>${text}<//></pre>
    <dl class="facts"><${Facts} of=${action} but=${["type", name]} /></dl>
    <details class="more"><summary>${T.routine.guardrails}</summary>
      <dl class="facts"><${Facts} of=${guardrails} /></dl></details>
    <${Budget} routine=${routine} />
    <details class="more"><summary>${T.routine.notify}</summary>
      <dl class="facts"><${Facts} of=${notify} /><${Facts} of=${rest} /></dl></details>
  `;
}

/** @typedef {import("../store.js").Run} Run */

export const title = T.routine.title;

const MAX_RUNS = 30;
const TIMES = 5;
const BAR = { width: 24, height: 72 };

/** @param {string} id @param {AbortSignal} signal */
async function read(id, signal) {
  const { seen, ...routine } = await readSince(() => get("/api/routines/{id}", { path: { id }, signal }));
  putRoutine(routine, seen);
  return routine;
}

/** @param {string} id @param {AbortSignal} signal */
async function readRuns(id, signal) {
  const { items, seen } = await readSince(() => get("/api/routines/{id}/runs", { path: { id }, query: { limit: MAX_RUNS }, signal }));
  for (const run of items.toReversed()) putRun(run, seen);
  return items.map((run) => run.id);
}

/** The last runs as the store has them, the newest first. @param {string} id */
function useRuns(id) {
  const { value, status } = useLoad((signal) => readRuns(id, signal), [id, generation.value, resyncs.value]);
  const rows = runs.all().filter((run) => run.routine_id === id).sort((one, other) => (one.id < other.id ? 1 : -1)).slice(0, MAX_RUNS);
  useEffect(() => (runs.show(value ?? []), () => runs.show([])), [value]);
  return { rows, isRead: value !== null, status };
}

/** @param {{ routine: Routine }} props */
function Head({ routine }) {
  const why = routine.disabled_reason;
  return html`
    <${Heading}><${Text}>${routine.name}<//><//>
    <p class="line"><${RoutineState} status=${routine.status} /> <${Id} id=${routine.id} />
      ${routine.verified && html`<span class="note" title=${T.routine.verifiedNote}>${T.routine.verified}</span>`}
      ${why && html`<span class="note">${T.routine.reasons[why] ?? why}${routine.disabled_at && html`, <${Time} at=${routine.disabled_at} />`}</span>`}
      ${routine.consecutive_failures > 0 && html`<span class="note">${T.routines.failures(routine.consecutive_failures)}</span>`}
      ${who.value?.role === "admin" && html`<span class="note"><${Text}>${routine.user_id}<//></span>`}</p>
    ${routine.description && html`<p class="text"><${Text}>${routine.description}<//></p>`}
  `;
}

/** @param {{ run: Run }} props */
function Row({ run }) {
  const ms = tookMs(run, run.status === "running" ? now.value : 0);
  return html`
    <tr><td><a class="open" href=${`/runs/${run.id}`}><${RunState} status=${run.status} /></a></td><td><${Time} at=${run.created_at} /></td>
      <td class="number">${short(ms)}</td><td class="number">${tokens(run.tokens_used)}</td><td class="number">${cost(run.cost_usd)}</td>
      <td><span class="clamped"><${Text}>${whyOf(run) || run.result_summary}<//></span></td></tr>
  `;
}

/** @param {{ id: string }} props */
function LastRuns({ id }) {
  const { rows, isRead, status } = useRuns(id);
  useLayoutEffect(() => bindRows("td > a.open"), []);
  return html`
    <h2>${T.routine.runs}</h2>
    ${status}
    ${isRead && rows.length === 0 && html`<${Empty}><p>${T.routine.noRuns}</p><//>`}
    ${rows.length > 0 && html`
      <div class="chart"><${Bars} runs=${rows.toReversed()} width=${BAR.width} height=${BAR.height} /></div>
      <p class="note">${T.routine.bars} <a href=${`/runs?routine=${id}`}>${T.routine.allRuns}</a></p>
      <${Table} name=${T.routine.runs} columns=${T.routine.runColumns} numbers=${[2, 3, 4]} look="runs">${rows.map((run) => html`<${Row} key=${run.id} run=${run} />`)}<//>`}
  `;
}

/** @param {{ routine: Routine }} props */
function Upcoming({ routine: { id, rev, enabled, trigger, next_fire_at: next } }) {
  const { value, status } = useLoad((signal) => get("/api/routines/{id}/upcoming", { path: { id }, query: { count: TIMES }, signal }), [id, rev, enabled, next, generation.value]);
  return html`
    <h2>${T.routine.upcoming}</h2>
    ${status}
    ${value && (value.items.length === 0 ? html`<p class="note">${T.routine.noUpcoming}</p>`
      : html`<${Firings} items=${value.items} own=${trigger.type === "cron" ? trigger.timezone : null} />`)}
  `;
}

/** @param {{ routine: Routine }} props */
function AsText({ routine }) {
  const text = JSON.stringify(definitionOf(routine), null, 2);
  // No line of such a text is the mark alone.
  const command = `gantry routine create -f - <<'EOF'\n${text}\nEOF`;
  return html`
    <p class="note line">${T.routine.copyDefinition} <${Copy} text=${text} label="JSON" /> <${Copy} text=${command} label="CLI" /></p>
    <details class="more"><summary>JSON</summary><pre tabindex="0" role="group" aria-label="JSON"><${Text}>${text}<//></pre></details>
  `;
}

export default function RoutinePage() {
  const { params: { id = "" } } = place.value;
  // Its definition, or the text of its last good run, is another one.
  const { value: routine, failure, again, status } = useObject(routines, id, (signal) => read(id, signal), ["rev", "run_count", "status"], ["description"]);
  useSubject(routine?.name);
  if (!routine) return html`<${Heading}>${title}<//>${status}`;
  return html`
    <${Head} routine=${routine} />
    ${failure}
    ${who.value?.role !== "viewer" && html`<${Actions} routine=${routine} again=${again} onRemoved=${() => go("/routines")}><a class="button" href=${`/routines/${id}/edit`}>${T.routine.edit}</a><//>`}
    <${Saved} id=${id} />
    ${routine.enabled && who.value?.role !== "viewer" && routine.user_id === who.value?.user && html`<${Warned} routine=${routine} />`}
    <${LastRuns} id=${id} />
    <${Upcoming} routine=${routine} />
    <${Definition} routine=${routine} />
    ${routine.trigger.type === "webhook" && html`<${Deliveries} id=${id} fired=${routine.run_count} />`}
    ${routine.state && html`<details class="more"><summary>${T.routine.state}</summary><pre tabindex="0" role="group" aria-label=${T.routine.state}><${Text}>${routine.state}<//></pre></details>`}
    <h2>${T.routine.definition}</h2>
    <${AsText} routine=${routine} />
    <${CopyAs} cli=${`gantry routine show ${id}`} path=${`/api/routines/${id}`} />
  `;
}
