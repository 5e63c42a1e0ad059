// The newest deliveries to the webhook of a routine, and what became of each.

import { get } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Text, Time, html, useLoad } from "../../ui.js";

const LIMIT = 20;

/** @param {{ id: string, fired: number }} props `fired` changes with each run */
export function Deliveries({ id, fired }) {
  const { value, status } = useLoad((signal) => get("/api/routines/{id}/deliveries", { path: { id }, query: { limit: LIMIT }, signal }), [id, fired, generation.value]);
  return html`
    <h2>${T.routine.deliveries}</h2>
    ${status}
    ${value?.items.length === 0 && html`<${Empty}><p>${T.routine.noDeliveries}</p><//>`}
    ${value && value.items.length > 0 && html`
      <div class="wide" tabindex="0" role="group" aria-label=${T.routine.deliveries}><table>
        <thead><tr>${T.routine.deliveryColumns.map((name) => html`<th key=${name} scope="col">${name}</th>`)}</tr></thead>
        <tbody>${value.items.map(({ at, id: name, verdict, status, run_id: run }, index) => html`
          <tr key=${index}><td><${Time} at=${at} /></td><td>${verdict}</td><td>${status}</td><td class="clip"><${Text}>${name}<//></td>
            <td>${run && html`<a href=${`/runs/${run}`}>${T.routine.show}</a>`}</td></tr>`)}</tbody>
      </table></div>`}
  `;
}
