// The form of a routine: fields for what is common. Each shows and changes one value of the definition, which has the rest, too.

import { zoneName } from "../../format.js";
import { T } from "../../texts.js";
import { Text, html, now, zone } from "../../ui.js";
import { fromLocal, toLocal } from "../schedule/week.js";
import { isObject, valueAt, withValue } from "./definition.js";

/** @typedef {import("./definition.js").Definition} Definition */
/** @typedef {{ field: string, message: string }[]} Problems */
/** @typedef {{ definition: Definition, change: (next: Definition) => void, problems: Problems }} Form */
/** @typedef {keyof T["editRoutine"]["fields"]} Path */

/** What the server says about a field, or a part of it. @param {Problems} problems @param {string} path */
const problemsAt = (problems, path) => problems.filter(({ field }) => field === path || field.startsWith(`${path}.`) || field.startsWith(`${path}[`));

/** What a value of the definition is in a field of text. @param {any} value */
const shown = (value) => (value === undefined || value === null ? "" : typeof value === "object" ? JSON.stringify(value) : String(value));

/** @param {{ path: Path, problems: Problems, children: any }} props */
function Around({ path, problems, children }) {
  const wrong = problemsAt(problems, path);
  const hint = T.editRoutine.hints[/** @type {"trigger.path"} */ (path)];
  return html`
    <div class="field">
      <label for=${`field-${path}`}>${T.editRoutine.fields[path]}${path === "trigger.at" && ` (${zoneName(zone.value, now.value)})`}</label>
      ${children}
      ${hint && html`<p class="note" id=${`hint-${path}`}>${hint}</p>`}
      ${wrong.length > 0 && html`<div class="failure" id=${`wrong-${path}`}>${wrong.map(({ message }, index) => html`<p key=${index}><${Text}>${message}<//></p>`)}</div>`}
    </div>
  `;
}

/** @param {Problems} problems @param {string} path */
function attributesOf(problems, path) {
  const isWrong = problemsAt(problems, path).length > 0;
  const described = [isWrong && `wrong-${path}`, path in T.editRoutine.hints && `hint-${path}`].filter(Boolean).join(" ");
  return { id: `field-${path}`, ...(isWrong && { "aria-invalid": "true" }), ...(described && { "aria-describedby": described }) };
}

/** A budget whose last limit was removed is none. @param {Definition} definition @param {string} changed */
function withoutEmptyBudget(definition, changed) {
  const budget = valueAt(definition, "guardrails.budget");
  const isEmpty = changed.startsWith("guardrails.budget.") && isObject(budget) && (budget["max_cost_usd"] ?? budget["max_tokens"] ?? null) === null;
  return isEmpty ? withValue(definition, "guardrails.budget", undefined) : definition;
}

/** A field of text; empty, it removes what is optional. @param {{ form: Form, path: Path, isRequired?: boolean, rows?: number, type?: string, more?: Record<string, unknown> }} props */
function Field({ form: { definition, change, problems }, path, isRequired = false, rows = 0, type = "text", more = {} }) {
  const isNumber = type === "number";
  const onInput = (/** @type {any} */ { target: { value } }) => {
    const next = value === "" && !(isRequired && !isNumber) ? undefined : isNumber ? Number(value) : value;
    change(withoutEmptyBudget(withValue(definition, path, next), path));
  };
  const all = { ...attributesOf(problems, path), value: shown(valueAt(definition, path)), required: isRequired, onInput, ...more };
  return html`<${Around} path=${path} problems=${problems}>
    ${rows > 0 ? html`<textarea rows=${rows} ...${all}></textarea>` : html`<input type=${type} autocomplete="off" ...${isNumber ? { min: 0, step: "any" } : {}} ...${all} />`}<//>`;
}

/** @param {{ form: Form, path: Path, choices: Record<string, string>, onChoose?: (value: string) => void }} props */
function Choice({ form: { definition, change, problems }, path, choices, onChoose }) {
  const value = shown(valueAt(definition, path));
  const all = value in choices ? choices : { [value]: value, ...choices };
  const onChange = (/** @type {any} */ { target }) => (onChoose ? onChoose(target.value) : change(withValue(definition, path, target.value || undefined)));
  return html`<${Around} path=${path} problems=${problems}>
    <select value=${value} onChange=${onChange} ...${attributesOf(problems, path)}>
      ${Object.entries(all).map(([name, word]) => html`<option key=${name} value=${name}>${word}</option>`)}</select><//>`;
}

/** @param {{ form: Form, path: Path, isOn?: boolean }} props `isOn` is what the server takes when nothing is said */
const Check = ({ form: { definition, change }, path, isOn = false }) => html`
  <label class="check"><input type="checkbox" checked=${valueAt(definition, path) ?? isOn}
    onChange=${(/** @type {any} */ { target }) => change(withValue(definition, path, target.checked))} />${T.editRoutine.fields[path]}</label>`;

