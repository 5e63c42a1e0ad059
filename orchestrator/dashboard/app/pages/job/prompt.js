// The prompts of a job, and the form for another one while it works. What is written stays until it is sent, also when the page is left.

import { useEffect, useRef, useState } from "preact/hooks";
import { get, post } from "../../api.js";
import { useSending } from "../../sending.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Problem, Text, Time, html, now, useLoad } from "../../ui.js";

const SHOWN = 5;
/** Whether a prompt was read is asked again after so long. */
const AGAIN_MS = 5_000;

/** The newest prompts, and when the agent read each. @param {{ id: string, sent: number, isOver: boolean }} props */
function Prompts({ id, sent, isOver }) {
  const { value, again } = useLoad((signal) => get("/api/jobs/{id}/prompts", { path: { id }, query: { limit: SHOWN }, signal }), [id, sent, isOver, generation.value]);
  const askedAt = useRef(now.peek());
  const isWaiting = !isOver && value?.items.some(({ read_at: readAt }) => !readAt);
  // Only then does the clock of the page draw this again.
  const present = isWaiting ? now.value : 0;
  useEffect(() => {
    if (present - askedAt.current < AGAIN_MS) return;
    askedAt.current = present;
    again();
  }, [present]);
  if (!value || value.items.length === 0) return null;
  return html`
    <ul class="prompts" aria-label=${T.prompt.earlier}>
      ${value.items.toReversed().map((prompt) => html`<li key=${prompt.id}><span class="clamped" title=${prompt.content}><${Text}>${prompt.content}<//></span>
        <span class="note">${T.prompt.sent} <${Time} at=${prompt.created_at} /> · ${prompt.read_at ? html`${T.prompt.read} <${Time} at=${prompt.read_at} />` : T.prompt.waits}</span></li>`)}
    </ul>
  `;
}

/** @param {{ id: string, onSent: () => void }} props */
function Form({ id, onSent }) {
  const [mode, setMode] = useState("steer");
  const { text, write, isBusy, error, onInput, onSubmit, onKeyDown } = useSending(`prompt.${id}`, async (content, intent) => {
    await post("/api/jobs/{id}/prompt", { path: { id }, body: { content, mode }, intent });
    onSent();
  });
  const radio = (/** @type {"steer" | "queue"} */ name) => html`
    <label class="check"><input type="radio" name="mode" checked=${mode === name} onChange=${() => (write(), setMode(name))} />${T.prompt[name]}</label>`;
  return html`
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="prompt">${T.prompt.title}</label>
      <textarea id="prompt" rows="2" value=${text} onInput=${onInput} onKeyDown=${onKeyDown}></textarea>
      <div class="line">${radio("steer")} ${radio("queue")}
        <button type="submit" disabled=${isBusy || !text.trim()}>${isBusy ? T.prompt.busy : T.prompt.send}</button>
      </div>
      <${Problem} error=${error} />
    </form>
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"], isOver: boolean, canWrite: boolean }} props */
export function Prompt({ job, isOver, canWrite }) {
  const [sent, setSent] = useState(0);
  return html`
    <${Prompts} id=${job.id} sent=${sent} isOver=${isOver} />
    ${canWrite && !isOver && (job.prompts_closed ? html`<p class="note">${T.prompt.closed}</p>` : html`<${Form} id=${job.id} onSent=${() => setSent((count) => count + 1)} />`)}
  `;
}
