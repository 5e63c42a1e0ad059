// The user's settings. What is typed stays until it is saved; settings that were changed elsewhere meanwhile are noticed, and nothing is
// replaced unseen.

import { useRef, useState } from "preact/hooks";
import { get, getTagged, isProblem, putTagged } from "../../api.js";
import { Clash, Field, Form, asChoices, problemsAt } from "../../form.js";
import { drafts, generation } from "../../session.js";
import { T } from "../../texts.js";
import { announce, browserZone, html, useDoing, useLoad } from "../../ui.js";

// --- the user's settings as texts of a form, and back. Pure

/** @typedef {import("../../api.js").schemas["UserSettings"]} UserSettings */
/** @typedef {{ timezone: string, model: string, effort: string, temperature: string, quietFrom: string, quietTo: string, heartbeat: string }} Values */

/** The fields of the form, by their names in the API. */
export const FIELDS = /** @type {const} */ ({
  timezone: "timezone", model: "model", effort: "effort", temperature: "temperature", quietFrom: "quiet_hours", quietTo: "quiet_hours", heartbeat: "heartbeat_every_seconds",
});
export const NAMES = /** @type {(keyof Values)[]} */ (Object.keys(FIELDS));

/** @param {UserSettings} settings @returns {Values} */
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

/** Settings with the values of the form; what has no field here stays. @param {Values} form @param {UserSettings} base */
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

/** The fields in which two forms differ. @param {Values} one @param {Values} other */
export const differing = (one, other) => NAMES.filter((name) => one[name] !== other[name]);

/** What was changed in a form, on top of what is stored now. @param {Values} mine @param {Values} base what it began with @param {Values} stored @returns {Values} */
export const merged = (mine, base, stored) => ({ ...stored, ...Object.fromEntries(differing(mine, base).map((name) => [name, mine[name]])) });

/** `base`: what the form began with. @typedef {{ form: Values, base: UserSettings, tag: string | null }} Draft */

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
  const [state, setState] = useState(() => ({ ...start(), isSaved: false }));
  const doing = useDoing();
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
  const save = () => doing.run(async () => {
    const { form, base, tag } = latest.current.draft;
    set({ isSaved: false });
    try {
      const { content, tag: next } = await putTagged("/api/settings", { body: settingsOf(form, base), ifMatch: tag });
      set({ draft: { form: merged(latest.current.draft.form, form, formOf(content)), base: content, tag: next }, clash: null, isSaved: true });
      announce(T.settings.saved);
    } catch (error) {
      const now = isProblem(error, 412) ? await readSettings().catch(() => null) : null;
      if (!now) throw error;
      set(rebase(latest.current.draft, now));
    }
  });
  return {
    ...state,
    doing,
    save,
    change: (/** @type {Partial<Values>} */ values) => set({ draft: { ...latest.current.draft, form: { ...latest.current.draft.form, ...values } }, isSaved: false }),
    reset: () => (doing.setError(null), set({ draft: { ...state.draft, form: formOf(state.draft.base) }, clash: null, isSaved: false })),
  };
}

/** @param {{ form: Values, error: Error | null, models: string[], change: (values: Partial<Values>) => void, isDisabled: boolean }} props */
function Fields({ form, error, models, change, isDisabled }) {
  /** @param {keyof Values} name @param {Record<string, unknown>} more */
  const field = (name, more) => html`<${Field} id=${name} name=${T.settings[name]} value=${form[name]} disabled=${isDisabled} problems=${problemsAt(error, FIELDS[name])}
    change=${(/** @type {string} */ value) => change({ [name]: value })} ...${more} />`;
  /** @param {keyof Values} name @param {string[]} choices @param {string} [unset] */
  const choice = (name, choices, unset = T.settings.unset) => field(name, { choices: [["", unset], ...asChoices(choices)] });
  return html`
    ${field("timezone", { list: "zones", spellcheck: false, note: T.settings.timezoneNote })}
    <datalist id="zones">${["UTC", ...ZONES].map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
    ${!isDisabled && form.timezone !== browserZone && html`<p><button type="button" class="link" onClick=${() => change({ timezone: browserZone })}>${T.settings.useZone(browserZone)}</button></p>`}
    ${choice("model", models, models[0] ? T.newJob.defaultModel(models[0]) : undefined)}
    ${choice("effort", EFFORTS)}
    ${field("temperature", { type: "number", min: 0, max: 2, step: "any", note: T.settings.temperatureNote })}
    <div class="pair">${field("quietFrom", { type: "time" })} ${field("quietTo", { type: "time", note: T.settings.quietNote })}</div>
    ${field("heartbeat", { type: "number", min: 0, max: 604_800, step: 1, note: T.settings.heartbeatNote })}
  `;
}

/** @param {{ stored: { content: UserSettings, tag: string | null }, models: string[], canWrite: boolean }} props */
function Settings({ stored, models, canWrite }) {
  const { draft: { form, base }, clash, isSaved, doing, change, save, reset } = useForm(stored);
  const isChanged = differing(form, formOf(base)).length > 0;
  const buttons = isChanged ? canWrite && html`<button type="button" disabled=${doing.isBusy} onClick=${reset}>${T.settings.reset}</button>` : isSaved && html`<span class="note">${T.settings.saved}</span>`;
  return html`
    <${Form} look="settings" doing=${doing} onSubmit=${save} names=${Object.values(FIELDS)} word=${canWrite ? T.settings.save : null} busy=${T.settings.saving} isReady=${isChanged} buttons=${buttons}>
      ${clash && html`<${Clash} name=${T.settings.clash} note=${T.settings.clashNote} columns=${T.settings.clashColumns}
        rows=${differing(form, clash).map((name) => [T.settings[name], clash[name] || T.settings.unset, form[name] || T.settings.unset])} />`}
      <${Fields} form=${form} error=${doing.error} models=${models} change=${change} isDisabled=${!canWrite} />
    <//>
  `;
}

/** @param {{ canWrite: boolean }} props */
export function General({ canWrite }) {
  const { value, status } = useLoad(read, [generation.value]);
  return html`
    ${status}
    ${value && html`<${Settings} key=${value.settings.tag ?? generation.value} stored=${value.settings} models=${value.models} canWrite=${canWrite} />`}
  `;
}
