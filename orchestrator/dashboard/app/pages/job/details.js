// Everything else about a job: what it was asked, its limits and container with its output, and the object as the API returns it.

import { useState } from "preact/hooks";
import { address, read } from "../../api.js";
import { bytes } from "../../format.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, Failed, Loading, Text, Time, html, useLoad } from "../../ui.js";

/** So much of the container's output is shown. */
const MAX_OUTPUT = 256 * 1024;

/** @param {{ name: any, children?: any }} props */
const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

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
      ${container && Object.entries(container).map(([name, value]) => html`<${Fact} key=${name} name=${name.replaceAll("_", " ")}><${Text}>${typeof value === "string" ? value : JSON.stringify(value)}<//><//>`)}
    </dl>
    <details class="more" onToggle=${(/** @type {any} */ event) => setIsOutputOpen(event.currentTarget.open)}><summary>${T.job.containerOutput}</summary>
      ${isOutputOpen && html`<${Output} id=${job.id} state=${job.state} />`}</details>
    <details class="more"><summary>JSON</summary><p><${Copy} text=${text} label=${T.copy} name="JSON" /></p><pre><${Text}>${text}<//></pre></details>
  `;
}
