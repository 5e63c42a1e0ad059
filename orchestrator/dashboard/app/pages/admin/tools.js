// The policy of tools: which ones are disabled for everyone, and for single users.
//
// Owns that the policy of another admin is not overwritten unseen: the server has no version of it, so it is read again before it is replaced.

import { useState } from "preact/hooks";
import { ApiError, get, put } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Confirm, CopyAs, Text, announce, html, useLoad } from "../../ui.js";

// --- the form of the tools' policy: from what the server has, and back. Pure

/** @typedef {import("../../api.js").schemas["AdminToolPolicy"]} Policy */
/** `disabled` are names that there are, `others` any names. @typedef {{ disabled: string[], others: string, users: { user: string, tools: string }[] }} Draft */

const words = (/** @type {string} */ text) => [...new Set(text.split(/[\s,]+/).filter(Boolean))];

/** @param {Policy} policy @param {string[]} known @returns {Draft} */
export function draftOf({ disabled_tools: all = [], user_disabled_tools: users = {} }, known) {
  return {
    disabled: all.filter((name) => known.includes(name)),
    others: all.filter((name) => !known.includes(name)).join(" "),
    users: Object.entries(users).map(([user, tools]) => ({ user, tools: tools.join(" ") })),
  };
}

/** The policy, or null if a list has no user, or two have the same. @param {Draft} draft @returns {Policy | null} */
export function policyOf({ disabled, others, users }) {
  const named = users.map(({ user, tools }) => /** @type {[string, string[]]} */ ([user.trim(), words(tools)])).filter(([user, tools]) => user || tools.length > 0);
  const names = new Set(named.map(([user]) => user));
  if (names.has("") || names.size < named.length) return null;
  return {
    disabled_tools: [...new Set([...disabled, ...words(others)])].sort(),
    user_disabled_tools: Object.fromEntries(named.filter(([, tools]) => tools.length > 0)),
  };
}

/** The names that no tool has. @param {string[]} names @param {string[]} known */
export const unknownOf = (names, known) => names.filter((name) => name && !known.includes(name));

const EMPTY = { disabled_tools: [], user_disabled_tools: {} };

/** The policy, or null if the stored one is invalid. @param {AbortSignal} [signal] */
async function readPolicy(signal) {
  try {
    return await get("/api/admin/tool-policy", signal ? { signal } : {});
  } catch (error) {
    if (error instanceof ApiError && error.status === 409) return null;
    throw error;
  }
}

/** The tools that there are. Those that are disabled are in no list of the admin's tools, but jobs may name them. @param {AbortSignal} signal */
async function read(signal) {
  const [policy, tools, options, mcp] = await Promise.all([
    readPolicy(signal), get("/api/tools", { signal }), get("/api/options", { signal }), get("/api/admin/mcp", { signal }),
  ]);
  const ofServers = mcp.items.flatMap(({ name, tools: all }) => all.map((tool) => `${name}__${tool.name}`));
  const names = [...new Set([...tools.items.map(({ name }) => name), ...options.tools, ...ofServers])].sort();
  return { policy, names, descriptions: new Map(tools.items.map(({ name, description }) => [name, description])) };
}

/** @param {{ names: string[], known: string[] }} props */
function Unknown({ names, known }) {
  const unknown = unknownOf(names, known);
  return unknown.length > 0 && html`<p class="banner" role="status"><${Text}>${T.policy.unknown(unknown.join(", "))}<//></p>`;
}

/** @param {{ draft: Draft, change: (next: Partial<Draft>) => void, known: string[] }} props */
function Users({ draft, change, known }) {
  const set = (/** @type {number} */ at, /** @type {Partial<Draft["users"][number]>} */ next) => change({ users: draft.users.map((one, index) => (index === at ? { ...one, ...next } : one)) });
  return html`
    <fieldset><legend>${T.policy.users}</legend>
      ${draft.users.map((one, at) => html`
        <div key=${at} class="fields two">
          <span><label for=${`user-${at}`}>${T.policy.user}</label><input id=${`user-${at}`} value=${one.user} spellcheck=${false} onInput=${(/** @type {any} */ event) => set(at, { user: event.target.value })} /></span>
          <span><label for=${`tools-${at}`}>${T.policy.tools}</label><input id=${`tools-${at}`} value=${one.tools} list="tools" spellcheck=${false} onInput=${(/** @type {any} */ event) => set(at, { tools: event.target.value })} /></span>
          <button type="button" onClick=${() => change({ users: draft.users.filter((_, index) => index !== at) })}>${T.policy.remove}<span class="hidden">: <${Text}>${one.user}<//></span></button>
          <${Unknown} names=${one.tools.split(/[\s,]+/)} known=${known} />
        </div>`)}
      <datalist id="tools">${known.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
      <button type="button" onClick=${() => change({ users: [...draft.users, { user: "", tools: "" }] })}>${T.policy.add}</button>
    </fieldset>
  `;
}

