// What the server says only once, when a routine is saved: warnings, and secrets that it has made. Kept in memory until it is closed.

import { signal } from "@preact/signals";
import { T } from "../../texts.js";
import { Copy, Icon, Text, html } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["RoutineSaved"]} RoutineSaved */
/** @typedef {import("../../api.js").schemas["RoutineWarning"]} Warning */

/** @type {import("@preact/signals").Signal<{ id: string, warnings: Warning[], secrets: { name: string, value: string }[] } | null>} */
const saved = signal(null);

/** @param {RoutineSaved} answer */
export function keep({ id, warnings, trigger, notify }) {
  const secret = trigger.type === "webhook" ? trigger.secret : null;
  const secrets = [[T.routine.secretNames.webhook, secret], [T.routine.secretNames.notify, notify.webhook_secret]]
    .flatMap(([name, value]) => (name && value ? [{ name, value }] : []));
  saved.value = warnings.length > 0 || secrets.length > 0 ? { id, warnings, secrets } : null;
}

/** @param {{ warnings: Warning[] }} props */
export const Warnings = ({ warnings }) => html`
  <p><${Icon} name="stuck" /><strong>${T.routine.warnings}</strong></p>
  <ul class="list">${warnings.map(({ code, field, detail }, index) => html`<li key=${index}><code>${field}</code> <${Text}>${detail}<//> <span class="note">${code}</span></li>`)}</ul>
`;

/** @param {{ id: string }} props */
export function Saved({ id }) {
  const shown = saved.value;
  if (shown?.id !== id) return null;
  return html`
    <div class="warning" role="status">
      ${shown.secrets.length > 0 && html`<p><strong>${T.routine.secrets}</strong></p>
        ${shown.secrets.map(({ name, value }) => html`<p key=${name} class="line">${name}: <code>${value}</code> <${Copy} text=${value} name=${name} /></p>`)}`}
      ${shown.warnings.length > 0 && html`<${Warnings} warnings=${shown.warnings} />`}
      <button type="button" onClick=${() => (saved.value = null)}>${T.close}</button>
    </div>
  `;
}
