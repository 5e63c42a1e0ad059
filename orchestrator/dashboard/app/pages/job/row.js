// A job as a row of a list.

import { cost, tokens } from "../../format.js";
import { who } from "../../session.js";
import { endOf } from "../../store.js";
import { T } from "../../texts.js";
import { Elapsed, Id, State, Text, Time, html } from "../../ui.js";

/** @typedef {import("../../store.js").Job} Job */

/** What is to be said about a job besides its state. @param {{ job: Job }} props */
function Reason({ job }) {
  const why = [job.reason, job.message].filter(Boolean).join(": ");
  if (job.state === "in_progress" && job.cancel_requested_at) return html`<span class="note reason">${T.now.cancelling}</span>`;
  if (job.state === "in_progress") return job.activity && html`<span class="note reason"><${Text}>${job.activity}<//></span>`;
  if (job.state === "submitted") return html`<span class="note reason">${T.now.waits} <${Time} at=${endOf(job) ?? job.created_at} /> <${Text}>${why}<//></span>`;
  if (job.state === "pending" && job.held) return html`<span class="note reason">${T.now.held}</span>`;
  if (job.finished_at) return html`<span class="note reason">${T.now.endedAt} <${Time} at=${job.finished_at} /> <${Text}>${why}<//></span>`;
  return why && html`<span class="note reason"><${Text}>${why}<//></span>`;
}

/** @param {{ job: Job, isSelected?: boolean, onSelect?: ((id: string, isOn: boolean) => void) | null }} props */
export function JobRow({ job, isSelected = false, onSelect = null }) {
  const { usage } = job;
  const name = job.title || job.prompt_preview;
  const onChange = (/** @type {any} */ event) => onSelect?.(job.id, event.target.checked);
  return html`
    <div class="row ${onSelect ? "selectable" : ""}">
      ${onSelect && html`<label class="check"><span class="hidden">${T.jobs.select} <${Text}>${name}<//></span><input type="checkbox" checked=${isSelected} onChange=${onChange} /></label>`}
      <${State} state=${job.state} reason=${job.reason} />
      <span class="title">
        <a class="open" href=${`/jobs/${job.id}`}><${Text}>${name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${job.user_id}<//></span>`}
        <${Reason} job=${job} />
      </span>
      <span class="number"><span class="hidden">${T.now.elapsed} </span><${Elapsed} from=${job.started_at} to=${endOf(job)} /></span>
      <span class="number">${tokens(usage.input_tokens + usage.output_tokens)}<span class="unit"> ${T.now.tokens}</span></span>
      <span class="number"><span class="hidden">${T.now.cost} </span>${cost(usage.cost_usd)}</span>
      <${Id} id=${job.id} />
    </div>
  `;
}
