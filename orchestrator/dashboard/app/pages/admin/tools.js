// The policy of tools: which ones are disabled for everyone, and for single users.
//
// Owns that the policy of another admin is not overwritten unseen: the server has no version of it, so it is read again before it is replaced.

import { useState } from "preact/hooks";
import { get, ignoreProblem, put } from "../../api.js";
import { Check, Field, Form } from "../../form.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Confirm, CopyAs, Text, announce, html, useDoing, useLoad } from "../../ui.js";

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
const readPolicy = (signal) => get("/api/admin/tool-policy", { signal }).catch(ignoreProblem(409));

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
          <${Field} id=${`user-${at}`} name=${T.policy.user} value=${one.user} spellcheck=${false} change=${(/** @type {string} */ user) => set(at, { user })} />
          <${Field} id=${`tools-${at}`} name=${T.policy.tools} value=${one.tools} list="tools" spellcheck=${false} change=${(/** @type {string} */ tools) => set(at, { tools })} />
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
  const doing = useDoing();
  const [note, setNote] = useState("");
  const save = (/** @type {Policy} */ policy) => doing.run(async () => {
    setNote("");
    const isSame = JSON.stringify(await readPolicy()) === JSON.stringify(start);
    if (isSame) await put("/api/admin/tool-policy", { body: policy });
    if (isSame) announce(T.policy.saved);
    setNote(isSame ? T.policy.saved : T.policy.changed);
    again();
  });
  return { doing, note, save };
}

/** @param {{ start: Policy | null, known: string[], descriptions: Map<string, string>, saving: ReturnType<typeof useSave> }} props */
function PolicyForm({ start, known, descriptions, saving }) {
  const [draft, setDraft] = useState(() => draftOf(start ?? EMPTY, known));
  const [asked, setAsked] = useState(/** @type {Policy | null} */ (null));
  const change = (/** @type {Partial<Draft>} */ next) => setDraft({ ...draft, ...next });
  const toggle = (/** @type {string} */ name, /** @type {boolean} */ isOn) => change({ disabled: isOn ? [...draft.disabled, name] : draft.disabled.filter((one) => one !== name) });
  const submit = () => {
    const policy = policyOf(draft);
    if (policy) setAsked(policy);
    else saving.doing.setError(new Error(T.policy.noUser));
  };
  return html`
    <${Form} look="job policy" doing=${saving.doing} onSubmit=${submit} word=${T.policy.save} busy=${T.policy.busy}>
      <fieldset><legend>${T.policy.all}</legend>
        <ul class="checks">${known.map((name) => html`<li key=${name} title=${descriptions.get(name)}>
          <${Check} name=${html`<${Text}>${name}<//>`} isOn=${draft.disabled.includes(name)} change=${(/** @type {boolean} */ isOn) => toggle(name, isOn)} /></li>`)}</ul>
        <${Field} id="others" name=${T.policy.others} value=${draft.others} spellcheck=${false} note=${T.policy.othersNote} change=${(/** @type {string} */ others) => change({ others })} />
        <${Unknown} names=${draft.others.split(/[\s,]+/)} known=${known} />
      </fieldset>
      <${Users} draft=${draft} change=${change} known=${known} />
    <//>
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
    ${value && html`<${PolicyForm} key=${JSON.stringify(value.policy)} start=${value.policy} known=${value.names} descriptions=${value.descriptions} saving=${saving} />`}
    <${CopyAs} cli="gantry admin tool-policy" path="/api/admin/tool-policy" />
  `;
}
