// The user's settings. What is typed stays until it is saved; settings that were changed elsewhere meanwhile are noticed, and nothing is
// replaced unseen.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, getTagged, putTagged } from "../../api.js";
import { Table } from "../../parts.js";
import { drafts, generation } from "../../session.js";
import { T } from "../../texts.js";
import { Text, announce, browserZone, html, useLoad } from "../../ui.js";

// --- the user's settings as texts of a form, and back. Pure

/** @typedef {import("../../api.js").schemas["UserSettings"]} UserSettings */
/** @typedef {{ timezone: string, model: string, effort: string, temperature: string, quietFrom: string, quietTo: string, heartbeat: string }} Form */

/** The fields of the form, by their names in the API. */
export const FIELDS = /** @type {const} */ ({
  timezone: "timezone", model: "model", effort: "effort", temperature: "temperature", quietFrom: "quiet_hours", quietTo: "quiet_hours", heartbeat: "heartbeat_every_seconds",
});
export const NAMES = /** @type {(keyof Form)[]} */ (Object.keys(FIELDS));

/** @param {UserSettings} settings @returns {Form} */
export function formOf(settings) {
  return {
    timezone: settings.timezone ?? "",
    model: settings.model ?? "",
    effort: settings.effort ?? "",
    temperature: String(settings.temperature ?? ""),
    quietFrom: settings.quiet_hours?.from ?? "",
    quietTo: settings.quiet_hours?.to ?? "",
    heartbeat: String(settings.heartbeat_every_seconds ?? ""),
  };
}

/** Settings with the values of the form; what has no field here stays. @param {Form} form @param {UserSettings} base */
export function settingsOf(form, base) {
  const { effort, ...rest } = base;
  const number = (/** @type {string} */ text) => (text.trim() === "" ? null : Number(text));
  return {
    ...rest,
    timezone: form.timezone.trim() || null,
    model: form.model || null,
    ...(form.effort && { effort: form.effort }),
    temperature: number(form.temperature),
    quiet_hours: form.quietFrom || form.quietTo ? { from: form.quietFrom, to: form.quietTo } : null,
    heartbeat_every_seconds: number(form.heartbeat),
  };
}

/** The fields in which two forms differ. @param {Form} one @param {Form} other */
export const differing = (one, other) => NAMES.filter((name) => one[name] !== other[name]);

/** What was changed in a form, on top of what is stored now. @param {Form} mine @param {Form} base what it began with @param {Form} stored @returns {Form} */
export const merged = (mine, base, stored) => ({ ...stored, ...Object.fromEntries(differing(mine, base).map((name) => [name, mine[name]])) });

/** `base`: what the form began with. @typedef {{ form: Form, base: UserSettings, tag: string | null }} Draft */

const DRAFT = "settings";
const EFFORTS = ["low", "medium", "high"];
const ZONES = typeof Intl.supportedValuesOf === "function" ? Intl.supportedValuesOf("timeZone") : [];

/** @param {AbortSignal} [signal] */
const readSettings = (signal) => getTagged("/api/settings", signal ? { signal } : {});

/** @param {AbortSignal} signal */
async function read(signal) {
  const [settings, options] = await Promise.all([readSettings(signal), get("/api/options", { signal })]);
  return { settings, models: options.models };
}

/** A draft on top of what is stored now. `clash`: the stored values of fields that were changed elsewhere. @param {Draft} draft @param {{ content: UserSettings, tag: string | null }} stored */
export function rebase({ form, base }, { content, tag }) {
  const [before, now] = [formOf(base), formOf(content)];
  const isChanged = differing(before, now).length > 0;
  const next = merged(form, before, now);
  return { draft: { form: next, base: content, tag }, clash: isChanged && differing(next, now).length > 0 ? now : null };
}

/** The form and what becomes of it. @param {{ content: UserSettings, tag: string | null }} stored */
function useForm(stored) {
  const start = () => {
    const kept = /** @type {Draft | null} */ (drafts.get(DRAFT));
    return kept?.form && kept.base ? rebase(kept, stored) : { draft: { form: formOf(stored.content), base: stored.content, tag: stored.tag }, clash: null };
  };
  const [state, setState] = useState(() => ({ ...start(), isBusy: false, isSaved: false, error: /** @type {Error | null} */ (null) }));
  /** What was typed while a request was sent is here. */
  const latest = useRef(state);
  const set = (/** @type {Partial<typeof state>} */ change) => {
    const next = { ...latest.current, ...change };
    const isChanged = differing(next.draft.form, formOf(next.draft.base)).length > 0;
    if (isChanged) drafts.set(DRAFT, next.draft);
    else drafts.remove(DRAFT);
    latest.current = next;
    setState(next);
  };
  async function save() {
    if (latest.current.isBusy) return;
    const { form, base, tag } = latest.current.draft;
    set({ isBusy: true, isSaved: false, error: null });
    try {
      const { content, tag: next } = await putTagged("/api/settings", { body: settingsOf(form, base), ifMatch: tag });
      set({ draft: { form: merged(latest.current.draft.form, form, formOf(content)), base: content, tag: next }, clash: null, isBusy: false, isSaved: true });
      announce(T.settings.saved);
    } catch (failure) {
      const isClash = failure instanceof ApiError && failure.status === 412;
      const now = isClash ? await readSettings().catch(() => null) : null;
      set(now ? { ...rebase(latest.current.draft, now), isBusy: false } : { isBusy: false, error: /** @type {Error} */ (failure) });
    }
  }
  return {
    ...state,
    save,
    change: (/** @type {Partial<Form>} */ values) => set({ draft: { ...latest.current.draft, form: { ...latest.current.draft.form, ...values } }, isSaved: false }),
    reset: () => set({ draft: { ...state.draft, form: formOf(state.draft.base) }, clash: null, error: null, isSaved: false }),
  };
}

