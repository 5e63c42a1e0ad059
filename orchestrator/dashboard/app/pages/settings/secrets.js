// The names of the user's secrets.
//
// Owns that a value is nowhere but in its field and in the request: it is no state, no draft and no part of a form that a browser sends.

import { useRef, useState } from "preact/hooks";
import { ApiError, get, ignoreProblem, post, remove } from "../../api.js";
import { Field, Form, problemsAt } from "../../form.js";
import { ConfirmButton } from "../../parts.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Problem, Text, Time, announce, html, useDoing, usePages } from "../../ui.js";

const LIMIT = 200;
const WEAK = "weak_secret";

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  return get("/api/secrets", { query: { limit: LIMIT, cursor }, signal });
}

/** @param {{ names: string[], onStored: () => void }} props */
function Store({ names, onStored }) {
  /** Has the only place of a value. */
  const fields = useRef(/** @type {HTMLDivElement | null} */ (null));
  const [name, setName] = useState("");
  const [hosts, setHosts] = useState("");
  const [stored, setStored] = useState("");
  const doing = useDoing();
  const { isBusy, error } = doing;
  const isWeak = error instanceof ApiError && error.code === WEAK;
  const clear = () => error && doing.setError(null);
  const store = (/** @type {boolean} */ force) => doing.run(async () => {
    const input = /** @type {HTMLInputElement} */ (fields.current?.querySelector("[type=password]"));
    setStored("");
    await post("/api/secrets", { body: { name: name.trim(), value: input.value, force, ...(hosts.trim() && { hosts: hosts.trim().split(/[\s,]+/) }) } });
    input.value = "";
    setName("");
    setHosts("");
    setStored(name.trim());
    announce(T.settings.secrets.stored(name.trim()));
    onStored();
  });
  const exists = names.includes(name.trim());
  const onPaste = (/** @type {ClipboardEvent} */ event) => {
    // Browsers take line breaks out of what is pasted, which would be another value.
    if (!/[\r\n]/.test(event.clipboardData?.getData("text").trim() ?? "")) return;
    event.preventDefault();
    doing.setError(new Error(T.settings.secrets.lines));
  };
  return html`
    <${Form} doing=${doing} onSubmit=${() => store(false)} word=${exists ? T.settings.secrets.replace : T.settings.secrets.store} busy=${T.settings.secrets.storing} isReady=${name.trim() !== ""} names=${["value", "hosts"]}
      buttons=${isWeak && html`<button type="button" disabled=${isBusy} onClick=${() => store(true)}>${T.settings.secrets.force}</button>`}>
      <h2>${T.settings.secrets.form}</h2>
      <${Field} id="secret-name" name=${T.settings.secrets.name} required maxlength="64" pattern="[A-Za-z0-9_.\\-]+" title=${T.settings.secrets.nameNote} spellcheck=${false} autocapitalize="off" value=${name}
        change=${(/** @type {string} */ text) => (setName(text), clear())} note=${exists ? T.settings.secrets.exists : T.settings.secrets.nameNote} />
      <div ref=${fields}><${Field} id="secret-value" name=${T.settings.secrets.value} type="password" required readonly=${isBusy} spellcheck=${false} problems=${problemsAt(error, "value")} change=${clear} onPaste=${onPaste} note=${T.settings.secrets.valueNote} /></div>
      <${Field} id="secret-hosts" name=${T.settings.secrets.hosts} spellcheck=${false} autocapitalize="off" value=${hosts} problems=${problemsAt(error, "hosts")} change=${(/** @type {string} */ text) => (setHosts(text), clear())}
        note=${exists ? T.settings.secrets.hostsKept : T.settings.secrets.hostsNote} />
      ${isWeak && html`<p class="failure" role="alert">${T.settings.secrets.weak}</p>`}
      ${stored && html`<p class="note"><${Text}>${T.settings.secrets.stored(stored)}<//></p>`}
    <//>
  `;
}

/** @typedef {import("../../api.js").schemas["SecretSummary"]} Secret */

/** @param {{ secret: Secret, canWrite: boolean, again: () => void }} props */
function Row({ secret: { name, hosts = [], created_at: created, updated_at: updated }, canWrite, again }) {
  const { error, run } = useDoing();
  const drop = () => run(() => remove("/api/secrets/{name}", { path: { name } }).catch(ignoreProblem(404)).then(again));
  return html`
    <li class="item line"><code><${Text}>${name}<//></code>
      <span class="note">${T.settings.secrets.created} <${Time} at=${created} />${updated !== created && html` · ${T.settings.secrets.set} <${Time} at=${updated} />`}${hosts.length > 0 && html` · ${T.settings.secrets.only} <${Text}>${hosts.join(", ")}<//>`}</span>
      ${canWrite && html`<${ConfirmButton} look="link" name=${T.settings.secrets.remove} title=${T.settings.secrets.removeQuestion(name)} note=${T.settings.secrets.removeNote} onYes=${drop}>
        <span class="hidden"> <${Text}>${name}<//></span><//>`}
      <${Problem} error=${error} /></li>
  `;
}

/** @param {{ canWrite: boolean }} props */
export function Secrets({ canWrite }) {
  const { first, items, again, status, more } = usePages(read, [generation.value]);
  return html`
    <p class="note">${T.settings.secrets.note}</p>
    ${status}
    ${first && items.length === 0 && html`<${Empty}><p>${T.settings.secrets.none}</p><//>`}
    ${items.length > 0 && html`<ul class="rows">${items.map((secret) => html`<${Row} key=${secret.name} secret=${secret} canWrite=${canWrite} again=${again} />`)}</ul>`}
    ${more}
    ${canWrite && html`<${Store} names=${items.map(({ name }) => name)} onStored=${again} />`}
  `;
}
