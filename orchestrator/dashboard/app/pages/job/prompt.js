// A prompt for a job at work. What is written stays until it is sent, also when the page is left.

import { useEffect, useState } from "preact/hooks";
import { ApiError, get, post } from "../../api.js";
import { generation } from "../../session.js";
import { T } from "../../texts.js";
import { Text, Time, html, now, useLoad } from "../../ui.js";

const SHOWN = 5;
/** Whether a prompt was read is asked again after so long. */
const AGAIN_MS = 5_000;

/** The newest prompts, and when the agent read each. @param {{ id: string, sent: number }} props */
export function Prompts({ id, sent }) {
  const [isWaiting, setIsWaiting] = useState(true);
  const turn = isWaiting ? Math.floor(now.value / AGAIN_MS) : 0;
  const { value } = useLoad((signal) => get("/api/jobs/{id}/prompts", { path: { id }, query: { limit: SHOWN }, signal }), [id, sent, turn, generation.value]);
  useEffect(() => void (value && setIsWaiting(value.items.some(({ read_at: readAt }) => !readAt))), [value]);
  if (!value || value.items.length === 0) return null;
  return html`
    <ul class="prompts" aria-label=${T.prompt.earlier}>
      ${value.items.toReversed().map((prompt) => html`<li key=${prompt.id}><${Text}>${prompt.content}<//>
        <span class="note">${T.prompt.sent} <${Time} at=${prompt.created_at} /> · ${prompt.read_at ? html`${T.prompt.read} <${Time} at=${prompt.read_at} />` : T.prompt.waits}</span></li>`)}
    </ul>
  `;
}

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Prompt({ job }) {
  const draft = `gantry.prompt.${job.id}`;
  const [text, setText] = useState(sessionStorage.getItem(draft) ?? "");
  const [mode, setMode] = useState("steer");
  const [intent, setIntent] = useState(() => crypto.randomUUID());
  const [sent, setSent] = useState(0);
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null }} */ ({ isBusy: false, error: null }));
  useEffect(() => sessionStorage.setItem(draft, text), [text]);
  async function send() {
    if (!text.trim()) return;
    setState({ isBusy: true, error: null });
    try {
      await post("/api/jobs/{id}/prompt", { path: { id: job.id }, body: { content: text, mode }, intent });
      setText("");
      setIntent(crypto.randomUUID());
      setSent(sent + 1);
      setState({ isBusy: false, error: null });
    } catch (error) {
      // Without an answer it may have arrived: the same intent is sent again.
      if (error instanceof ApiError && error.status !== 0) setIntent(crypto.randomUUID());
      setState({ isBusy: false, error: /** @type {Error} */ (error) });
    }
  }
  const onSubmit = (/** @type {Event} */ event) => (event.preventDefault(), void send());
  const onKeyDown = (/** @type {KeyboardEvent} */ event) => {
    if (event.key !== "Enter" || !(event.metaKey || event.ctrlKey)) return;
    event.preventDefault();
    void send();
  };
  const radio = (/** @type {"steer" | "queue"} */ name) => html`
    <label class="check"><input type="radio" name="mode" checked=${mode === name} onChange=${() => setMode(name)} />${T.prompt[name]}</label>`;
  return html`
    <${Prompts} id=${job.id} sent=${sent} />
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="prompt">${T.prompt.title}</label>
      <textarea id="prompt" rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      <div class="line">${radio("steer")} ${radio("queue")}
        <button type="submit" disabled=${state.isBusy || !text.trim()}>${state.isBusy ? T.prompt.busy : T.prompt.send}</button>
      </div>
      ${state.error && html`<p class="failure" role="alert"><${Text}>${state.error.message}<//></p>`}
    </form>
  `;
}
