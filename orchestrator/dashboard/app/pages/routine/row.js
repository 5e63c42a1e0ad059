// A routine as a row of the list.

import { isZone, relative, time } from "../../format.js";
import { who } from "../../session.js";
import { T } from "../../texts.js";
import { Text, Time, html, now, zone } from "../../ui.js";
import { Actions } from "./actions.js";
import { Bars } from "./bars.js";
import { RoutineState, triggerWords } from "./words.js";

const BAR = { width: 8, height: 24 };

/** When it fires next, in its own zone and in the chosen one. @param {{ routine: import("../../store.js").Routine }} props */
function Next({ routine: { next_fire_at: at, trigger, enabled } }) {
  if (!at || !enabled) return html`<span class="note">–</span>`;
  const ms = Date.parse(at);
  const own = trigger.type === "cron" && isZone(trigger.timezone) ? trigger.timezone : null;
  const theirs = own && time(ms, own, now.value);
  return html`<span class="hidden">${T.routines.next} </span><${Time} at=${at} /><span class="note reason">${relative(ms, now.value)}
    ${theirs && theirs !== time(ms, zone.value, now.value) && html`<br />${theirs} <${Text}>${own}<//>`}</span>`;
}

/** @param {{ routine: import("../../store.js").Routine, runs: import("../../store.js").Run[], canWrite: boolean }} props */
export function RoutineRow({ routine, runs, canWrite }) {
  const { id, name, description, trigger, disabled_reason: why, consecutive_failures: failures } = routine;
  const last = runs.map(({ status }) => T.runs.statuses[status]).join(", ");
  return html`
    <li class="row routine">
      <${RoutineState} status=${routine.status} />
      <span class="title">
        <a class="open" href=${`/routines/${id}`}><${Text}>${name}<//></a>
        ${who.value?.role === "admin" && html` <span class="note"><${Text}>${routine.user_id}<//></span>`}
        <span class="note reason"><${Text}>${triggerWords(trigger)}<//>${trigger.type === "cron" && trigger.timezone && html` <${Text}>${trigger.timezone}<//>`}
          ${why && ` · ${T.routine.reasons[why] ?? why}`}${failures > 0 && ` · ${T.routines.failures(failures)}`}</span>
        ${description && html`<span class="note reason description"><${Text}>${description}<//></span>`}
      </span>
      <span class="sparkline">${runs.length > 0 && html`<span class="hidden">${T.routines.last} ${last}</span><${Bars} runs=${runs} width=${BAR.width} height=${BAR.height} isSmall />`}</span>
      <span class="next"><${Next} routine=${routine} /></span>
      ${canWrite ? html`<${Actions} routine=${routine} />` : html`<span></span>`}
    </li>
  `;
}
