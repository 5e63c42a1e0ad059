// Forms: fields with what is wrong with them, a button that sends them, and what was changed elsewhere meanwhile.
//
// Owns where the focus goes after a refusal. Never knows what is sent.

import { useEffect, useRef } from "preact/hooks";
import { ApiError } from "./api.js";
import { Table } from "./parts.js";
import { Text, html } from "./ui.js";

/** @typedef {{ field: string, message: string }} FieldProblem */

/** What the server says about a field, or a part of it. @param {Error | null} error @param {string} name @returns {FieldProblem[]} */
export const problemsAt = (error, name) => (error instanceof ApiError ? error.fields : [])
  .filter(({ field }) => field === name || field.startsWith(`${name}.`) || field.startsWith(`${name}[`));

/** Values as choices that say themselves. @param {readonly string[]} names @returns {[string, string][]} */
export const asChoices = (names) => names.map((name) => [name, name]);

/**
 * A field with its name, a note, and what is wrong with it. With `choices` it is a choice, which keeps a value that is not offered; with
 * `rows` it is a text of several lines. Other properties are attributes.
 * @param {{ id: string, name: any, value?: string, change: (value: string) => void, note?: any, problems?: FieldProblem[], choices?: [string, string][], rows?: number, type?: string, [attribute: string]: any }} props
 */
export function Field({ id, name, value, change, note, problems = [], choices, rows, type = "text", ...more }) {
  const isWrong = problems.length > 0;
  const described = [isWrong && `${id}-wrong`, note && `${id}-note`].filter(Boolean).join(" ") || undefined;
  const all = { id, value, "aria-invalid": isWrong ? "true" : undefined, "aria-describedby": described, onInput: (/** @type {any} */ event) => change(event.target.value), ...more };
  const offered = choices && (choices.some(([one]) => one === value) ? choices : [...choices, ...asChoices([String(value)])]);
  return html`
    <div class="field"><label for=${id}>${name}</label>
      ${offered ? html`<select ...${all}>${offered.map(([one, word]) => html`<option key=${one} value=${one}>${word}</option>`)}</select>`
        : rows ? html`<textarea rows=${rows} ...${all}></textarea>` : html`<input type=${type} autocomplete="off" ...${all} />`}
      ${note && html`<p class="note" id=${`${id}-note`}>${note}</p>`}
      ${isWrong && html`<div class="failure" id=${`${id}-wrong`}>${problems.map(({ message }, index) => html`<p key=${index}><${Text}>${message}<//></p>`)}</div>`}</div>
  `;
}

/** @param {{ name: any, isOn: boolean, change: (isOn: boolean) => void }} props */
export const Check = ({ name, isOn, change }) => html`
  <label class="check"><input type="checkbox" checked=${isOn} onChange=${(/** @type {any} */ event) => change(event.target.checked)} />${name}</label>`;

/**
 * A form, which Ctrl+Enter sends, too. After a refusal the first wrong field has the focus; what the server says about others than `names`
 * is beside the button. `word` is what the button says, and `busy` meanwhile; `buttons` are others.
 * @param {{
 *   doing: { isBusy: boolean, error: Error | null }, onSubmit: () => unknown, word?: string | null, busy?: string, isReady?: boolean,
 *   names?: string[], look?: string, buttons?: any, children?: any
 * }} props
 */
export function Form({ doing: { isBusy, error }, onSubmit, word, busy, isReady = true, names = [], look = "", buttons, children }) {
  const form = useRef(/** @type {HTMLFormElement | null} */ (null));
  // What is wrong inside of a closed part would not be seen.
  const open = (/** @type {Element | null | undefined} */ field) => field?.closest("details")?.setAttribute("open", "");
  useEffect(() => {
    const first = /** @type {HTMLElement | null | undefined} */ (form.current?.querySelector("[aria-invalid=true]"));
    open(first);
    first?.focus();
  }, [error]);
  useEffect(() => {
    // A form that comes after its page takes the focus from the heading.
    const first = /** @type {HTMLElement | null | undefined} */ (form.current?.querySelector("[autofocus]"));
    if (document.activeElement?.matches("body, h1")) first?.focus();
  }, []);
  const submit = (/** @type {Event} */ event) => (event.preventDefault(), isReady && !isBusy && void onSubmit());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => event.key === "Enter" && (event.metaKey || event.ctrlKey) && form.current?.requestSubmit();
  const shown = names.flatMap((name) => problemsAt(error, name));
  const others = error instanceof ApiError ? error.fields.filter((one) => !shown.includes(one)) : [];
  return html`
    <form class=${look} ref=${form} autocomplete="off" onSubmit=${submit} onKeyDown=${onKeyDown} onInvalidCapture=${(/** @type {any} */ event) => open(event.target)}>
      ${children}
      ${error && html`<div class="failure" role="alert"><p><${Text}>${error.message}<//></p>
        ${others.map(({ field, message }, index) => html`<p key=${index}><${Text}>${field}: ${message}<//></p>`)}</div>`}
      <p class="line">${word && html`<button type="submit" disabled=${isBusy || !isReady}>${isBusy ? busy : word}</button>`} ${buttons}</p>
    </form>
  `;
}

/**
 * What was changed elsewhere meanwhile, beside what the form has: `rows` begin with the name of a field.
 * @param {{ name: string, note: string, columns?: readonly string[], rows?: (string | null)[][], children?: any }} props
 */
export const Clash = ({ name, note, columns = [], rows = [], children }) => html`
  <section class="clash" role="alert" aria-label=${name}>
    <p><strong>${name}</strong> ${note}</p>
    ${rows.length > 0 && html`<${Table} name=${name} columns=${columns}>${rows.map(([field, ...cells]) => html`
      <tr key=${field}><th scope="row">${field}</th>${cells.map((cell, index) => html`<td key=${index} class="text"><${Text}>${cell || "–"}<//></td>`)}</tr>`)}<//>`}
    ${children}
  </section>
`;