/** What is stored, beside what the form has. @param {{ stored: Form, mine: Form }} props */
const Clash = ({ stored, mine }) => html`
  <div class="clash" role="alert"><p>${T.settings.clash}</p>
    <${Table} name=${T.settings.parts} columns=${T.settings.clashColumns}>${differing(mine, stored).map((name) => html`<tr key=${name}><td>${T.settings[name]}</td>
        <td><${Text}>${stored[name] || T.settings.unset}<//></td><td><${Text}>${mine[name] || T.settings.unset}<//></td></tr>`)}<//></div>
`;

/** What the server says about a field. @param {Error | null} error @param {keyof Form} name */
const wrongs = (error, name) => (error instanceof ApiError ? error.fields.filter(({ field }) => field.split(/[.[]/)[0] === FIELDS[name]) : []);

/** @param {{ form: Form, error: Error | null, models: string[], change: (values: Partial<Form>) => void, isDisabled: boolean }} props */
function Fields({ form, error, models, change, isDisabled }) {
  const onInput = (/** @type {keyof Form} */ name) => (/** @type {any} */ event) => change({ [name]: event.target.value });
  const shared = (/** @type {keyof Form} */ name, /** @type {string | undefined} */ note) => ({
    id: name, value: form[name], disabled: isDisabled, "aria-invalid": wrongs(error, name).length > 0 ? "true" : undefined,
    "aria-describedby": [note && `${name}-note`, wrongs(error, name).length > 0 && `${name}-wrong`].filter(Boolean).join(" ") || undefined,
  });
  /** @param {keyof Form} name @param {any} control @param {string} [note] */
  const field = (name, control, note) => html`
    <div class="field"><label for=${name}>${T.settings[name]}</label>${control}
      ${note && html`<p class="note" id=${`${name}-note`}>${note}</p>`}
      ${wrongs(error, name).length > 0 && html`<div class="failure" id=${`${name}-wrong`}>${wrongs(error, name).map(({ message }, index) => html`<p key=${index}><${Text}>${message}<//></p>`)}</div>`}</div>`;
  /** @param {keyof Form} name @param {Record<string, unknown>} more @param {string} [note] */
  const input = (name, more, note) => field(name, html`<input ...${shared(name, note)} onInput=${onInput(name)} ...${more} />`, note);
  /** @param {keyof Form} name @param {string[]} choices @param {string} [unset] */
  const choice = (name, choices, unset = T.settings.unset) => field(name, html`
    <select ...${shared(name, undefined)} onChange=${onInput(name)}><option value="">${unset}</option>
      ${(form[name] === "" || choices.includes(form[name]) ? choices : [...choices, form[name]]).map((one) => html`<option key=${one} value=${one}>${one}</option>`)}</select>`);
  return html`
    ${input("timezone", { list: "zones", spellcheck: false, autocomplete: "off" }, T.settings.timezoneNote)}
    <datalist id="zones">${["UTC", ...ZONES].map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
    ${!isDisabled && form.timezone !== browserZone && html`<p><button type="button" class="link" onClick=${() => change({ timezone: browserZone })}>${T.settings.useZone(browserZone)}</button></p>`}
    ${choice("model", models, models[0] ? T.newJob.defaultModel(models[0]) : undefined)}
    ${choice("effort", EFFORTS)}
    ${input("temperature", { type: "number", min: 0, max: 2, step: "any" }, T.settings.temperatureNote)}
    <div class="pair">${input("quietFrom", { type: "time" })} ${input("quietTo", { type: "time" }, T.settings.quietNote)}</div>
    ${input("heartbeat", { type: "number", min: 0, max: 604_800, step: 1 }, T.settings.heartbeatNote)}
  `;
}

/** @param {{ stored: { content: UserSettings, tag: string | null }, models: string[], canWrite: boolean }} props */
function Form({ stored, models, canWrite }) {
  const { draft: { form, base }, clash, isBusy, isSaved, error, change, save, reset } = useForm(stored);
  const element = useRef(/** @type {HTMLFormElement | null} */ (null));
  useEffect(() => void (/** @type {HTMLElement | null | undefined} */ (element.current?.querySelector("[aria-invalid=true]")))?.focus(), [error]);
  const isChanged = differing(form, formOf(base)).length > 0;
  const others = error instanceof ApiError ? error.fields.filter((one) => !NAMES.some((name) => wrongs(error, name).includes(one))) : [];
  return html`
    <form class="settings" ref=${element} onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void save())}>
      ${clash && html`<${Clash} stored=${clash} mine=${form} />`}
      <${Fields} form=${form} error=${error} models=${models} change=${change} isDisabled=${!canWrite} />
      ${error && html`<div class="failure" role="alert"><p><${Text}>${error.message}<//></p>
        ${others.map(({ field, message }, index) => html`<p key=${index}><${Text}>${field}: ${message}<//></p>`)}</div>`}
      ${canWrite && html`<p class="line"><button type="submit" disabled=${isBusy || !isChanged}>${isBusy ? T.settings.saving : T.settings.save}</button>
        ${isChanged && html`<button type="button" disabled=${isBusy} onClick=${reset}>${T.settings.reset}</button>`}
        ${isSaved && !isChanged && html`<span class="note">${T.settings.saved}</span>`}</p>`}
    </form>
  `;
}

/** @param {{ canWrite: boolean }} props */
export function General({ canWrite }) {
  const { value, status } = useLoad(read, [generation.value]);
  return html`
    ${status}
    ${value && html`<${Form} key=${value.settings.tag ?? generation.value} stored=${value.settings} models=${value.models} canWrite=${canWrite} />`}
  `;
}
