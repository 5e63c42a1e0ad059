// Everything else about a job: what it was asked, its limits and container with its output, and the object as the API returns it.

import { useState } from "preact/hooks";
import { address, get, read } from "../../api.js";
import { bytes, cost, tokens, took } from "../../format.js";
import { Fact, Table } from "../../parts.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Empty, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";

// --- the model calls and tool calls of a job, with what they took and cost

const LIMIT = 200;

/** @param {{ title: string, names: string[], rows: any[][], isCut: boolean }} props */
const CallTable = ({ title, names, rows, isCut }) => html`
  <h2>${title}</h2>
  ${rows.length === 0 ? html`<${Empty}><p>${T.calls.none}</p><//>` : html`
    <${Table} name=${title} columns=${names}>${rows.map((cells, index) => html`<tr key=${index}>${cells.map((cell, column) => html`<td key=${column}>${cell}</td>`)}</tr>`)}<//>
    ${isCut && html`<p class="note">${T.calls.cut(LIMIT)}</p>`}`}
`;

/** @param {boolean | null | undefined} success */
const outcome = (success) => (success === null || success === undefined ? T.calls.running : success ? T.trace.ok : T.trace.failed);

/** @param {{ models: import("../../api.js").Answer<"/api/jobs/{id}/llm-calls", "get">, actions: import("../../api.js").Answer<"/api/jobs/{id}/actions", "get"> }} props */
export const CallTables = ({ models, actions }) => html`
  <${CallTable} title=${T.calls.models} names=${T.calls.modelColumns} isCut=${Boolean(models.next_cursor)} rows=${models.items.map((call) => [
    html`<${Time} at=${call.at} />`, html`<${Text}>${call.model}<//>`, tokens(call.usage.input_tokens ?? 0), tokens(call.usage.output_tokens ?? 0), took(call.duration_ms), cost(call.cost_usd),
    html`<${Text}>${call.error ?? call.finish_reason ?? ""}<//>`])} />
  <${CallTable} title=${T.calls.tools} names=${T.calls.toolColumns} isCut=${Boolean(actions.next_cursor)} rows=${actions.items.map((call) => [
    html`<${Time} at=${call.at} />`, html`<${Text}>${call.tool}<//>`, outcome(call.success), took(call.duration_ms), call.cost_usd === null ? "" : cost(call.cost_usd),
    html`<${Text}>${call.reasoning ?? ""}<//>`])} />
`;

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Calls({ job }) {
  const { id, usage } = job;
  const { value, status } = useLoad(async (signal) => {
    const options = { path: { id }, query: { limit: LIMIT }, signal };
    const [models, actions] = await Promise.all([get("/api/jobs/{id}/llm-calls", options), get("/api/jobs/{id}/actions", options)]);
    return { models, actions };
  }, [id, job.state, usage.llm_calls, usage.tool_calls, generation.value]);
  return html`
    ${status}
    ${value && html`<${CallTables} ...${value} />`}
  `;
}

/** So much of the container's output is shown. */
const MAX_OUTPUT = 256 * 1024;

/** What the job's containers wrote; it is read when it is asked for. @param {{ id: string, state: string }} props */
function Output({ id, state }) {
  const url = address("/api/jobs/{id}/logs", { path: { id } });
  const { value, error, again } = useLoad((signal) => read(url, MAX_OUTPUT, signal), [url, state, generation.value]);
  if (error) return html`<${Failed} error=${error} again=${again} />`;
  if (!value) return html`<${Loading} />`;
  const text = new TextDecoder().decode(value.content);
  return html`
    ${value.isCut && html`<p class="banner">${T.files.cut(bytes(MAX_OUTPUT))} <a href=${url} download=${`${id}.log`}>${T.files.download}</a></p>`}
    ${text === "" ? html`<p class="note">${T.job.noOutput}</p>` : html`<pre tabindex="0" role="group" aria-label=${T.job.containerOutput}><${Text}>${text}<//></pre>`}
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Details({ job }) {
  const [isOutputOpen, setIsOutputOpen] = useState(false);
  const text = JSON.stringify(job, null, 2);
  const container = job.container;
  const times = /** @type {const} */ (["created_at", "started_at", "last_activity_at", "finished_at"]);
  return html`
    <h2>${T.details.prompt} <${Copy} text=${job.prompt} name=${T.details.prompt} /></h2>
    <pre><${Text}>${job.prompt}<//></pre>
    <dl class="facts">
      ${times.map((name) => job[name] && html`<${Fact} key=${name} name=${T.details[name]}><${Time} at=${job[name]} /><//>`)}
      <${Fact} name=${T.details.user}><${Text}>${job.user_id}<//><//>
      <${Fact} name=${T.details.model}><${Text}>${job.model}<//><//>
      <${Fact} name=${T.details.attempt}>${job.attempt}<//>
      ${Object.entries(job.labels).map(([name, label]) => html`<${Fact} key=${`label ${name}`} name=${html`<${Text}>${name}<//>`}><${Text}>${label}<//><//>`)}
    </dl>
    ${container && html`
      <h2>${T.details.container}</h2>
      <dl class="facts">${Object.entries(container).map(([name, value]) => value !== null && html`<${Fact} key=${name} name=${name.replaceAll("_", " ")}><${Text}>${typeof value === "string" ? value : JSON.stringify(value)}<//><//>`)}</dl>`}
    <details class="more" onToggle=${(/** @type {any} */ event) => setIsOutputOpen(event.currentTarget.open)}><summary>${T.job.containerOutput}</summary>
      ${isOutputOpen && html`<${Output} id=${job.id} state=${job.state} />`}</details>
    <details class="more"><summary>JSON</summary><p><${Copy} text=${text} label=${T.copy} name="JSON" /></p><pre><${Text}>${text}<//></pre></details>
  `;
}
