// A text that is sent once: its draft, which outlives the page, its idempotency key, and what became of sending it.

import { useRef, useState } from "preact/hooks";
import { isProblem, newIntent } from "./api.js";
import { drafts } from "./session.js";
import { useDoing } from "./ui.js";

/**
 * `name` is that of the draft. After a failure that leaves open whether the text has arrived, the same intent is sent again.
 * @param {string} name @param {(text: string, intent: string) => Promise<void>} send
 */
export function useSending(name, send) {
  const [text, setText] = useState(() => String(drafts.get(name)?.text ?? ""));
  /** Names what is in the form, so that it arrives once. */
  const intent = useRef(/** @type {string | null} */ (null));
  intent.current ??= String(drafts.get(name)?.intent ?? newIntent());
  const { isBusy, error, run } = useDoing();

  /** Another text is another intent, and so is what else a form has. @param {string} [next] */
  function write(next = text) {
    intent.current = newIntent();
    setText(next);
    if (next) drafts.set(name, { text: next, intent: intent.current });
    else drafts.remove(name);
  }

  const submit = () => text.trim() && run(async () => {
    const used = String(intent.current);
    try {
      await send(text, used);
    } catch (failure) {
      if (isProblem(failure) && intent.current === used && drafts.get(name)?.intent === used) write();
      throw failure;
    }
    const isStored = drafts.get(name)?.intent === used;
    // What was written meanwhile is another text, here or where the form was opened again.
    if (intent.current === used) {
      intent.current = newIntent();
      setText("");
    }
    if (isStored) drafts.remove(name);
  });

  return {
    text, write, isBusy, error,
    onInput: (/** @type {any} */ event) => write(event.target.value),
    onSubmit: (/** @type {Event} */ event) => (event.preventDefault(), void submit()),
    onKeyDown(/** @type {KeyboardEvent} */ event) {
      if (event.key !== "Enter" || !(event.metaKey || event.ctrlKey)) return;
      event.preventDefault();
      void submit();
    },
  };
}
