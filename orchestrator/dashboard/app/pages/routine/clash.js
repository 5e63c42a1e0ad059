// A routine that was changed while it was edited: both versions, and the choice between them. What was written stays until one is made.

import { Table } from "../../parts.js";
import { T } from "../../texts.js";
import { Text, html } from "../../ui.js";
import { differences, isChanged } from "./definition.js";

/** @typedef {import("./definition.js").Definition} Definition */

/** @param {unknown} value */
const shown = (value) => (value === undefined || value === null ? "–" : typeof value === "string" ? value : JSON.stringify(value));

/** @param {{ theirs: Definition, mine: Definition, base: Definition, isBusy: boolean, onSave: () => void, onTake: () => void }} props */
export function Clash({ theirs, mine, base, isBusy, onSave, onTake }) {
  const rows = differences(theirs, mine);
  return html`
    <section class="clash" role="alert" aria-label=${T.editRoutine.clash}>
      <h2>${T.editRoutine.clash}</h2>
      <p>${rows.length > 0 ? T.editRoutine.clashNote : T.editRoutine.same}</p>
      ${rows.length > 0 && html`
        <${Table} name=${T.editRoutine.clash} columns=${T.editRoutine.clashColumns}>${rows.map(({ field, one, other }) => html`
            <tr key=${field}><th scope="row"><code>${field}</code></th><td class="text"><${Text}>${shown(one)}<//></td><td class="text"><${Text}>${shown(other)}<//></td>
              <td>${isChanged(base, mine, field) ? T.editRoutine.clashMine : T.editRoutine.clashTheirs}</td></tr>`)}<//>`}
      <p class="line"><button type="button" disabled=${isBusy} onClick=${onSave}>${T.editRoutine.clashSave}</button>
        <button type="button" disabled=${isBusy} onClick=${onTake}>${T.editRoutine.clashTake}</button></p>
    </section>
  `;
}