/** What is sent to the server, and what it says. @param {Policy | null} start @param {() => void} again */
function useSave(start, again) {
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null, note: string }} */ ({ isBusy: false, error: null, note: "" }));
  async function save(/** @type {Policy} */ policy) {
    setState({ isBusy: true, error: null, note: "" });
    try {
      const now = await readPolicy();
      if (JSON.stringify(now) !== JSON.stringify(start)) {
        again();
        return setState({ isBusy: false, error: null, note: T.policy.changed });
      }
      await put("/api/admin/tool-policy", { body: policy });
      announce(T.policy.saved);
      setState({ isBusy: false, error: null, note: T.policy.saved });
      again();
    } catch (error) {
      setState({ isBusy: false, error: /** @type {Error} */ (error), note: "" });
    }
  }
  return { ...state, save };
}

/** @param {{ start: Policy | null, known: string[], descriptions: Map<string, string>, saving: ReturnType<typeof useSave> }} props */
function Form({ start, known, descriptions, saving }) {
  const [draft, setDraft] = useState(() => draftOf(start ?? EMPTY, known));
  const [asked, setAsked] = useState(/** @type {Policy | null} */ (null));
  const [wrong, setWrong] = useState("");
  const change = (/** @type {Partial<Draft>} */ next) => (setWrong(""), setDraft({ ...draft, ...next }));
  const toggle = (/** @type {string} */ name, /** @type {boolean} */ isOn) => change({ disabled: isOn ? [...draft.disabled, name] : draft.disabled.filter((one) => one !== name) });
  function onSubmit(/** @type {Event} */ event) {
    event.preventDefault();
    const policy = policyOf(draft);
    if (policy) setAsked(policy);
    else setWrong(T.policy.noUser);
  }
  return html`
    <form class="job policy" onSubmit=${onSubmit}>
      <fieldset><legend>${T.policy.all}</legend>
        <ul class="checks">${known.map((name) => html`<li key=${name}><label class="check" title=${descriptions.get(name)}>
          <input type="checkbox" checked=${draft.disabled.includes(name)} onChange=${(/** @type {any} */ event) => toggle(name, event.target.checked)} /><${Text}>${name}<//></label></li>`)}</ul>
        <label for="others">${T.policy.others}</label>
        <input id="others" value=${draft.others} spellcheck=${false} aria-describedby="others-note" onInput=${(/** @type {any} */ event) => change({ others: event.target.value })} />
        <p id="others-note" class="note">${T.policy.othersNote}</p>
        <${Unknown} names=${draft.others.split(/[\s,]+/)} known=${known} />
      </fieldset>
      <${Users} draft=${draft} change=${change} known=${known} />
      ${(wrong || saving.error) && html`<p class="failure" role="alert"><${Text}>${wrong || saving.error?.message}<//></p>`}
      <button type="submit" disabled=${saving.isBusy}>${saving.isBusy ? T.policy.busy : T.policy.save}</button>
    </form>
    ${asked && html`<${Confirm} title=${T.policy.question} note=${policyWords(asked)} yes=${T.policy.save} no=${T.job.keep}
      onYes=${() => (setAsked(null), saving.save(asked))} onNo=${() => setAsked(null)} />`}
  `;
}

/** @param {Policy} policy */
const policyWords = ({ disabled_tools: all = [], user_disabled_tools: users = {} }) =>
  [`${T.policy.all}: ${all.join(", ") || "–"}`, ...Object.entries(users).map(([user, tools]) => `${user}: ${tools.join(", ")}`)].join(". ");

export function Tools() {
  const { value, again, status } = useLoad(read, [generation.value]);
  const saving = useSave(value?.policy ?? null, again);
  return html`
    <p>${T.policy.intro}</p>
    ${status}
    ${saving.note && html`<p class="banner" role="status">${saving.note}</p>`}
    ${value && !value.policy && html`<p class="failure">${T.policy.invalid}</p>`}
    ${value && html`<${Form} key=${JSON.stringify(value.policy)} start=${value.policy} known=${value.names} descriptions=${value.descriptions} saving=${saving} />`}
    <${CopyAs} cli="gantry admin tool-policy" path="/api/admin/tool-policy" />
  `;
}
