// A new routine, or another definition of one: as a form and as JSON text, which are two views of the same definition.
//
// Owns what is written until it is saved: it outlives the page, and a change by another one.

import { useRef, useState } from "preact/hooks";
import { get, isProblem, newIntent, patch, post } from "../api.js";
import { Clash, Field, Form } from "../form.js";
import { position } from "../live.js";
import { ConfirmButton, Tabs } from "../parts.js";
import { go, place } from "../router.js";
import { drafts, who } from "../session.js";
import { putRoutine } from "../store.js";
import { T } from "../texts.js";
import { CopyAs, Heading, Text, html, useDoing, useLoad, useSubject } from "../ui.js";
import { EMPTY, definitionOf, differences, isChanged, isObject, isSame, patchOf, valueAt } from "./routine/definition.js";
import { Fields, withType } from "./routine/fields.js";
import { Check, keep, usePreview } from "./routine/preview.js";

/** @typedef {import("./routine/definition.js").Definition} Definition */
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
  const doing = useDoing();
  const [clash, setClash] = useState(/** @type {Pick<Draft, "definition" | "base" | "rev"> | null} */ (null));
  const save = (/** @type {number | null} */ rev) => doing.run(async () => {
    const seen = position();
    const { definition, base, intent } = draft;
    try {
      const answer = /** @type {import("../api.js").schemas["RoutineSaved"]} */ (id
        ? await patch("/api/routines/{id}", { path: { id }, body: patchOf(base, definition), ifMatch: `"${rev}"` })
        : await post("/api/routines", { body: definition, intent }));
      const { warnings, ...routine } = answer;
      drafts.remove(name);
      keep(answer);
      putRoutine(routine, seen);
      go(`/routines/${routine.id}`);
    } catch (error) {
      const theirs = id && isProblem(error, 412) ? await read(id).catch(() => null) : null;
      setClash(theirs);
      if (!theirs) throw error;
    }
  });
  return {
    doing, clash,
    save: () => save(draft.rev),
    saveOnTop: () => save(clash?.rev ?? draft.rev),
    take: () => (clash && set({ ...clash, text: null }), setClash(null)),
  };
}

/** @param {{ text: string, write: (text: string) => void }} props */
function JsonText({ text, write }) {
  const { value, why } = parse(text);
  return html`
    <${Field} id="json" name=${T.editRoutine.json} class="code" rows=${24} spellcheck=${false} aria-invalid=${value ? undefined : "true"} value=${text} change=${write}
      note=${value ? T.editRoutine.jsonNote : html`<${Text}>${T.editRoutine.unreadable(why)}<//>`} />
  `;
}

/** @param {unknown} value */
const shown = (value) => (value === undefined || value === null ? "" : typeof value === "string" ? value : JSON.stringify(value));

/** A routine that was changed while it was edited: both versions, and the choice between them. @param {{ theirs: Definition, mine: Definition, base: Definition, children: any }} props */
function Changed({ theirs, mine, base, children }) {
  const rows = differences(theirs, mine)
    .map(({ field, one, other }) => [field, shown(one), shown(other), isChanged(base, mine, field) ? T.editRoutine.clashMine : T.editRoutine.clashTheirs]);
  return html`<${Clash} name=${T.editRoutine.clash} note=${rows.length > 0 ? T.editRoutine.clashNote : T.editRoutine.same} columns=${T.editRoutine.clashColumns} rows=${rows}>
    <p class="line">${children}</p><//>`;
}

/** @param {{ id: string | null, name: string, start: Draft, options: Options | null, onDiscard: () => void }} props */
function Editor({ id, name, start, options, onDiscard }) {
  const form = useDraft(name, start);
  const { draft: { definition, text, base } } = form;
  const { doing, clash, save, saveOnTop, take } = useSave(id, name, form);
  const preview = usePreview(definition, id ? base["name"] : null);
  /** What was written for other types of trigger and action. */
  const kept = useRef(new Map());
  const isJson = place.value.query.get("as") === "json";
  const isReadable = text === null || parse(text).value !== null;
  const hasChanged = text !== null || !isSame(definition, id ? base : EMPTY);
  const onType = (/** @type {"trigger" | "action"} */ part, /** @type {string} */ type) => form.change(withType(definition, part, type, kept.current));
  return html`
    <${Tabs} name=${T.editRoutine.modes} words=${{ form: T.editRoutine.form, json: T.editRoutine.json }} current=${isJson ? "json" : "form"}
      path=${(/** @type {string} */ name) => (name === "json" ? "?as=json" : place.value.path)} />
    <${Form} look="job routine" doing=${doing} onSubmit=${save} names=${isJson ? [] : Object.keys(T.editRoutine.fields)} word=${id ? T.editRoutine.save : T.editRoutine.create} busy=${T.editRoutine.busy} isReady=${isReadable}
      buttons=${hasChanged && html`<${ConfirmButton} name=${T.editRoutine.discard} title=${T.editRoutine.discardQuestion} onYes=${() => (drafts.remove(name), onDiscard())} />`}>
      ${isJson ? html`<${JsonText} text=${text ?? JSON.stringify(definition, null, 2)} write=${form.write} />` : html`
        ${!isReadable && html`<p class="failure" role="alert">${T.editRoutine.correct}</p>`}
        <${Fields} form=${{ definition, change: form.change, error: doing.error }} options=${options} onType=${onType} />`}
      <${Check} preview=${preview} own=${valueAt(definition, "trigger.timezone")} />
      ${clash && html`<${Changed} theirs=${clash.definition} mine=${definition} base=${base}>
        <button type="button" disabled=${doing.isBusy} onClick=${saveOnTop}>${T.editRoutine.clashSave}</button>
        <button type="button" disabled=${doing.isBusy} onClick=${take}>${T.editRoutine.clashTake}</button><//>`}
    <//>
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
