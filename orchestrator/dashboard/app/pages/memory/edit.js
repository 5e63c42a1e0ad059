// The form in which a document is edited. A document that was changed meanwhile is shown beside what was typed, and nothing is replaced unseen.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, put } from "../../api.js";
import { ConfirmButton } from "../../parts.js";
import { go, place } from "../../router.js";
import { drafts } from "../../session.js";
import { T } from "../../texts.js";
import { Problem, Text, announce, html } from "../../ui.js";
import { marked } from "../../diff.js";
import { urlOf } from "./tree.js";

// --- writes of documents, and the drafts of them
// Owns that a document is replaced only by someone who has seen its version, and that no text that was typed is lost over one.

/** @typedef {import("../../api.js").schemas["MemoryDocument"]} MemoryDocument */

/** So often a text is added again to a document that others change at the same time. */
const MAX_TRIES = 3;

/** @param {number} version */
const tagOf = (version) => `"${version}"`;

/** @param {unknown} error */
export const isClash = (error) => error instanceof ApiError && error.status === 412;

/** @param {unknown} error */
export const isMissing = (error) => error instanceof ApiError && error.status === 404;

/** A document, or null if there is none. @param {string} path @param {AbortSignal} [signal] @returns {Promise<MemoryDocument | null>} */
export const readDocument = (path, signal) =>
  get("/api/memory", { query: { path }, signal }).catch((error) => {
    if (isMissing(error)) return null;
    throw error;
  });

/** Replaces a version of a document; null: there is none yet. @param {string} path @param {string} content @param {number | null} version */
export const writeDocument = (path, content, version) =>
  put("/api/memory", { query: { path }, body: { content }, ifMatch: version === null ? null : tagOf(version) });

/** A text with another one at its end, which begins on a new line: as tools add it. Pure. @param {string} content @param {string} added */
export const appended = (content, added) => `${content}${content === "" || content.endsWith("\n") ? "" : "\n"}${added}`;

/**
 * Adds a text at the end of a document. The result is called again after a failure that leaves open whether the text has arrived: it is
 * added once.
 * @param {string} path
 */
