// One entry of a thread: a message, a call with its result, the end of a job, an error. All texts are shown as they were written.

import { useState } from "preact/hooks";
import { took } from "../../format.js";
import { T } from "../../texts.js";
import { Icon, State, Text, Time, html } from "../../ui.js";

/** @typedef {import("./conversation.js").Entry} Entry */
/** @typedef {import("./conversation.js").Row} Row */

/** Of a longer text the beginning is shown. */
const SHOWN_CHARS = 20_000;
const PREVIEW_CHARS = 200;

/** The text of a message. The only place where it may be shown in another way than as it was written. @param {{ text: string }} props */
export function Body({ text }) {
  const [isWhole, setIsWhole] = useState(text.length <= SHOWN_CHARS);
  return html`
    <div class="text"><${Text}>${isWhole ? text : text.slice(0, SHOWN_CHARS)}<//></div>
    ${!isWhole && html`<p><button type="button" class="link" onClick=${() => setIsWhole(true)}>${T.chat.whole(text.length)}</button></p>`}
  `;
}

/** Who wrote an entry, and when. @param {{ entry: Entry, who: string, note?: string }} props */
const Head = ({ entry, who, note }) => html`
  <p class="line"><strong>${who}</strong> <span class="note"><${Time} at=${entry.at} />${note && ` · ${note}`}</span></p>`;

/** @param {{ entry: Entry }} props */
function Message({ entry }) {
  const { role, origin, seq, content } = entry;
  const note = seq === null ? T.chat.isQueued : origin ? T.chat.origins[/** @type {"owner"} */ (origin)] : undefined;
  return html`<${Head} entry=${entry} who=${T.chat.roles[/** @type {"user"} */ (role)] ?? role} note=${note} /><${Body} text=${content ?? ""} />`;
}

/** How the output of a call begins that a person has denied. */
const DENIED = "error (not_authorized): the user denied this call";

/** @param {Row} row */
function outcomeOf({ result }) {
  if (!result) return { icon: "loading", word: T.calls.running };
  if (result["output"]?.startsWith(DENIED)) return { icon: "cancelled", word: T.gate.states.denied };
  const [icon, word] = result["success"] ? ["completed", T.trace.ok] : ["failed", T.trace.failed];
  return { icon, word: [word, took(result["duration_ms"]), result["truncated"] && T.trace.cut].filter(Boolean).join(" · ") };
}

/** A call with its result. Its texts are drawn when it is opened. @param {{ row: Row }} props */
function Call({ row }) {
  const [isOpen, setIsOpen] = useState(false);
  const { entry, result } = row;
  const input = JSON.stringify(entry["input"]) ?? "";
  const { icon, word } = outcomeOf(row);
  return html`
    <details onToggle=${(/** @type {any} */ event) => setIsOpen(event.currentTarget.open)}>
      <summary><${Icon} name=${icon} /><strong><${Text}>${entry["tool"]}<//></strong> <span class="note"><${Text}>${input.slice(0, PREVIEW_CHARS)}<//> ${word} · <${Time} at=${entry.at} /></span></summary>
      ${isOpen && html`
        ${entry["reasoning"] && html`<p><span class="note">${T.trace.why}</span> <${Text}>${entry["reasoning"]}<//></p>`}
        <pre tabindex="0" role="group" aria-label=${T.gate.parameters}><${Text}>${JSON.stringify(entry["input"], null, 2)}<//></pre>
        ${result && html`<pre tabindex="0" role="group" aria-label=${T.trace.output}><${Text}>${result["output"]}<//></pre>`}`}
    </details>
  `;
}

/** A result whose call is on an earlier page. @param {{ entry: Entry }} props */
const Result = ({ entry }) => html`
  <details><summary><${Icon} name=${entry["success"] ? "completed" : "failed"} /><strong><${Text}>${entry["tool"]}<//></strong> <span class="note">${T.trace.output} · <${Time} at=${entry.at} /></span></summary>
    <pre tabindex="0" role="group" aria-label=${T.trace.output}><${Text}>${entry["output"]}<//></pre></details>
`;

/** @param {{ entry: Entry }} props */
const Job = ({ entry }) => html`
  <p class="line"><${State} state=${entry["state"]} /> <a href=${`/jobs/${entry["job_id"]}`}><${Text}>${entry["title"]}<//></a>
    <span class="note">${entry["reason"] && html`<${Text}>${entry["reason"]}<//> · `}<${Time} at=${entry.at} /></span></p>
  <${Body} text=${entry["content"] ?? ""} />
`;

/** @param {{ entry: Entry }} props */
const Failure = ({ entry }) => html`
  <div class="failure"><p class="line"><${Icon} name="failed" /><strong><${Text}>${entry["reason"]}<//></strong> <span class="note"><${Time} at=${entry.at} /></span></p>
    <${Body} text=${entry["content"] ?? ""} /></div>
`;

/** @param {{ row: Row }} props */
export function EntryBody({ row }) {
  const { entry } = row;
  switch (entry.role) {
    case "tool_use": return html`<${Call} row=${row} />`;
    case "tool_result": return html`<${Result} entry=${entry} />`;
    case "job": return html`<${Job} entry=${entry} />`;
    case "error": return html`<${Failure} entry=${entry} />`;
    default: return html`<${Message} entry=${entry} />`;
  }
}
