// The model calls and tool calls of a job, with what they took and cost.

import { get } from "../../api.js";
import { cost, tokens, took } from "../../format.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Text, Time, html, useLoad } from "../../ui.js";

const LIMIT = 200;

/** @param {{ title: string, names: string[], rows: any[][], isCut: boolean }} props */
const Table = ({ title, names, rows, isCut }) => html`
  <h2>${title}</h2>
  ${rows.length === 0 ? html`<${Empty}><p>${T.calls.none}</p><//>` : html`
    <div class="wide" tabindex="0" role="group" aria-label=${title}><table><thead><tr>${names.map((name) => html`<th key=${name}>${name}</th>`)}</tr></thead>
      <tbody>${rows.map((cells, index) => html`<tr key=${index}>${cells.map((cell, column) => html`<td key=${column}>${cell}</td>`)}</tr>`)}</tbody></table></div>
    ${isCut && html`<p class="note">${T.calls.cut(LIMIT)}</p>`}`}
`;

/** @param {boolean | null | undefined} success */
const outcome = (success) => (success === null || success === undefined ? T.calls.running : success ? T.trace.ok : T.trace.failed);

/** @param {{ models: import("../../api.js").Answer<"/api/jobs/{id}/llm-calls", "get">, actions: import("../../api.js").Answer<"/api/jobs/{id}/actions", "get"> }} props */
export const CallTables = ({ models, actions }) => html`
  <${Table} title=${T.calls.models} names=${T.calls.modelColumns} isCut=${Boolean(models.next_cursor)} rows=${models.items.map((call) => [
    html`<${Time} at=${call.at} />`, html`<${Text}>${call.model}<//>`, tokens(call.usage.input_tokens ?? 0), tokens(call.usage.output_tokens ?? 0), took(call.duration_ms), cost(call.cost_usd),
    html`<${Text}>${call.error ?? call.finish_reason ?? ""}<//>`])} />
  <${Table} title=${T.calls.tools} names=${T.calls.toolColumns} isCut=${Boolean(actions.next_cursor)} rows=${actions.items.map((call) => [
    html`<${Time} at=${call.at} />`, html`<${Text}>${call.tool}<//>`, outcome(call.success), took(call.duration_ms), cost(call.cost_usd),
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