/** One time, written in the chosen zone. @param {{ form: Form }} props */
function At({ form: { definition, change, problems } }) {
  const at = Date.parse(shown(valueAt(definition, "trigger.at")));
  const onInput = (/** @type {any} */ { target: { value } }) => {
    const ms = fromLocal(value, zone.value);
    change(withValue(definition, "trigger.at", Number.isNaN(ms) ? "" : new Date(ms).toISOString().replace(".000", "")));
  };
  return html`<${Around} path="trigger.at" problems=${problems}>
    <input type="datetime-local" required value=${Number.isNaN(at) ? "" : toLocal(at, zone.value)} onInput=${onInput} ...${attributesOf(problems, "trigger.at")} /><//>`;
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
  const field = (/** @type {Path} */ path, /** @type {Record<string, any>} */ more = {}) => html`<${Field} form=${form} path=${path} ...${more} />`;
  const fields = {
    cron: () => [field("trigger.schedule", { isRequired: true, more: { spellcheck: false } }), field("trigger.timezone", { more: { spellcheck: false } })],
    every: () => [field("trigger.every_seconds", { isRequired: true, type: "number" })],
    at: () => [html`<${At} form=${form} />`],
    event: () => [field("trigger.pattern", { isRequired: true, more: { spellcheck: false } }), field("trigger.channel")],
    system_event: () => [field("trigger.source", { isRequired: true }), field("trigger.event_type", { isRequired: true }), field("trigger.where", { more: { spellcheck: false } })],
    webhook: () => [field("trigger.path", { more: { spellcheck: false } }), field("trigger.where", { more: { spellcheck: false } })],
  }[/** @type {string} */ (type)];
  return html`
    <fieldset><legend>${T.editRoutine.trigger}</legend>
      <${Choice} form=${form} path="trigger.type" choices=${T.routine.triggers} onChoose=${(/** @type {string} */ next) => onType("trigger", next)} />
      ${fields?.()}
    </fieldset>
  `;
}

/** @param {{ form: Form, options: import("../../api.js").schemas["JobOptions"] | null, onType: (part: "trigger" | "action", type: string) => void }} props */
function Action({ form, options, onType }) {
  const type = valueAt(form.definition, "action.type");
  const field = (/** @type {Path} */ path, /** @type {Record<string, any>} */ more = {}) => html`<${Field} form=${form} path=${path} ...${more} />`;
  const named = (/** @type {string[]} */ names) => ({ "": T.editRoutine.unset, ...Object.fromEntries(names.map((name) => [name, name])) });
  const model = html`<${Choice} form=${form} path="action.model" choices=${named(options?.models ?? [])} />`;
  const fields = {
    lightweight: () => [field("action.prompt", { isRequired: true, rows: 5 }), html`<${Check} form=${form} path="action.use_tools" />`,
      valueAt(form.definition, "action.use_tools") && field("action.max_tool_rounds", { type: "number" }), model],
    full_job: () => [field("action.description", { isRequired: true, rows: 5 }), field("action.title"), model,
      html`<${Choice} form=${form} path="action.image" choices=${named(options?.images ?? [])} />`,
      field("action.limits.timeout_seconds", { type: "number" }), field("action.limits.max_cost_usd", { type: "number" }), html`<${Check} form=${form} path="action.review" />`],
    system_event_text: () => [field("action.text", { isRequired: true, rows: 2 })],
  }[/** @type {string} */ (type)];
  return html`
    <fieldset><legend>${T.editRoutine.action}</legend>
      <${Choice} form=${form} path="action.type" choices=${T.routine.actions} onChoose=${(/** @type {string} */ next) => onType("action", next)} />
      ${fields?.()}
    </fieldset>
  `;
}

/** @param {{ form: Form }} props */
function Limits({ form }) {
  const number = (/** @type {Path} */ path, /** @type {string} */ placeholder = "") => html`<${Field} form=${form} path=${path} type="number" more=${{ placeholder }} />`;
  return html`
    <details><summary>${T.editRoutine.guardrails}</summary><div class="fields">
      ${number("guardrails.cooldown_seconds", "300")}
      ${number("guardrails.max_concurrent", "1")}
      <${Choice} form=${form} path="guardrails.overlap" choices=${{ "": T.editRoutine.unset, ...T.editRoutine.overlaps }} />
      <${Choice} form=${form} path="guardrails.catch_up" choices=${{ "": T.editRoutine.unset, ...T.editRoutine.catchUps }} />
      ${number("guardrails.retry.max_attempts", "1")}
      ${number("guardrails.disable_after_failures", "10")}
      ${number("guardrails.timeout_seconds", "600")}
      ${number("guardrails.max_runs")}
      ${number("guardrails.budget.max_cost_usd")}
      ${number("guardrails.budget.max_tokens")}
      <${Choice} form=${form} path="guardrails.budget.per" choices=${{ "": T.editRoutine.unset, ...T.routine.per }} />
    </div></details>
  `;
}

/** @param {{ form: Form }} props */
const Notify = ({ form }) => html`
  <details><summary>${T.editRoutine.notify}</summary><div class="fields">
    <${Check} form=${form} path="notify.on_attention" isOn />
    <${Check} form=${form} path="notify.on_failure" isOn />
    <${Check} form=${form} path="notify.on_success" />
    <${Field} form=${form} path="notify.channel" />
    <${Field} form=${form} path="notify.webhook_url" type="url" />
  </div></details>
`;

/** @param {{ form: Form, options: import("../../api.js").schemas["JobOptions"] | null, onType: (part: "trigger" | "action", type: string) => void }} props */
export const Fields = ({ form, options, onType }) => html`
  <fieldset><legend>${T.editRoutine.general}</legend>
    <${Field} form=${form} path="name" isRequired more=${{ autofocus: true }} />
    <${Field} form=${form} path="description" rows=${2} />
    <${Check} form=${form} path="enabled" isOn />
  </fieldset>
  <${Trigger} form=${form} onType=${onType} />
  <${Action} form=${form} options=${options} onType=${onType} />
  <${Limits} form=${form} />
  <${Notify} form=${form} />
`;
