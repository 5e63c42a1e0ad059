// The newest gates that no longer wait: who decided what, and why.

import { useEffect } from "preact/hooks";
import { get } from "../../api.js";
import { bindRows } from "../../keys.js";
import { position, positioned } from "../../live.js";
import { generation, who } from "../../session.js";
import { gates, resyncs } from "../../store.js";
import { T } from "../../texts.js";
import { CopyAs, Empty, Failed, Loading, Text, html, usePages } from "../../ui.js";
import { Outcome } from "../gate/card.js";
import { Added } from "./added.js";

/** @typedef {import("../../api.js").schemas["Gate"]} Gate */

const LIMIT = 50;
const STATES = "approved,denied,expired";

/** A row has no parameters: its page has. @param {Gate} gate */
const row = ({ parameters, ...gate }) => gate;

/** @param {string | null} cursor @param {AbortSignal} [signal] */
async function read(cursor, signal) {
  await positioned();
  const seen = position();
  const query = { state: STATES, limit: LIMIT, ...(cursor && { cursor }) };
  const { items, next_cursor: next } = await get("/api/gates", { query, ...(signal && { signal }) });
  return { items: items.map(row), next: next ?? null, seen };
}

export function Resolved() {
  const { first, items, error, isLoading, again, readMore, hasMore, moreError } = usePages(read, [generation.value, resyncs.value]);
  useEffect(() => bindRows(".rows a.open"), []);
  const listed = new Set(items.map(({ id }) => id));
  const added = first && !isLoading ? gates.since(first.seen).filter(({ id, state }) => state !== "pending" && !listed.has(id)).length : 0;
  return html`
    <${Added} count=${added} show=${again} />
    ${error && html`<${Failed} error=${error} again=${again} />`}
    ${!first && isLoading && html`<${Loading} />`}
    ${first && items.length === 0 && html`<${Empty}><p>${T.inbox.noneResolved}</p><//>`}
    ${items.length > 0 && html`
      <ul class="rows">${items.map((/** @type {any} */ gate) => html`
        <li key=${gate.id} class="item"><a class="open" href=${`/inbox/gates/${gate.id}`}><${Text}>${gate.tool}<//></a>
          ${who.value?.role === "admin" && html` <span class="note"><${Text}>${gate.user_id}<//></span>`}
          <${Outcome} gate=${gate} /></li>`)}</ul>`}
    ${moreError && html`<${Failed} error=${moreError} again=${readMore} />`}
    ${hasMore && html`<p><button type="button" onClick=${readMore}>${T.jobs.more}</button></p>`}
    <${CopyAs} cli=${`gantry gate list --state ${STATES}`} path=${`/api/gates?state=${STATES}&limit=${LIMIT}`} />
  `;
}
