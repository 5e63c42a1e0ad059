// The prompts of a job, and the form for another one while it works. What is written stays until it is sent, also when the page is left.

import { useEffect, useRef, useState } from "preact/hooks";
import { ApiError, get, newIntent, post } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Text, Time, html, now, useLoad } from "../../ui.js";

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
  const draft = `gantry.prompt.${id}`;
  const [text, setText] = useState(sessionStorage.getItem(draft) ?? "");
  const [mode, setMode] = useState("steer");
  /** Names what is in the form, so that it arrives once. */
  const intent = useRef(newIntent());
  const isSending = useRef(false);
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null }} */ ({ isBusy: false, error: null }));
  useEffect(() => sessionStorage.setItem(draft, text), [text]);
  /** @param {() => void} change */
  const edit = (change) => {
    intent.current = newIntent();
    change();
  };
  async function send() {
    if (!text.trim() || isSending.current) return;
    const used = intent.current;
    isSending.current = true;
    setState({ isBusy: true, error: null });
    let error = null;
    try {
      await post("/api/jobs/{id}/prompt", { path: { id }, body: { content: text, mode }, intent: used });
      // What was written meanwhile is another prompt.
      if (intent.current === used) edit(() => setText(""));
      onSent();
    } catch (failure) {
      error = /** @type {Error} */ (failure);
      // It was refused. After other failures it may have arrived: the same intent is sent again.
      if (error instanceof ApiError && error.status >= 400 && error.status < 500 && intent.current === used) intent.current = newIntent();
    }
    isSending.current = false;
    setState({ isBusy: false, error });
  }
  const onSubmit = (/** @type {Event} */ event) => (event.preventDefault(), void send());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || !(event.metaKey || event.ctrlKey)) return;
    event.preventDefault();
    void send();
  };
  const radio = (/** @type {"steer" | "queue"} */ name) => html`
    <label class="check"><input type="radio" name="mode" checked=${mode === name} onChange=${() => edit(() => setMode(name))} />${T.prompt[name]}</label>`;
  return html`
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="prompt">${T.prompt.title}</label>
      <textarea id="prompt" rows="2" value=${text} onInput=${(/** @type {any} */ event) => edit(() => setText(event.target.value))} onKeyDown=${onKeyDown}></textarea>
      <div class="line">${radio("steer")} ${radio("queue")}
        <button type="submit" disabled=${state.isBusy || !text.trim()}>${state.isBusy ? T.prompt.busy : T.prompt.send}</button>
      </div>
      ${state.error && html`<p class="failure" role="alert"><${Text}>${state.error.message}<//></p>`}
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
