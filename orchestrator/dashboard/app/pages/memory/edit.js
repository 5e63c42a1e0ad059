// The form in which a document is edited. A document that was changed meanwhile is shown beside what was typed, and nothing is replaced unseen.

import { useState } from "preact/hooks";
import { get, ignoreProblem, isProblem, put } from "../../api.js";
import { ConfirmButton } from "../../parts.js";
import { Clash, Field, Form, problemsAt } from "../../form.js";
import { go, place } from "../../router.js";
import { drafts } from "../../session.js";
import { T } from "../../texts.js";
import { Text, announce, html, useDoing } from "../../ui.js";
import { urlOf } from "./tree.js";

// --- writes of documents, and the drafts of them
// Owns that a document is replaced only by someone who has seen its version, and that no text that was typed is lost over one.

/** @typedef {import("../../api.js").schemas["MemoryDocument"]} MemoryDocument */

/** @param {number} version */
const tagOf = (version) => `"${version}"`;

/** A document, or null if there is none. @param {string} path @param {AbortSignal} [signal] @returns {Promise<MemoryDocument | null>} */
export const readDocument = (path, signal) =>
  get("/api/memory", { query: { path }, signal }).catch(ignoreProblem(404));

/** Replaces a version of a document; null: there is none yet. @param {string} path @param {string} content @param {number | null} version */
export const writeDocument = (path, content, version) =>
  put("/api/memory", { query: { path }, body: { content }, ifMatch: version === null ? null : tagOf(version) });

/**
 * What is typed into a form, under a name in the storage of the tab. `isKept`: whether it is there.
 * @template {object} Draft
 * @param {string} name @param {Draft} start
 */
export function useDraft(name, start) {
  const [state, setState] = useState(() => ({ draft: /** @type {Draft} */ (drafts.get(name) ?? start), isKept: true }));
  return {
    ...state,
    /** @param {Partial<Draft>} values */
    change(values) {
      const draft = { ...state.draft, ...values };
      let isKept = true;
      try {
        drafts.set(name, draft);
      } catch {
        // The storage of a tab holds about 5 MB.
        isKept = false;
      }
      setState({ draft, isKept });
    },
    /** Forgets it, in the form as well. @param {Draft} [next] */
    clear(next = start) {
      drafts.remove(name);
      setState({ draft: next, isKept: true });
    },
  };
}

// --- the form of a new document. What is typed stays until it is stored

/** No document has this name: its parts of a path are apart by a slash, and those of this by a space. */
const DRAFT = "new memory";

