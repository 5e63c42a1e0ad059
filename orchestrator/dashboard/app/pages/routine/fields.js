// The form of a routine: fields for what is common. Each shows and changes one value of the definition, which has the rest, too.

import { Check, Field, problemsAt } from "../../form.js";
import { zoneName } from "../../format.js";
import { T } from "../../texts.js";
import { html, now, zone } from "../../ui.js";
import { fromLocal, toLocal } from "../schedule/week.js";
import { isObject, valueAt, withValue } from "./definition.js";

/** @typedef {import("./definition.js").Definition} Definition */
/** @typedef {{ definition: Definition, change: (next: Definition) => void, error: Error | null }} Form */
/** @typedef {keyof T["editRoutine"]["fields"]} Path */

/** What a value of the definition is in a field of text. @param {any} value */
const shown = (value) => (value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** A budget whose last limit was removed is none. @param {Definition} definition @param {string} changed */
function withoutEmptyBudget(definition, changed) {
  const budget = valueAt(definition, "guardrails.budget");
  const isEmpty = changed.startsWith("guardrails.budget.") && isObject(budget) && (budget["max_cost_usd"] ?? budget["max_tokens"] ?? null) === null;
  return isEmpty ? withValue(definition, "guardrails.budget", undefined) : definition;
}

/** A value of the definition; empty, it removes what is optional. @param {{ form: Form, path: Path, isRequired?: boolean, type?: string, choices?: Record<string, string>, [more: string]: any }} props */
function Value({ form: { definition, change, error }, path, isRequired = false, type = "text", choices, ...more }) {
  const isNumber = type === "number";
  const set = (/** @type {string} */ value) => {
    const next = value === "" && !(isRequired && !isNumber) ? undefined : isNumber ? Number(value) : value;
    change(withoutEmptyBudget(withValue(definition, path, next), path));
  };
  const all = { id: `field-${path}`, name: T.editRoutine.fields[path], note: T.editRoutine.hints[/** @type {"trigger.path"} */ (path)], problems: problemsAt(error, path) };
  return html`<${Field} ...${all} type=${type} value=${shown(valueAt(definition, path))} change=${set} required=${isRequired} choices=${choices && Object.entries(choices)}
    ...${isNumber ? { min: 0, step: "any" } : {}} ...${more} />`;
}

/** @param {{ form: Form, path: Path, isOn?: boolean }} props `isOn` is what the server takes when nothing is said */
const Switch = ({ form: { definition, change }, path, isOn = false }) => html`
  <${Check} name=${T.editRoutine.fields[path]} isOn=${valueAt(definition, path) ?? isOn} change=${(/** @type {boolean} */ next) => change(withValue(definition, path, next))} />`;

/** One time, written in the chosen zone. @param {{ form: Form }} props */
function At({ form }) {
  const at = Date.parse(shown(valueAt(form.definition, "trigger.at")));
  const set = (/** @type {string} */ value) => {
    const ms = fromLocal(value, zone.value);
    form.change(withValue(form.definition, "trigger.at", Number.isNaN(ms) ? "" : new Date(ms).toISOString().replace(".000", "")));
  };
  return html`<${Value} form=${form} path="trigger.at" name=${`${T.editRoutine.fields["trigger.at"]} (${zoneName(zone.value, now.value)})`} type="datetime-local" isRequired
    value=${Number.isNaN(at) ? "" : toLocal(at, zone.value)} change=${set} />`;
}

/** What a trigger or an action has when its type is chosen. @type {Record<string, Record<string, unknown>>} */
const STARTS = {
  cron: { schedule: "" }, every: { every_seconds: 3_600 }, at: { at: "" }, event: { pattern: "" }, system_event: { source: "", event_type: "" }, webhook: {}, manual: {},
  lightweight: { prompt: "" }, full_job: { description: "" }, system_event_text: { text: "" },
};
const TEXTS = ["prompt", "description", "text"];

/**
 * The definition with another type of trigger or action. What was written for a type comes back with it, and the text of an action stays.
 * @param {Definition} definition @param {"trigger" | "action"} part @param {string} type @param {Map<string, any>} kept
 */
export function withType(definition, part, type, kept) {
  const before = isObject(definition[part]) ? definition[part] : {};
  kept.set(`${part} ${before["type"]}`, before);
  const next = { type, ...STARTS[type], ...kept.get(`${part} ${type}`) };
  if (part === "action") {
    const text = TEXTS.map((name) => before[name]).find((value) => typeof value === "string");
    const name = TEXTS.find((one) => one in (STARTS[type] ?? {}));
    if (name && text) next[name] = text;
    // Their defaults depend on the action.
    const { session, persist_payload, ...others } = definition;
    return { ...others, action: next };
  }
  return { ...definition, [part]: next };
}

/** @param {{ form: Form, onType: (part: "trigger" | "action", type: string) => void }} props */
function Trigger({ form, onType }) {
  const type = valueAt(form.definition, "trigger.type");
  const field = (/** @type {Path} */ path, /** @type {Record<string, any>} */ more = {}) => html`<${Value} form=${form} path=${path} ...${more} />`;
  const fields = {
    cron: () => [field("trigger.schedule", { isRequired: true, spellcheck: false }), field("trigger.timezone", { spellcheck: false })],
    every: () => [field("trigger.every_seconds", { isRequired: true, type: "number" })],
    at: () => [html`<${At} form=${form} />`],
    event: () => [field("trigger.pattern", { isRequired: true, spellcheck: false }), field("trigger.channel")],
    system_event: () => [field("trigger.source", { isRequired: true }), field("trigger.event_type", { isRequired: true }), field("trigger.where", { spellcheck: false })],
    webhook: () => [field("trigger.path", { spellcheck: false }), field("trigger.where", { spellcheck: false })],
  }[/** @type {string} */ (type)];
  return html`
    <fieldset><legend>${T.editRoutine.trigger}</legend>
      <${Value} form=${form} path="trigger.type" choices=${T.routine.triggers} change=${(/** @type {string} */ next) => onType("trigger", next)} />
      ${fields?.()}
    </fieldset>
  `;
}

/** @param {{ form: Form, options: import("../../api.js").schemas["JobOptions"] | null, onType: (part: "trigger" | "action", type: string) => void }} props */
function Action({ form, options, onType }) {
  const type = valueAt(form.definition, "action.type");
  const field = (/** @type {Path} */ path, /** @type {Record<string, any>} */ more = {}) => html`<${Value} form=${form} path=${path} ...${more} />`;
  const named = (/** @type {string[]} */ names) => ({ "": T.editRoutine.unset, ...Object.fromEntries(names.map((name) => [name, name])) });
  const model = html`<${Value} form=${form} path="action.model" choices=${named(options?.models ?? [])} />`;
  const fields = {
    lightweight: () => [field("action.prompt", { isRequired: true, rows: 5 }), html`<${Switch} form=${form} path="action.use_tools" />`,
      valueAt(form.definition, "action.use_tools") && field("action.max_tool_rounds", { type: "number" }), model],
    full_job: () => [field("action.description", { isRequired: true, rows: 5 }), field("action.title"), model,
      html`<${Value} form=${form} path="action.image" choices=${named(options?.images ?? [])} />`,
      field("action.limits.timeout_seconds", { type: "number" }), field("action.limits.max_cost_usd", { type: "number" }), html`<${Switch} form=${form} path="action.review" />`],
    system_event_text: () => [field("action.text", { isRequired: true, rows: 2 })],
  }[/** @type {string} */ (type)];
  return html`
    <fieldset><legend>${T.editRoutine.action}</legend>
      <${Value} form=${form} path="action.type" choices=${T.routine.actions} change=${(/** @type {string} */ next) => onType("action", next)} />
      ${fields?.()}
    </fieldset>
  `;
}

/** @param {{ form: Form }} props */
function Limits({ form }) {
  const number = (/** @type {Path} */ path, /** @type {string} */ placeholder = "") => html`<${Value} form=${form} path=${path} type="number" placeholder=${placeholder} />`;
  return html`
    <details><summary>${T.editRoutine.guardrails}</summary><div class="fields">
      ${number("guardrails.cooldown_seconds", "300")}
      ${number("guardrails.max_concurrent", "1")}
      <${Value} form=${form} path="guardrails.overlap" choices=${{ "": T.editRoutine.unset, ...T.editRoutine.overlaps }} />
      <${Value} form=${form} path="guardrails.catch_up" choices=${{ "": T.editRoutine.unset, ...T.editRoutine.catchUps }} />
      ${number("guardrails.retry.max_attempts", "1")}
      ${number("guardrails.disable_after_failures", "10")}
      ${number("guardrails.timeout_seconds", "600")}
      ${number("guardrails.max_runs")}
      ${number("guardrails.budget.max_cost_usd")}
      ${number("guardrails.budget.max_tokens")}
      <${Value} form=${form} path="guardrails.budget.per" choices=${{ "": T.editRoutine.unset, ...T.routine.per }} />
    </div></details>
  `;
}

/** @param {{ form: Form }} props */
const Notify = ({ form }) => html`
  <details><summary>${T.editRoutine.notify}</summary><div class="fields">
    <${Switch} form=${form} path="notify.on_attention" isOn />
    <${Switch} form=${form} path="notify.on_failure" isOn />
    <${Switch} form=${form} path="notify.on_success" />
    <${Value} form=${form} path="notify.channel" />
    <${Value} form=${form} path="notify.webhook_url" type="url" />
  </div></details>
`;

/** @param {{ form: Form, options: import("../../api.js").schemas["JobOptions"] | null, onType: (part: "trigger" | "action", type: string) => void }} props */
export const Fields = ({ form, options, onType }) => html`
  <fieldset><legend>${T.editRoutine.general}</legend>
    <${Value} form=${form} path="name" isRequired autofocus />
    <${Value} form=${form} path="description" rows=${2} />
    <${Switch} form=${form} path="enabled" isOn />
  </fieldset>
  <${Trigger} form=${form} onType=${onType} />
  <${Action} form=${form} options=${options} onType=${onType} />
  <${Limits} form=${form} />
  <${Notify} form=${form} />
`;
