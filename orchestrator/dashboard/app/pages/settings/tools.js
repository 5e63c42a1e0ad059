// The tools of the user's agents: what each needs, and whether the user allows it.

import { useEffect, useLayoutEffect, useState } from "preact/hooks";
import { get, put } from "../../api.js";
import { bindRows } from "../../keys.js";
import { place, setQuery } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Problem, Text, announce, html, useDoing, useLoad } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["ToolSummary"]} Tool */
/** @typedef {Tool["permission"]} Permission */

const PERMISSIONS = /** @type {Permission[]} */ (Object.keys(T.settings.tools.permissions));

/** Tools with a text in their name, description or source. Pure. @template {Pick<Tool, "name" | "description" | "source">} One @param {One[]} tools @param {string} text */
export function matching(tools, text) {
  const words = text.toLowerCase().split(/\s+/).filter(Boolean);
  return tools.filter(({ name, description, source }) => words.every((word) => `${name} ${description} ${source}`.toLowerCase().includes(word)));
}

/** Each choice is saved by a button: keys go through the choices. @param {{ tool: Tool, onChange: (permission: Permission) => void }} props */
function Choice({ tool, onChange }) {
  const [chosen, setChosen] = useState(tool.permission);
  const { isBusy, error, run } = useDoing();
  const save = (/** @type {Event} */ event) => {
    event.preventDefault();
    void run(async () => {
      await put("/api/tools/{name}/permission", { path: { name: tool.name }, body: { permission: chosen } });
      onChange(chosen);
      announce(T.settings.saved);
    });
  };
  return html`
    <form class="line" onSubmit=${save}>
      <label><span class="hidden">${T.settings.tools.permission} ${tool.name}</span>
        <select value=${chosen} onChange=${(/** @type {any} */ event) => setChosen(event.target.value)}>
          ${PERMISSIONS.map((name) => html`<option key=${name} value=${name}>${T.settings.tools.permissions[name]}</option>`)}</select></label>
      ${chosen !== tool.permission && html`<button type="submit" disabled=${isBusy}>${isBusy ? T.settings.saving : T.settings.tools.save}</button>`}
      <${Problem} error=${error} />
    </form>
  `;
}

/** @param {{ tool: Tool, canWrite: boolean, onChange: (permission: Permission) => void }} props */
function Row({ tool, canWrite, onChange }) {
  const [isOpen, setIsOpen] = useState(false);
  const source = tool.source === "builtin" ? T.settings.tools.builtin : tool.source;
  return html`
    <li class="tool">
      <details onToggle=${(/** @type {any} */ event) => setIsOpen(event.currentTarget.open)}>
        <summary><code><${Text}>${tool.name}<//></code> <span class="note"><${Text}>${source}<//> · ${T.settings.tools.requirements[tool.requirement]}</span></summary>
        ${isOpen && html`<p class="text"><${Text}>${tool.description}<//></p>
          <pre tabindex="0" role="group" aria-label=${`${T.settings.tools.parameters} ${tool.name}`}><${Text}>${JSON.stringify(tool.parameters, null, 2)}<//></pre>`}
      </details>
      ${canWrite ? html`<${Choice} tool=${tool} onChange=${onChange} />` : html`<span>${T.settings.tools.permissions[tool.permission]}</span>`}
    </li>
  `;
}

/** @param {{ canWrite: boolean }} props */
export function Tools({ canWrite }) {
  const { value, status } = useLoad((signal) => get("/api/tools", { signal }), [generation.value]);
  const [changed, setChanged] = useState(/** @type {Record<string, Permission>} */ ({}));
  useEffect(() => setChanged({}), [value]);
  useLayoutEffect(() => bindRows(".tools summary"), []);
  const q = place.value.query.get("q") ?? "";
  const tools = matching(value?.items ?? [], q).map((tool) => ({ ...tool, permission: changed[tool.name] ?? tool.permission }));
  return html`
    <ul class="note">${PERMISSIONS.map((name) => html`<li key=${name}><strong>${T.settings.tools.permissions[name]}</strong>: ${T.settings.tools.effects[name]}</li>`)}</ul>
    <div class="filters" role="search"><label>${T.settings.tools.filter} <input type="search" value=${q} onInput=${(/** @type {any} */ event) => setQuery({ q: event.target.value || null })} /></label></div>
    ${status}
    ${value && tools.length === 0 && html`<${Empty}><p>${q ? T.settings.tools.noMatch : T.settings.tools.none}</p><//>`}
    ${tools.length > 0 && html`<ul class="rows tools">${tools.map((tool) => html`
      <${Row} key=${tool.name} tool=${tool} canWrite=${canWrite} onChange=${(/** @type {Permission} */ next) => setChanged((before) => ({ ...before, [tool.name]: next }))} />`)}</ul>`}
    ${(value?.unavailable?.length ?? 0) > 0 && html`<h2>${T.settings.tools.unavailable}</h2>
      <ul class="rows">${value?.unavailable?.map(({ server, tool, reason }, index) => html`<li key=${index} class="item"><code><${Text}>${tool ? `${server}: ${tool}` : server}<//></code> <${Text}>${reason}<//></li>`)}</ul>`}
  `;
}
