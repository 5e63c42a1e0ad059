// A new routine, or another definition of one: as a form and as JSON text, which are two views of the same definition.
//
// Owns what is written until it is saved: it outlives the page, and a change by another one.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, newIntent, patch, post } from "../api.js";
import { position } from "../live.js";
import { ConfirmButton, Table, Tabs } from "../parts.js";
import { go, place } from "../router.js";
import { drafts, who } from "../session.js";
import { putRoutine } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Heading, Text, html, useLoad, useSubject } from "../ui.js";
import { EMPTY, definitionOf, differences, isChanged, isObject, isSame, patchOf, valueAt } from "./routine/definition.js";
import { Fields, withType } from "./routine/fields.js";
import { Check, keep, usePreview } from "./routine/preview.js";

// --- a routine that was changed while it was edited: both versions, and the choice between them. What was written stays until one is made

/** @typedef {import("./routine/definition.js").Definition} Definition */

/** @param {unknown} value */
const shown = (value) => (value === undefined || value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));

/** @param {{ theirs: Definition, mine: Definition, base: Definition, isBusy: boolean, onSave: () => void, onTake: () => void }} props */
export function Clash({ theirs, mine, base, isBusy, onSave, onTake }) {
  const rows = differences(theirs, mine);
  return html`
    <section class="clash" role="alert" aria-label=${T.editRoutine.clash}>
      <h2>${T.editRoutine.clash}</h2>
      <p>${rows.length > 0 ? T.editRoutine.clashNote : T.editRoutine.same}</p>
      ${rows.length > 0 && html`
        <${Table} name=${T.editRoutine.clash} columns=${T.editRoutine.clashColumns}>${rows.map(({ field, one, other }) => html`
            <tr key=${field}><th scope="row"><code>${field}</code></th><td class="text"><${Text}>${shown(one)}<//></td><td class="text"><${Text}>${shown(other)}<//></td>
              <td>${isChanged(base, mine, field) ? T.editRoutine.clashMine : T.editRoutine.clashTheirs}</td></tr>`)}<//>`}
      <p class="line"><button type="button" disabled=${isBusy} onClick=${onSave}>${T.editRoutine.clashSave}</button>
        <button type="button" disabled=${isBusy} onClick=${onTake}>${T.editRoutine.clashTake}</button></p>
    </section>
  `;
}

/** @typedef {import("../api.js").schemas["JobOptions"]} Options */
/**
 * What is written. `text` is the JSON text while it is edited; `base` is the definition that was read, and `rev` its revision.
 * @typedef {{ definition: Definition, text: string | null, base: Definition, rev: number | null, intent: string }} Draft
 */

export const title = T.editRoutine.title;

/** @param {string} text @returns {{ value: Definition | null, why: string }} */
export function parse(text) {
  try {
    const value = JSON.parse(text);
    return isObject(value) ? { value, why: "" } : { value: null, why: typeof value };
  } catch (error) {
    return { value: null, why: /** @type {Error} */ (error).message };
  }
}

/** @param {string} id @param {AbortSignal} [signal] @returns {Promise<Pick<Draft, "definition" | "base" | "rev">>} */
async function read(id, signal) {
  const seen = position();
  const routine = await get("/api/routines/{id}", { path: { id }, signal });
  putRoutine(routine, seen);
  const definition = definitionOf(routine);
  return { definition, base: definition, rev: routine.rev };
}

/** @param {string} name @param {Draft} start */
function useDraft(name, start) {
  const [draft, setDraft] = useState(start);
  const set = (/** @type {Partial<Draft>} */ change) => {
    // Another definition is another intent.
    const next = { ...draft, intent: newIntent(), ...change };
    if (isSame(next.definition, next.base) && next.text === null) drafts.remove(name);
    else drafts.set(name, next);
    setDraft(next);
  };
  return {
    draft, set,
    /** @param {Definition} definition */
    change: (definition) => set({ definition, text: null }),
    /** @param {string} text */
    write: (text) => set({ text, definition: parse(text).value ?? draft.definition }),
  };
}

/**
 * Saves what is written. A change by another one is kept as `clash`: what is saved then goes on top of it.
 * @param {string | null} id @param {string} name @param {ReturnType<typeof useDraft>} form
 */
function useSave(id, name, { draft, set }) {
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null }} */ ({ isBusy: false, error: null }));
  const [clash, setClash] = useState(/** @type {Pick<Draft, "definition" | "base" | "rev"> | null} */ (null));
  /** @param {number | null} rev */
  async function save(rev) {
    if (state.isBusy) return;
    setState({ isBusy: true, error: null });
    const seen = position();
    try {
      const { definition, base, intent } = draft;
      const answer = /** @type {import("../api.js").schemas["RoutineSaved"]} */ (id
        ? await patch("/api/routines/{id}", { path: { id }, body: patchOf(base, definition), ifMatch: `"${rev}"` })
        : await post("/api/routines", { body: definition, intent }));
      const { warnings, ...routine } = answer;
      drafts.remove(name);
      keep(answer);
      putRoutine(routine, seen);
      go(`/routines/${routine.id}`);
    } catch (error) {
      const isClash = id !== null && error instanceof ApiError && error.status === 412;
      const theirs = isClash ? await read(id).catch(() => null) : null;
      setClash(theirs);
      setState({ isBusy: false, error: theirs ? null : /** @type {Error} */ (error) });
    }
  }
  return {
    ...state, clash,
    save: () => save(draft.rev),
    saveOnTop: () => save(clash?.rev ?? draft.rev),
    take: () => (clash && set({ ...clash, text: null }), setClash(null)),
  };
}

/** @param {{ text: string, write: (text: string) => void }} props */
function JsonText({ text, write }) {
  const { value, why } = parse(text);
  return html`
    <label for="json">${T.editRoutine.json}</label>
    <textarea id="json" class="code" rows="24" spellcheck=${false} aria-describedby="json-note" aria-invalid=${value ? undefined : "true"} value=${text}
      onInput=${(/** @type {any} */ { target }) => write(target.value)}></textarea>
    <p class="note" id="json-note">${value ? T.editRoutine.jsonNote : html`<${Text}>${T.editRoutine.unreadable(why)}<//>`}</p>
  `;
}

/** What the server said about the last try, as far as no field shows it. @param {{ error: Error, isJson: boolean }} props */
function Refused({ error, isJson }) {
  const fields = error instanceof ApiError ? error.fields : [];
  return html`
    <div class="failure" role="alert"><p><${Text}>${error.message}<//></p>
      ${fields.filter(({ field }) => isJson || !(field in T.editRoutine.fields)).map(({ field, message }, index) => html`<p key=${index}><code>${field}</code> <${Text}>${message}<//></p>`)}</div>
  `;
}

/** @param {{ id: string | null, name: string, start: Draft, options: Options | null, onDiscard: () => void }} props */
function Editor({ id, name, start, options, onDiscard }) {
  const form = useDraft(name, start);
  const { draft: { definition, text, base } } = form;
  const saving = useSave(id, name, form);
  const preview = usePreview(definition, id ? base["name"] : null);
  /** What was written for other types of trigger and action. */
  const kept = useRef(new Map());
  const element = useRef(/** @type {HTMLFormElement | null} */ (null));
  const isJson = place.value.query.get("as") === "json";
  const isReadable = text === null || parse(text).value !== null;
  const isChanged = text !== null || !isSame(definition, id ? base : EMPTY);
  const problems = saving.error instanceof ApiError ? saving.error.fields : [];
  // What is wrong inside of a closed part would not be seen.
  const open = (/** @type {Element | null | undefined} */ field) => field?.closest("details")?.setAttribute("open", "");
  useEffect(() => {
    const first = /** @type {HTMLElement | null | undefined} */ (element.current?.querySelector("[aria-invalid=true]"));
    open(first);
    first?.focus();
  }, [saving.error]);
  const onSubmit = (/** @type {Event} */ event) => (event.preventDefault(), isReadable && void saving.save());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key === "Enter" && (event.metaKey || event.ctrlKey)) element.current?.requestSubmit();
  };
  const onType = (/** @type {"trigger" | "action"} */ part, /** @type {string} */ type) => form.change(withType(definition, part, type, kept.current));
  return html`
    <${Tabs} name=${T.editRoutine.modes} words=${{ form: T.editRoutine.form, json: T.editRoutine.json }} current=${isJson ? "json" : "form"}
      path=${(/** @type {string} */ name) => (name === "json" ? "?as=json" : place.value.path)} />
    <form class="job routine" ref=${element} onSubmit=${onSubmit} onKeyDown=${onKeyDown} onInvalidCapture=${(/** @type {any} */ event) => open(event.target)}>
      ${isJson ? html`<${JsonText} text=${text ?? JSON.stringify(definition, null, 2)} write=${form.write} />` : html`
        ${!isReadable && html`<p class="failure" role="alert">${T.editRoutine.correct}</p>`}
        <${Fields} form=${{ definition, change: form.change, problems }} options=${options} onType=${onType} />`}
      <${Check} preview=${preview} own=${valueAt(definition, "trigger.timezone")} />
      ${saving.error && html`<${Refused} error=${saving.error} isJson=${isJson} />`}
      ${saving.clash && html`<${Clash} theirs=${saving.clash.definition} mine=${definition} base=${base} isBusy=${saving.isBusy} onSave=${saving.saveOnTop} onTake=${saving.take} />`}
      <p class="line"><button type="submit" disabled=${saving.isBusy || !isReadable}>${saving.isBusy ? T.editRoutine.busy : id ? T.editRoutine.save : T.editRoutine.create}</button>
        ${isChanged && html`<${ConfirmButton} name=${T.editRoutine.discard} title=${T.editRoutine.discardQuestion} onYes=${() => (drafts.remove(name), onDiscard())} />`}</p>
    </form>
  `;
}

export default function EditRoutine() {
  const id = place.value.params["id"] ?? null;
  const name = id ? `routine.${id}` : "routine";
  const [discarded, setDiscarded] = useState(0);
  const { value, status } = useLoad(async (signal) => {
    const [options, read_] = await Promise.all([get("/api/options", { signal }).catch(() => null), id ? read(id, signal) : { definition: EMPTY, base: {}, rev: null }]);
    // A draft has what it was made from, too: when that has changed, the server refuses to save it.
    const start = { text: null, intent: newIntent(), ...read_, ...drafts.get(name) };
    return { options, start, key: discarded };
  }, [id, discarded]);
  useSubject(id ? value?.start.base["name"] : T.editRoutine.new);
  const heading = id ? T.editRoutine.title : T.editRoutine.new;
  if (who.value?.role === "viewer") return html`<${Heading}>${heading}<//><p>${T.editRoutine.viewer}</p>`;
  return html`
    <${Heading}>${heading}<//>
    ${status}
    ${value?.key === discarded && html`<${Editor} key=${discarded} id=${id} name=${name} start=${value.start} options=${value.options} onDiscard=${() => setDiscarded(discarded + 1)} />`}
    ${id && html`<${CopyAs} cli=${`gantry routine edit ${id}`} path=${`/api/routines/${id}`} />`}
  `;
}
