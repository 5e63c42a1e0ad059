// A run as a row of a list.

import { cost, tokens } from "../../format.js";
import { who } from "../../session.js";
import { T } from "../../texts.js";
import { Id, Text, Time, html, now } from "../../ui.js";
import { RunState, short, tookMs, whyOf } from "../routine/words.js";

/** @param {{ run: import("../../store.js").Run }} props */
export function RunRow({ run }) {
  const why = whyOf(run);
  return html`
    <li class="row">
      <${RunState} status=${run.status} />
      <span class="title">
        <a class="open" href=${`/runs/${run.id}`}><${Text}>${run.routine_name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${run.user_id}<//></span>`}
        <span class="note reason"><${Time} at=${run.created_at} /> · ${T.routine.triggers[run.trigger_type] ?? run.trigger_type}${why && html` · <${Text}>${why}<//>`}</span>
        ${run.result_summary && html`<span class="reason clamped"><${Text}>${run.result_summary}<//></span>`}
      </span>
      <span class="number"><span class="hidden">${T.run.took} </span>${short(tookMs(run, run.status === "running" ? now.value : 0))}</span>
      <span class="number">${tokens(run.tokens_used)}<span class="unit"> ${T.run.tokens}</span></span>
      <span class="number"><span class="hidden">${T.run.cost} </span>${cost(run.cost_usd)}</span>
      <${Id} id=${run.id} />
    </li>
  `;
}
