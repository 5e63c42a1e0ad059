// The names of the user's secrets.
//
// Owns that a value is nowhere but in its field and in the request: it is no state, no draft and no part of a form that a browser sends.

import { useRef, useState } from "preact/hooks";
import { ApiError, get, post, remove } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Confirm, Empty, Problem, Text, Time, announce, html, usePages } from "../../ui.js";

const LIMIT = 200;
const WEAK = "weak_secret";

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  return get("/api/secrets", { query: { limit: LIMIT, cursor }, signal });
}

/** @param {unknown} error */
const isWeak = (error) => error instanceof ApiError && error.code === WEAK;

/** Stores a value; `stored` is the name after success. @param {() => void} onStored */
function useStore(onStored) {
  /** The only place of a value. */
  const field = useRef(/** @type {HTMLInputElement | null} */ (null));
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null, stored: string }} */ ({ isBusy: false, error: null, stored: "" }));
  /** @param {string} name @param {boolean} force */
  async function store(name, force) {
    const input = field.current;
    if (!input || state.isBusy) return false;
    setState({ isBusy: true, error: null, stored: "" });
    try {
      await post("/api/secrets", { body: { name, value: input.value, force } });
      input.value = "";
      setState({ isBusy: false, error: null, stored: name });
      announce(T.settings.secrets.stored(name));
      onStored();
      return true;
    } catch (error) {
      setState({ isBusy: false, error: /** @type {Error} */ (error), stored: "" });
      return false;
    }
  }
  return { ...state, field, store, clearError: () => setState((before) => (before.error ? { ...before, error: null } : before)), fail: (/** @type {Error} */ error) => setState({ isBusy: false, error, stored: "" }) };
}

/** @param {{ names: string[], onStored: () => void }} props */
function Form({ names, onStored }) {
  const [name, setName] = useState("");
  const { isBusy, error, stored, field, store, clearError, fail } = useStore(onStored);
  const submit = async (/** @type {boolean} */ force) => (await store(name.trim(), force)) && setName("");
  const exists = names.includes(name.trim());
  const onPaste = (/** @type {ClipboardEvent} */ event) => {
    // Browsers take line breaks out of what is pasted, which would be another value.
    if (!/[\r\n]/.test(event.clipboardData?.getData("text").trim() ?? "")) return;
    event.preventDefault();
    fail(new Error(T.settings.secrets.lines));
  };
  return html`
    <form autocomplete="off" onSubmit=${(/** @type {Event} */ event) => (event.preventDefault(), void submit(false))}>
      <h2>${T.settings.secrets.form}</h2>
      <div class="field"><label for="secret-name">${T.settings.secrets.name}</label>
      <input id="secret-name" required maxlength="64" pattern="[A-Za-z0-9_.\\-]+" title=${T.settings.secrets.nameNote} spellcheck=${false} autocomplete="off" autocapitalize="off" value=${name}
        aria-describedby="secret-name-note" onInput=${(/** @type {any} */ event) => (setName(event.target.value), clearError())} />
      <p class="note" id="secret-name-note">${exists ? T.settings.secrets.exists : T.settings.secrets.nameNote}</p></div>
      <div class="field"><label for="secret-value">${T.settings.secrets.value}</label>
      <input id="secret-value" type="password" required readonly=${isBusy} autocomplete="off" spellcheck=${false} ref=${field} aria-describedby="secret-value-note" onInput=${clearError} onPaste=${onPaste} />
      <p class="note" id="secret-value-note">${T.settings.secrets.valueNote}</p></div>
      ${error && html`<div class="failure" role="alert"><p>${isWeak(error) && html`<strong>${T.settings.secrets.weak}</strong> `}<${Text}>${error.message}<//></p>
        ${isWeak(error) && html`<button type="button" disabled=${isBusy} onClick=${() => submit(true)}>${T.settings.secrets.force}</button>`}</div>`}
      <button type="submit" disabled=${isBusy || !name.trim()}>${isBusy ? T.settings.secrets.storing : exists ? T.settings.secrets.replace : T.settings.secrets.store}</button>
      ${stored && html`<p class="note"><${Text}>${T.settings.secrets.stored(stored)}<//></p>`}
    </form>
  `;
}

/** @param {{ names: string[], onDeleted: () => void, children: (ask: (name: string) => void) => any }} props */
function Deletion({ onDeleted, children }) {
  const [asked, setAsked] = useState("");
  const [error, setError] = useState(/** @type {Error | null} */ (null));
  async function run() {
    const name = asked;
    setAsked("");
    setError(null);
    await remove("/api/secrets/{name}", { path: { name } }).catch((failure) => {
      // Another tab was faster.
      if (!(failure instanceof ApiError && failure.status === 404)) setError(failure);
    });
    onDeleted();
  }
  return html`
    <${Problem} error=${error} />
    ${children(setAsked)}
    ${asked && html`<${Confirm} title=${T.settings.secrets.removeQuestion(asked)} note=${T.settings.secrets.removeNote} yes=${T.settings.secrets.remove} no=${T.job.keep} onYes=${run} onNo=${() => setAsked("")} />`}
  `;
}

/** @param {{ canWrite: boolean }} props */
export function Secrets({ canWrite }) {
  const { first, items, again, status, more } = usePages(read, [generation.value]);
  /** @param {(name: string) => void} ask */
  const list = (ask) => html`
    <ul class="rows">${items.map(({ name, created_at: created, updated_at: updated }) => html`
      <li key=${name} class="item line"><code><${Text}>${name}<//></code>
        <span class="note">${T.settings.secrets.created} <${Time} at=${created} />${updated !== created && html` · ${T.settings.secrets.set} <${Time} at=${updated} />`}</span>
        ${canWrite && html`<button type="button" class="link" onClick=${() => ask(name)}>${T.settings.secrets.remove}<span class="hidden"> <${Text}>${name}<//></span></button>`}</li>`)}</ul>`;
  return html`
    <p class="note">${T.settings.secrets.note}</p>
    ${status}
    ${first && items.length === 0 && html`<${Empty}><p>${T.settings.secrets.none}</p><//>`}
    ${items.length > 0 && html`<${Deletion} onDeleted=${again}>${list}<//>`}
    ${more}
    ${canWrite && html`<${Form} names=${items.map(({ name }) => name)} onStored=${again} />`}
  `;
}
