// The definition of a routine for reading: what fires it, what it does, within which limits, and whom it tells.

import { cost, tokens } from "../../format.js";
import { T } from "../../texts.js";
import { Copy, Text, Time, html } from "../../ui.js";
import { interval, textOf, triggerWords } from "./words.js";

/** @typedef {import("../../api.js").schemas["Routine"]} Routine */

/** @param {{ name: any, children?: any }} props */
const Fact = ({ name, children }) => html`<div><dt>${name}</dt><dd>${children}</dd></div>`;

/** @param {unknown} value */
const plain = (value) => (typeof value === "string" ? value : JSON.stringify(value));

/** The values of an object that are set, but for those that are shown otherwise. @param {{ of: Record<string, any>, but?: string[] }} props */
const Facts = ({ of, but = [] }) => Object.entries(of).filter(([name, value]) => !but.includes(name) && value !== null && value !== undefined && value !== "")
  .map(([name, value]) => html`<${Fact} key=${name} name=${name.replaceAll("_", " ")}><${Text}>${name.endsWith("_seconds") && Number(value) > 0 ? interval(value) : plain(value)}<//><//>`);

/** @param {{ name: string, used: number, limit: number, text: string }} props */
const Meter = ({ name, used, limit, text }) => html`
  <span class="meter"><span class="note">${name}</span> <meter min="0" max=${limit} value=${Math.min(used, limit)} aria-label=${name}></meter> <span class="number">${text}</span></span>`;

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
