// The form in which a document is edited. A document that was changed meanwhile is shown beside what was typed, and nothing is replaced unseen.

import { useState } from "preact/hooks";
import { go } from "../../router.js";
import { T } from "../../texts.js";
import { Confirm, Problem, Text, announce, html } from "../../ui.js";
import { marked } from "../job/code.js";
import { urlOf } from "./paths.js";
import { isClash, readDocument, useDraft, writeDocument } from "./write.js";

/** @typedef {import("./write.js").MemoryDocument} MemoryDocument */
/** `version` is the one that the draft began with. @typedef {{ content: string, version: number }} Draft */

/** The name of a document's draft. @param {string} path */
export const draftOf = (path) => `memory.${path}`;

/** @param {{ stored: MemoryDocument }} props */
const Stored = ({ stored }) => html`
  <div><h3>${T.memory.stored(stored.version)}</h3>
    <pre class="stored" tabindex="0" role="group" aria-label=${T.memory.stored(stored.version)}><${Text}>${marked(stored.content)}<//></pre></div>
`;

/** What is sent, and what the server says. @param {string} path @param {MemoryDocument} document @param {ReturnType<typeof useDraft<Draft>>} form @param {() => void} onChange */
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
  const [isAsking, setIsAsking] = useState(false);
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
        ${(isChanged || isBehind) && html`<button type="button" disabled=${isBusy} onClick=${() => setIsAsking(true)}>${T.memory.discard}</button>`}</p>
      ${isAsking && html`<${Confirm} title=${T.memory.discardQuestion} note=${T.memory.discardNote} yes=${T.memory.discard} no=${T.job.keep}
        onYes=${leave} onNo=${() => setIsAsking(false)} />`}
    </form>
  `;
}
