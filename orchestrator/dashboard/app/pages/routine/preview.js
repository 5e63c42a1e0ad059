// What the server says about a definition before it is saved: when it would fire, what will not work unattended, what is wrong.

import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api.js";
import { T } from "../../texts.js";
import { Text, html } from "../../ui.js";
import { definitionOf, isObject } from "./definition.js";
import { Warnings } from "./saved.js";
import { Firings } from "./upcoming.js";
import { textOf } from "./words.js";

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
        ${value.upcoming.length > 0 ? html`<p>${T.editRoutine.times}${countOf(value) > 1 && ` ${T.editRoutine.count(countOf(value))}`}</p><${Firings} items=${value.upcoming} own=${own} />` : html`<p class="note">${T.editRoutine.noTimes}</p>`}`}
    </section>
  `;
}

/** What will not work unattended in a routine that there is. @param {{ routine: Routine }} props */
export function Warned({ routine }) {
  const { value } = usePreview(definitionOf(routine), routine.name);
  return value && value.warnings.length > 0 && html`<div class="warning"><${Warnings} warnings=${value.warnings} /></div>`;
}