export function createAppender(path) {
  /** @type {{ version: number, content: string } | null} */
  let sent = null;
  return async (/** @type {string} */ text) => {
    for (let tries = 1; ; tries += 1) {
      const document = await readDocument(path);
      const hasArrived = sent !== null && document?.version === sent.version + 1 && document.content === sent.content && sent.content.endsWith(text);
      if (hasArrived) break;
      const content = appended(document?.content ?? "", text);
      sent = document && { version: document.version, content };
      try {
        await writeDocument(path, content, document?.version ?? null);
        break;
      } catch (error) {
        if (!isClash(error) || tries === MAX_TRIES) throw error;
      }
    }
    sent = null;
  };
}

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
  const { draft, isKept, change, clear } = useDraft(DRAFT, { path: place.value.query.get("path") ?? "", content: "" });
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null, taken: string }} */ ({ isBusy: false, error: null, taken: "" }));
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  useEffect(() => field.current?.focus(), []);
  async function submit(/** @type {Event} */ event) {
    event.preventDefault();
    if (state.isBusy) return;
    const path = draft.path.trim();
    setState({ isBusy: true, error: null, taken: "" });
    try {
      const existing = await readDocument(path);
      if (existing && existing.content !== draft.content) return setState({ isBusy: false, error: null, taken: path });
      if (!existing) await writeDocument(path, draft.content, null);
      clear();
      announce(T.memory.saved);
      onChange();
      go(urlOf(path));
    } catch (error) {
      setState({ isBusy: false, error: /** @type {Error} */ (error), taken: "" });
    }
  }
  const onKeyDown = (/** @type {any} */ event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && event.currentTarget.form.requestSubmit();
  const isWrong = state.taken !== "" || (state.error instanceof ApiError && state.error.fields.some(({ field }) => field === "path"));
  return html`
    <form class="wide-form" onSubmit=${submit}>
      <h2>${T.memory.new}</h2>
      <div class="field"><label for="path">${T.memory.path}</label>
      <input id="path" required ref=${field} spellcheck=${false} autocomplete="off" value=${draft.path} aria-describedby="path-note" aria-invalid=${isWrong ? "true" : undefined}
        onInput=${(/** @type {any} */ event) => change({ path: event.target.value })} />
      <p class="note" id="path-note">${T.memory.pathNote}</p></div>
      <label for="content">${T.memory.content}</label>
      <textarea id="content" rows="16" readonly=${state.isBusy} value=${draft.content} onKeyDown=${onKeyDown} onInput=${(/** @type {any} */ event) => change({ content: event.target.value })}></textarea>
      ${!isKept && html`<p class="banner">${T.memory.notKept}</p>`}
      ${state.taken && html`<p class="failure" role="alert">${T.memory.exists} <a href=${urlOf(state.taken, { show: "edit" })}><${Text}>${state.taken}<//></a></p>`}
      <${Problem} error=${state.error} />
      <p class="line"><button type="submit" disabled=${state.isBusy || !draft.path.trim()}>${state.isBusy ? T.memory.saving : T.memory.save}</button>
        ${(draft.path || draft.content) && html`<button type="button" disabled=${state.isBusy} onClick=${() => (clear({ path: "", content: "" }), go("/memory"))}>${T.memory.discard}</button>`}</p>
    </form>
  `;
}

/** `version` is the one that the draft began with. @typedef {{ content: string, version: number }} Editing */

/** The name of a document's draft. @param {string} path */
export const draftOf = (path) => `memory.${path}`;

/** @param {{ stored: MemoryDocument }} props */
const Stored = ({ stored }) => html`
  <div><h3>${T.memory.stored(stored.version)}</h3>
    <pre class="stored" tabindex="0" role="group" aria-label=${T.memory.stored(stored.version)}><${Text}>${marked(stored.content)}<//></pre></div>
`;

/** What is sent, and what the server says. @param {string} path @param {MemoryDocument} document @param {ReturnType<typeof useDraft<Editing>>} form @param {() => void} onChange */
function useSave(path, document, { draft, clear }, onChange) {
  /** `stored`: what a clash has found; undefined before one. */
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null, stored: MemoryDocument | null | undefined }} */ ({ isBusy: false, error: null, stored: undefined }));
  // A draft may have begun with an earlier version, before the page was left.
  const stored = state.stored === undefined ? document : state.stored;
  const isBehind = stored === null || stored.version !== draft.version;
  const end = () => {
    clear();
    announce(T.memory.saved);
    onChange();
    go(urlOf(path));
  };
  /** @param {number | null} version the one that is replaced */
  async function save(version) {
    if (state.isBusy) return;
    setState({ ...state, isBusy: true, error: null });
    try {
      await writeDocument(path, draft.content, version);
      end();
    } catch (failure) {
      const next = isClash(failure) ? await readDocument(path).catch(() => undefined) : undefined;
      // An earlier try may have arrived without its answer.
      if (next && next.content === draft.content) return end();
      setState({ isBusy: false, error: next === undefined ? /** @type {Error} */ (failure) : null, stored: next === undefined ? state.stored : next });
    }
  }
  return { ...state, stored, isBehind, save };
}

/** @param {{ path: string, document: MemoryDocument, onChange: () => void }} props */
export function Edit({ path, document, onChange }) {
  const start = { content: document.content, version: document.version };
  const form = useDraft(draftOf(path), start);
  const { draft, isKept, change, clear } = form;
  const { isBusy, error, stored, isBehind, save } = useSave(path, document, form, onChange);
  const isChanged = draft.content !== document.content;
  const leave = () => (clear(), onChange(), go(urlOf(path)));
  const submit = (/** @type {Event} */ event) => {
    event.preventDefault();
    // Over another version only its own button saves.
    if (!isBehind) void save(draft.version);
  };
  const onKeyDown = (/** @type {any} */ event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && event.currentTarget.form.requestSubmit();
  return html`
    <form class="wide-form" onSubmit=${submit}>
      ${isBehind && html`<div class="clash" role="alert"><p>${stored ? T.memory.clash(stored.version, draft.version) : T.memory.clashGone}</p></div>`}
      <div class=${isBehind && stored ? "versions-beside" : ""}>
        ${isBehind && stored && html`<${Stored} stored=${stored} />`}
        <div><label for="content">${isBehind ? T.memory.yours : T.memory.content}</label>
          <textarea id="content" rows="20" readonly=${isBusy} value=${draft.content} onKeyDown=${onKeyDown} onInput=${(/** @type {any} */ event) => change({ content: event.target.value })}></textarea></div>
      </div>
      ${!isKept && html`<p class="banner">${T.memory.notKept}</p>`}
      <${Problem} error=${error} />
      <p class="line">${isBehind ? html`<button type="button" disabled=${isBusy} onClick=${() => save(stored?.version ?? null)}>${stored ? T.memory.saveMine(stored.version) : T.memory.saveNew}</button>`
        : html`<button type="submit" disabled=${isBusy || !isChanged}>${isBusy ? T.memory.saving : T.memory.save}</button>`}
        ${(isChanged || isBehind) && html`<${ConfirmButton} name=${T.memory.discard} title=${T.memory.discardQuestion} note=${T.memory.discardNote} isDisabled=${isBusy} onYes=${leave} />`}</p>
    </form>
  `;
}
