// What waits for a person: calls of tools, oldest first, then jobs to review and stuck ones. What was answered stays where it is.

import { useEffect } from "preact/hooks";
import { get } from "../../api.js";
import { bindRows } from "../../keys.js";
import { position, positioned } from "../../live.js";
import { generation, who } from "../../session.js";
import { gates, jobs, readGates, resyncs } from "../../store.js";
import { T } from "../../texts.js";
import { CopyAs, Empty, html, useLoad } from "../../ui.js";
import { Card, bindGateKeys } from "../gate/card.js";
import { JobRow } from "../job/row.js";
import { Added } from "./added.js";

const STATES = ["submitted", "stuck"];
/** So many cards and jobs are shown at once. */
const LIMIT = 50;

/** The ids of rows, oldest first: ids begin with the time. @param {{ id: string }[]} rows */
const idsOf = (rows) => rows.map(({ id }) => id).sort();

/** @param {AbortSignal} signal */
async function read(signal) {
  await positioned();
  const seen = position();
  const query = { state: STATES.join(), limit: LIMIT };
  const [page] = await Promise.all([get("/api/jobs", { query, signal }), readGates(signal)]);
  for (const job of page.items) jobs.put(job, seen);
  const calls = idsOf(gates.all().filter(({ state }) => state === "pending"));
  return { calls, jobs: idsOf(page.items), seen, hasMoreJobs: Boolean(page.next_cursor) };
}

/**
 * How many have come since the lists were read. Pure.
 * @param {{ id: string, state: string }[]} calls @param {{ id: string, state: string }[]} heard jobs that were heard of since
 * @param {{ calls: string[], jobs: string[] }} listed
 */
export function countAdded(calls, heard, listed) {
  const known = new Set([...listed.calls, ...listed.jobs]);
  return calls.filter(({ id, state }) => state === "pending" && !known.has(id)).length + heard.filter(({ id, state }) => STATES.includes(state) && !known.has(id)).length;
}

export function Waiting() {
  const { value, isLoading, again, status } = useLoad(read, [generation.value, resyncs.value]);
  useEffect(() => bindRows(".waiting a.open"), []);
  useEffect(() => bindGateKeys(false), []);
  useEffect(() => {
    gates.show(value?.calls ?? []);
    jobs.show(value?.jobs ?? []);
    return () => (gates.show([]), jobs.show([]));
  }, [value]);
  const calls = value?.calls.slice(0, LIMIT).flatMap((id) => gates.get(id) ?? []) ?? [];
  const rows = value?.jobs.flatMap((id) => jobs.get(id) ?? []) ?? [];
  const others = value?.calls.slice(LIMIT).filter((id) => gates.get(id)?.state === "pending").length ?? 0;
  const added = value && !isLoading ? countAdded(gates.all(), jobs.since(value.seen), value) : 0;
  return html`
    <${Added} count=${added} show=${again} />
    ${status}
    ${value && calls.length + rows.length === 0 && html`<${Empty}><p>${T.inbox.none}</p><//>`}
    <div class="waiting">
      ${calls.length > 0 && html`<h2>${T.inbox.calls}</h2>`}
      ${calls.map((gate) => html`<${Card} key=${gate.id} gate=${gate} level=${3} />`)}
      ${others > 0 && html`<p class="line"><span class="note">${T.inbox.others(others)}</span> <button type="button" onClick=${again}>${T.trace.show}</button></p>`}
      ${rows.length > 0 && html`<h2>${T.inbox.jobs}</h2><ul class="rows">${rows.map((job) => html`<${JobRow} key=${job.id} job=${job} />`)}</ul>`}
    </div>
    ${value?.hasMoreJobs && html`<p><a href=${`/jobs?state=${STATES.join()}`}>${T.inbox.allJobs}</a></p>`}
    ${who.value?.role === "viewer" && calls.length > 0 && html`<p class="note">${T.gate.viewer}</p>`}
    <${CopyAs} cli="gantry gate list" path="/api/gates" />
  `;
}
