// A job as a row of a list.

import { cost, tokens } from "../../format.js";
import { who } from "../../session.js";
import { T } from "../../texts.js";
import { Elapsed, Id, State, Text, Time, html } from "../../ui.js";

/** @typedef {import("../../store.js").Job} Job */

/** @type {Set<Job["state"]>} */
export const FINISHED = new Set(["completed", "accepted", "failed", "cancelled"]);

/** @param {{ job: Job, isSelected?: boolean, onSelect?: ((id: string, isOn: boolean) => void) | null }} props */
export function JobRow({ job, isSelected = false, onSelect = null }) {
  const { usage } = job;
  const isRunning = job.state === "in_progress";
  const name = job.title || job.prompt_preview;
  const why = [job.reason, job.message].filter(Boolean).join(": ");
  const onChange = (/** @type {any} */ event) => onSelect?.(job.id, event.target.checked);
  return html`
    <li class="row ${onSelect ? "selectable" : ""}">
      ${onSelect && html`<label class="check"><span class="hidden">${T.jobs.select(name)}</span><input type="checkbox" checked=${isSelected} onChange=${onChange} /></label>`}
      <${State} state=${job.state} />
      <span class="title">
        <a class="open" href=${`/jobs/${job.id}`}><${Text}>${name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${job.user_id}<//></span>`}
        ${isRunning && job.cancel_requested_at && html`<span class="note reason">${T.now.cancelling}</span>`}
        ${job.finished_at && html`<span class="note reason">${T.now.endedAt} <${Time} at=${job.finished_at} /> <${Text}>${why}<//></span>`}
      </span>
      <span class="number"><span class="hidden">${T.now.elapsed} </span><${Elapsed} from=${job.started_at} to=${isRunning ? null : job.finished_at} /></span>
      <span class="number">${tokens(usage.input_tokens + usage.output_tokens)}<span class="unit"> ${T.now.tokens}</span></span>
      <span class="number"><span class="hidden">${T.now.cost} </span>${cost(usage.cost_usd)}</span>
      <${Id} id=${job.id} />
    </li>
  `;
}
