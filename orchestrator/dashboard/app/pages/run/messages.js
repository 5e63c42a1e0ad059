// The conversation of a lightweight run: what the model read and said, and its tool calls with their results, by attempt.

import { get } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Text, Time, html, usePages } from "../../ui.js";
import { Body, EntryBody } from "../chat/entry.js";

/** @typedef {import("../../api.js").schemas["RunMessage"]} RunMessage */

const LIMIT = 200;

/** Calls with their results. Pure. @param {RunMessage[]} messages @returns {{ message: any, result: any }[]} */
export function joined(messages) {
  /** @type {Map<string, any>} */
  const open = new Map();
  /** @type {{ message: any, result: any }[]} */
  const rows = [];
  for (const message of /** @type {any[]} */ (messages)) {
    const call = `${message.attempt} ${message.data?.call_id}`;
    const known = message.kind === "tool_result" ? open.get(call) : undefined;
    if (known) known.result = message;
    else rows.push({ message, result: null });
    if (message.kind === "tool_use") open.set(call, rows.at(-1));
  }
  return rows;
}

/** @param {{ message: any, result: any }} props */
function Entry({ message: { kind, at, data }, result }) {
  const word = kind === "message" ? T.trace.roles[/** @type {"user"} */ (data.role)] ?? data.role : kind === "reasoning" ? T.trace.thinks : kind;
  if (kind === "tool_use") return html`<${EntryBody} row=${{ entry: { role: "tool_use", at, ...data }, result: result?.data }} />`;
  if (kind === "tool_result") return html`<${EntryBody} row=${{ entry: { role: "tool_result", at, ...data } }} />`;
  return html`
    <p class="line"><strong><${Text}>${word}<//></strong> <span class="note"><${Time} at=${at} /></span></p>
    <${Body} text=${typeof data?.content === "string" ? data.content : JSON.stringify(data, null, 2)} />
  `;
}

/** @param {{ id: string, changed: string }} props `changed` is another one when there may be more */
export function Messages({ id, changed }) {
  const read = async (/** @type {string | undefined} */ cursor, /** @type {AbortSignal | undefined} */ signal) => {
    return get("/api/runs/{id}/messages", { path: { id }, query: { limit: LIMIT, cursor }, signal });
  };
  const { first, items, status, more } = usePages(read, [id, changed, generation.value]);
  const rows = joined(items);
  return html`
    <h2>${T.run.messages}</h2>
    ${status}
    ${first && rows.length === 0 && html`<${Empty}><p>${T.run.noMessages}</p><//>`}
    ${rows.map(({ message, result }, index) => html`
      ${(message.attempt > 1 || rows.at(-1)?.message.attempt > 1) && message.attempt !== rows[index - 1]?.message.attempt && html`<h3 key=${`attempt ${message.attempt}`}>${T.run.attemptTitle(message.attempt)}</h3>`}
      <div class="entry ${message.kind === "message" ? message.data.role : ""}" key=${message.seq}><${Entry} message=${message} result=${result} /></div>`)}
    ${more}
  `;
}
