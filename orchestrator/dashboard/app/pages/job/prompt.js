// A prompt for a job at work. What is written stays until it is sent, also when the page is left.

import { useEffect, useState } from "preact/hooks";
import { ApiError, post } from "../../api.js";
import { T } from "../../texts.js";
import { Text, Time, html } from "../../ui.js";

/** @param {{ job: import("../../api.js").schemas["Job"] }} props */
export function Prompt({ job }) {
  const draft = `gantry.prompt.${job.id}`;
  const [text, setText] = useState(sessionStorage.getItem(draft) ?? "");
  const [mode, setMode] = useState("steer");
  const [intent, setIntent] = useState(() => crypto.randomUUID());
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null, sentAt: string | null }} */ ({ isBusy: false, error: null, sentAt: null }));
  useEffect(() => sessionStorage.setItem(draft, text), [text]);
  async function send() {
    if (!text.trim()) return;
    setState({ ...state, isBusy: true, error: null });
    try {
      await post("/api/jobs/{id}/prompt", { path: { id: job.id }, body: { content: text, mode }, intent });
      setText("");
      setIntent(crypto.randomUUID());
      setState({ isBusy: false, error: null, sentAt: new Date().toISOString() });
    } catch (error) {
      // Without an answer it may have arrived: the same intent is sent again.
      if (error instanceof ApiError && error.status !== 0) setIntent(crypto.randomUUID());
      setState({ isBusy: false, error: /** @type {Error} */ (error), sentAt: null });
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
    <form class="prompt" onSubmit=${onSubmit}>
      <label for="prompt">${T.prompt.title}</label>
      <textarea id="prompt" rows="2" value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} onKeyDown=${onKeyDown}></textarea>
      <div class="line">${radio("steer")} ${radio("queue")}
        <button type="submit" disabled=${state.isBusy || !text.trim()}>${state.isBusy ? T.prompt.busy : T.prompt.send}</button>
        ${state.sentAt && html`<span class="note" role="status">${T.prompt.sent} <${Time} at=${state.sentAt} /></span>`}
      </div>
      ${state.error && html`<p class="failure" role="alert"><${Text}>${state.error.message}<//></p>`}
    </form>
  `;
}
