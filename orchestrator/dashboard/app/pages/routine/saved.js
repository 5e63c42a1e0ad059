// Warnings about a routine, and what the server says only once, when one is saved: the secrets that it has made, kept in memory until then.

import { signal } from "@preact/signals";
import { T } from "../../texts.js";
import { Copy, Icon, Text, html } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["RoutineSaved"]} RoutineSaved */
/** @typedef {import("../../api.js").schemas["RoutineWarning"]} Warning */

/** @type {import("@preact/signals").Signal<{ id: string, secrets: { name: string, value: string }[] } | null>} */
const saved = signal(null);

/** @param {RoutineSaved} answer */
export function keep({ id, trigger, notify }) {
  const secret = trigger.type === "webhook" ? trigger.secret : null;
  const secrets = [[T.routine.secretNames.webhook, secret], [T.routine.secretNames.notify, notify.webhook_secret]]
    .flatMap(([name, value]) => (name && value ? [{ name, value }] : []));
  saved.value = secrets.length > 0 ? { id, secrets } : null;
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
      <p><strong>${T.routine.secrets}</strong></p>
      ${shown.secrets.map(({ name, value }) => html`<p key=${name} class="line">${name}: <code>${value}</code> <${Copy} text=${value} name=${name} /></p>`)}
      <button type="button" onClick=${() => (saved.value = null)}>${T.close}</button>
    </div>
  `;
}