/** @param {{ onChange: () => void }} props */
export function NewDocument({ onChange }) {
  const form = useDraft(DRAFT, { path: place.value.query.get("path") ?? "", content: "" });
  const { draft, change, clear } = form;
  const doing = useDoing();
  const [taken, setTaken] = useState("");
  const submit = () => doing.run(async () => {
    const path = draft.path.trim();
    const existing = await readDocument(path);
    if (existing && existing.content !== draft.content) return setTaken(path);
    if (!existing) await writeDocument(path, draft.content, null);
    clear();
    announce(T.memory.saved);
    onChange();
    go(urlOf(path));
  });
  const discard = () => (clear({ path: "", content: "" }), go("/memory"));
  return html`
    <${Form} look="wide-form" doing=${doing} onSubmit=${submit} names=${["path"]} word=${T.memory.save} busy=${T.memory.saving} isReady=${draft.path.trim() !== ""}
      buttons=${(draft.path || draft.content) && html`<button type="button" disabled=${doing.isBusy} onClick=${discard}>${T.memory.discard}</button>`}>
      <h2>${T.memory.new}</h2>
      <${Field} id="path" name=${T.memory.path} required autofocus spellcheck=${false} value=${draft.path} note=${T.memory.pathNote} problems=${problemsAt(doing.error, "path")}
        change=${(/** @type {string} */ path) => (setTaken(""), change({ path }))} />
      <${Content} form=${form} isBusy=${doing.isBusy} />
      ${taken && html`<p class="failure" role="alert">${T.memory.exists} <a href=${urlOf(taken, { show: "edit" })}><${Text}>${taken}<//></a></p>`}
    <//>
  `;
}

/** The field of the text. @param {{ form: ReturnType<typeof useDraft<{ content: string }>>, isBusy: boolean, name?: string }} props */
const Content = ({ form: { draft, isKept, change }, isBusy, name = T.memory.content }) => html`
  <${Field} id="content" name=${name} rows=${20} readonly=${isBusy} value=${draft.content} change=${(/** @type {string} */ content) => change({ content })} />
  ${!isKept && html`<p class="banner">${T.memory.notKept}</p>`}
`;

/** `version` is the one that the draft began with. @typedef {{ content: string, version: number }} Editing */

/** The name of a document's draft. @param {string} path */
export const draftOf = (path) => `memory.${path}`;

/** @param {{ stored: MemoryDocument }} props */
const Stored = ({ stored }) => html`
  <div><h3>${T.memory.stored(stored.version)}</h3>
    <pre class="stored" tabindex="0" role="group" aria-label=${T.memory.stored(stored.version)}><${Text}>${stored.content}<//></pre></div>
`;

/** What is sent, and what the server says. @param {string} path @param {MemoryDocument} document @param {ReturnType<typeof useDraft<Editing>>} form @param {() => void} onChange */
function useSave(path, document, { draft, clear }, onChange) {
  const doing = useDoing();
  /** What a clash has found; undefined before one. */
  const [found, setFound] = useState(/** @type {MemoryDocument | null | undefined} */ (undefined));
  // A draft may have begun with an earlier version, before the page was left.
  const stored = found === undefined ? document : found;
  const isBehind = stored === null || stored.version !== draft.version;
  const end = () => {
    clear();
    announce(T.memory.saved);
    onChange();
    go(urlOf(path));
  };
  /** @param {number | null} version the one that is replaced */
  const save = (version) => doing.run(async () => {
    try {
      await writeDocument(path, draft.content, version);
    } catch (error) {
      const next = isProblem(error, 412) ? await readDocument(path).catch(() => undefined) : undefined;
      if (next === undefined) throw error;
      // An earlier try may have arrived without its answer.
      if (next?.content !== draft.content) return setFound(next);
    }
    end();
  });
  return { doing, stored, isBehind, save };
}

/** @param {{ path: string, document: MemoryDocument, onChange: () => void }} props */
export function Edit({ path, document, onChange }) {
  const start = { content: document.content, version: document.version };
  const form = useDraft(draftOf(path), start);
  const { draft, clear } = form;
  const { doing, stored, isBehind, save } = useSave(path, document, form, onChange);
  const isChanged = draft.content !== document.content;
  const leave = () => (clear(), onChange(), go(urlOf(path)));
  // Over another version only its own button saves.
  const buttons = html`
    ${isBehind && html`<button type="button" disabled=${doing.isBusy} onClick=${() => save(stored?.version ?? null)}>${stored ? T.memory.saveMine(stored.version) : T.memory.saveNew}</button>`}
    ${(isChanged || isBehind) && html`<${ConfirmButton} name=${T.memory.discard} title=${T.memory.discardQuestion} note=${T.memory.discardNote} isDisabled=${doing.isBusy} onYes=${leave} />`}`;
  return html`
    <${Form} look="wide-form" doing=${doing} onSubmit=${() => save(draft.version)} word=${isBehind ? null : T.memory.save} busy=${T.memory.saving} isReady=${isChanged && !isBehind} buttons=${buttons}>
      ${isBehind && html`<${Clash} name=${stored ? T.memory.clash : T.memory.clashGone} note=${stored ? T.memory.clashNote(stored.version, draft.version) : T.memory.notSaved} />`}
      <div class=${isBehind && stored ? "versions-beside" : ""}>
        ${isBehind && stored && html`<${Stored} stored=${stored} />`}
        <div><${Content} form=${form} isBusy=${doing.isBusy} name=${isBehind ? T.memory.yours : undefined} /></div>
      </div>
    <//>
  `;
}
