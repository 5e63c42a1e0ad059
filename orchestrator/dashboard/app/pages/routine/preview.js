// What the server says about a definition before it is saved: when it would fire, what will not work unattended, what is wrong.

import { signal } from "@preact/signals";
import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api.js";
import { relative } from "../../format.js";
import { T } from "../../texts.js";
import { Copy, Icon, Text, Time, html, now, zone } from "../../ui.js";
import { definitionOf, isObject } from "./definition.js";
import { localTime, textOf } from "./words.js";

// --- warnings about a routine, and what the server says only once, when one is saved: the secrets that it has made, kept in memory until then

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
  <ul class="list">${warnings.map(({ detail }, index) => html`<li key=${index}><${Text}>${detail}<//></li>`)}</ul>
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

// --- when a routine fires next: in its own zone, as the server says it, and in the chosen one

/** Whether both zones show the same time. @param {string} utc @param {string} offset */
function isYours(utc, offset) {
  const name = new Intl.DateTimeFormat("en-GB", { timeZone: zone.value, timeZoneName: "longOffset" }).formatToParts(Date.parse(utc))
    .find(({ type }) => type === "timeZoneName")?.value ?? "";
  return (name.replace("GMT", "") || "+00:00") === (offset === "UTC" ? "+00:00" : offset);
}

/** @param {{ at: { utc: string, local: string }, own?: string | null | undefined }} props `own` is the name of its zone */
export function Firing({ at: { utc, local }, own }) {
  const { text, offset } = localTime(local);
  return html`
    <span class="number">${text} ${own ?? offset}</span> <span class="note">(${!isYours(utc, offset) && html`<${Time} at=${utc} /> ${T.routine.yours}, `}${relative(Date.parse(utc), now.value)})</span>
  `;
}

/** @param {{ items: { utc: string, local: string }[], own?: string | null | undefined }} props */
export const Firings = ({ items, own }) => html`<ul class="times">${items.map((at) => html`<li key=${at.utc}><${Firing} at=${at} own=${own} /></li>`)}</ul>`;

/** @typedef {import("./definition.js").Definition} Definition */
/** @typedef {import("./definition.js").Routine} Routine */
/** @typedef {import("../../api.js").schemas["RoutinePreview"]} Preview */

/** So long after the last change it is asked. */
const PAUSE_MS = 700;

/** Whether there is enough to be checked. @param {Definition} definition */
const isWhole = (definition) => Boolean(definition["name"]) && isObject(definition["trigger"]) && isObject(definition["action"])
  && Object.entries(definition["trigger"]).every(([name, value]) => name === "type" || value !== "") && textOf(definition["action"])[1] !== "";

/**
 * @param {Definition} definition @param {string | null} name the name that it has already, which would be taken
 */
export function usePreview(definition, name) {
  const [state, setState] = useState(/** @type {{ value: Preview | null, error: Error | null, isBusy: boolean }} */ ({ value: null, error: null, isBusy: false }));
  const text = JSON.stringify(definition);
  useEffect(() => {
    if (!isWhole(definition)) return setState({ value: null, error: null, isBusy: false });
    const isOver = new AbortController();
    setState((before) => ({ ...before, isBusy: true }));
    const timer = setTimeout(() => {
      const body = definition["name"] === name ? { ...definition, name: `check ${Date.now()}` } : definition;
      post("/api/routines", { query: { dry_run: true }, body, signal: isOver.signal }).then(
        (value) => setState({ value: /** @type {any} */ (value), error: null, isBusy: false }),
        (error) => isOver.signal.aborted || setState({ value: null, error, isBusy: false }),
      );
    }, PAUSE_MS);
    return () => (clearTimeout(timer), isOver.abort());
  }, [text, name]);
  return state;
}

/** How often it fires in the next 8 days, as far as the server has counted. @param {Preview} preview */
const countOf = (preview) => /** @type {{ count?: number | null }} */ (preview).count ?? 0;

/** @param {{ preview: ReturnType<typeof usePreview>, own: string | null | undefined }} props */
export function Check({ preview: { value, error, isBusy }, own }) {
  const fields = error instanceof ApiError ? error.fields : [];
  return html`
    <section class="check-result" aria-label=${T.editRoutine.check} aria-busy=${isBusy}>
      <h2>${T.editRoutine.check}</h2>
      ${isBusy && !value && !error && html`<p class="note">${T.editRoutine.checking}</p>`}
      ${!isBusy && !value && !error && html`<p class="note">${T.editRoutine.incomplete}</p>`}
      ${error && html`<div class="failure">${fields.length === 0 && html`<p><${Text}>${error.message}<//></p>`}${fields.map(({ field, message }, index) => html`<p key=${index}><code>${field}</code> <${Text}>${message}<//></p>`)}</div>`}
      ${value && html`
        ${value.warnings.length > 0 ? html`<div class="warning"><${Warnings} warnings=${value.warnings} /></div>` : html`<p class="note">${T.editRoutine.checked}</p>`}
        ${value.upcoming.length > 0 ? html`<p>${T.editRoutine.times}${countOf(value) > 1 && ` ${T.editRoutine.count(countOf(value))}`}:</p><${Firings} items=${value.upcoming} own=${own} />` : html`<p class="note">${T.editRoutine.noTimes}</p>`}`}
    </section>
  `;
}

/** What will not work unattended in a routine that there is. @param {{ routine: Routine }} props */
export function Warned({ routine }) {
  const { value } = usePreview(definitionOf(routine), routine.name);
  return value && value.warnings.length > 0 && html`<div class="warning"><${Warnings} warnings=${value.warnings} /></div>`;
}
