// The audit log, newest first: who did what, and what was refused. Its filters are in the URL.

import { useState } from "preact/hooks";
import { get } from "../../api.js";
import { Period, Table, Typed, UserAndClear, commandOf, filtersOf } from "../../parts.js";
import { place } from "../../router.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Copy, CopyAs, Empty, Icon, Text, Time, html, usePages } from "../../ui.js";

/** @typedef {import("../../api.js").schemas["AuditRecord"]} Entry */

const LIMIT = 100;
const FILTERS = ["user", "action", "job", "since", "until"];
const MARKS = { done: ["completed", "completed"], refused: ["failed", "failed"] };

/** @param {Record<string, string>} given @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(given, cursor, signal) {
  const query = { ...given, limit: LIMIT, cursor };
  return get("/api/audit", { query, signal });
}

/** The actions that were seen are offered for the filter. @param {{ given: Record<string, string>, actions: string[] }} props */
function Filters({ given, actions }) {
  return html`
    <div class="filters" role="search">
      <${Typed} name=${T.audit.action} filter="action" given=${given["action"]} list="actions" placeholder="job.cancel" />
      <datalist id="actions">${actions.map((name) => html`<option key=${name} value=${name}></option>`)}</datalist>
      <${Typed} name=${T.audit.job} filter="job" given=${given["job"]} />
      <${Period} name=${T.audit.at} given=${given} />
      <${UserAndClear} given=${given} names=${FILTERS} />
    </div>
  `;
}

/** @param {{ entry: Entry }} props */
function Row({ entry }) {
  const [icon, color] = MARKS[entry.outcome] ?? MARKS.refused;
  return html`
    <tr><td><${Time} at=${entry.at} /></td>
      <td><${Text}>${entry.user}<//> <span class="note">${entry.role}</span></td>
      <td><${Text}>${entry.action}<//></td>
      <td><span class="state ${color}"><${Icon} name=${icon} />${T.audit.outcomes[entry.outcome] ?? entry.outcome}</span> ${entry.code && html`<span class="note"><${Text}>${entry.code}<//></span>`}</td>
      <td>${entry.job_id && html`<a href=${`/jobs/${entry.job_id}`} title=${entry.job_id}>…${entry.job_id.slice(-8)}</a>`}</td>
      <td><${Text}>${entry.source ?? ""}<//></td>
      <td>${entry.request_id && html`<${Copy} text=${entry.request_id} name=${entry.request_id} />`}</td></tr>
  `;
}

export function Audit() {
  const given = filtersOf(place.value.query, FILTERS);
  const key = JSON.stringify(given);
  const { first, items, status, more } = usePages((cursor, signal) => read(given, cursor, signal), [key, generation.value]);
  const [seen] = useState(() => new Set(/** @type {string[]} */ ([])));
  for (const { action } of items) seen.add(action);
  return html`
    <${Filters} given=${given} actions=${[...seen].sort()} />
    ${status}
    ${first && items.length === 0 && html`<${Empty}><p>${Object.keys(given).length > 0 ? T.audit.noMatch : T.audit.none}</p><//>`}
    ${items.length > 0 && html`
      <${Table} name=${T.admin.tabs.audit} columns=${T.audit.columns} look="audit">${items.map((entry, index) => html`<${Row} key=${index} entry=${entry} />`)}<//>`}
    ${more}
    <${CopyAs} cli=${commandOf("gantry audit", given)}
      path=${`/api/audit?${new URLSearchParams({ ...given, limit: String(LIMIT) })}`} />
  `;
}
