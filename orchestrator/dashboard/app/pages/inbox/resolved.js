// The newest gates that no longer wait: who decided what, and why.

import { useEffect } from "preact/hooks";
import { get } from "../../api.js";
import { bindRows } from "../../keys.js";
import { position, positioned } from "../../live.js";
import { generation, who } from "../../session.js";
import { gates, resyncs } from "../../store.js";
import { T } from "../../texts.js";
import { CopyAs, Empty, Text, html, usePages } from "../../ui.js";
import { Outcome } from "../gate/card.js";
import { Added } from "./added.js";

/** @typedef {import("../../api.js").schemas["Gate"]} Gate */

const LIMIT = 50;
const STATES = "approved,denied,expired";

/** A row has no parameters: its page has. @param {Gate} gate */
const row = ({ parameters, ...gate }) => gate;

/** @param {string} [cursor] @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  await positioned();
  const seen = position();
  const query = { state: STATES, limit: LIMIT, cursor };
  const { items, next_cursor } = await get("/api/gates", { query, signal });
  return { items: items.map(row), next_cursor, seen };
}

export function Resolved() {
  const { first, items, isLoading, again, status, more } = usePages(read, [generation.value, resyncs.value]);
  useEffect(() => bindRows(".rows a.open"), []);
  const listed = new Set(items.map(({ id }) => id));
  const added = first && !isLoading ? gates.since(first.seen).filter(({ id, state }) => state !== "pending" && !listed.has(id)).length : 0;
  return html`
    <${Added} count=${added} show=${again} />
    ${status}
    ${first && items.length === 0 && html`<${Empty}><p>${T.inbox.noneResolved}</p><//>`}
    ${items.length > 0 && html`
      <ul class="rows">${items.map((/** @type {any} */ gate) => html`
        <li key=${gate.id} class="item"><a class="open" href=${`/inbox/gates/${gate.id}`}><${Text}>${gate.tool}<//></a>
          ${who.value?.role === "admin" && html` <span class="note"><${Text}>${gate.user_id}<//></span>`}
          <${Outcome} gate=${gate} /></li>`)}</ul>`}
    ${more}
    <${CopyAs} cli=${`gantry gate list --state ${STATES}`} path=${`/api/gates?state=${STATES}&limit=${LIMIT}`} />
  `;
}
