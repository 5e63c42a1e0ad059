// The form of a new document. What is typed stays until it is stored.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError } from "../../api.js";
import { go, place } from "../../router.js";
import { T } from "../../texts.js";
import { Problem, Text, announce, html } from "../../ui.js";
import { urlOf } from "./paths.js";
import { readDocument, useDraft, writeDocument } from "./write.js";

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
