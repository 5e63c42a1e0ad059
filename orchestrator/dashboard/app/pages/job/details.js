// Everything else about a job: what it was asked, its limits and container, and the object as the API returns it.

import { T } from "../../texts.js";
import { Copy, Text, Time, html } from "../../ui.js";

/** @param {{ name: string, children?: any }} props */
const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Details({ job }) {
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
      ${Object.entries(job.labels).map(([name, label]) => html`<${Fact} key=${name} name=${name}><${Text}>${label}<//><//>`)}
      ${container && Object.entries(container).map(([name, value]) => html`<${Fact} key=${name} name=${name.replaceAll("_", " ")}><${Text}>${typeof value === "string" ? value : JSON.stringify(value)}<//><//>`)}
    </dl>
    <details><summary>JSON</summary><p><${Copy} text=${text} label=${T.copy} name="JSON" /></p><pre><${Text}>${text}<//></pre></details>
  `;
}
