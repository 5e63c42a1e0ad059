// Small parts of pages: texts, states, times, what is shown while loading and after a failure.
//
// Every text that is not the dashboard's own goes through `Text`, as a text node. Nothing here makes HTML from a string.

import { computed, signal } from "@preact/signals";
import htm from "htm";
import { h } from "preact";
import { useEffect, useLayoutEffect, useRef, useState } from "preact/hooks";
import { isProblem, isUnanswered, newIntent } from "./api.js";
import { clock, codeOf, date, duration, isZone, pieces, relative, shortId, time } from "./format.js";
import { connection } from "./live.js";
import { place, setQuery } from "./router.js";
import { serverNow } from "./session.js";
import { STATES, T } from "./texts.js";

/** @typedef {import("preact").ComponentChildren} Children */

export const html = /** @type {(strings: TemplateStringsArray, ...values: any[]) => import("preact").VNode<any>} */ (htm.bind(h));

const SPRITE = new URL("../icons.svg", import.meta.url).pathname;

// --- time

const STORED_ZONE = "gantry.zone";
export const browserZone = Intl.DateTimeFormat().resolvedOptions().timeZone;
const storedZone = signal(localStorage.getItem(STORED_ZONE));

/** The zone of all times that are shown: the URL's, the chosen one, the browser's. */
export const zone = computed(() => {
  const named = [place.value.query.get("zone"), storedZone.value].find(isZone);
  return named ?? browserZone;
});

/** @param {string} name */
export function chooseZone(name) {
  const chosen = name === browserZone ? null : name;
  if (chosen) localStorage.setItem(STORED_ZONE, chosen);
  else localStorage.removeItem(STORED_ZONE);
  storedZone.value = chosen;
  setQuery({ zone: chosen });
}

/** The server's time, each second while the page is visible. */
export const now = signal(serverNow());

/** The only timer of the page for what it shows. */
export function startClock() {
  /** @type {ReturnType<typeof setInterval> | undefined} */
  let timer;
  const onVisibility = () => {
    clearInterval(timer);
    now.value = serverNow();
    if (!document.hidden) timer = setInterval(() => (now.value = serverNow()), 1_000);
  };
  document.addEventListener("visibilitychange", onVisibility);
  onVisibility();
}

/** A time in the chosen zone. @param {{ at: string }} props */
export function Time({ at }) {
  const ms = Date.parse(at);
  const title = `${date(ms, "UTC")}, ${clock(ms, "UTC")} UTC, ${relative(ms, now.value)}`;
  return html`<time datetime=${at} title=${title}>${time(ms, zone.value, now.value)}</time>`;
}

/** The time since, or until it ended. @param {{ from: string | null | undefined, to?: string | null | undefined }} props */
export function Elapsed({ from, to }) {
  return from ? duration((to ? Date.parse(to) : now.value) - Date.parse(from)) : "–";
}

// --- texts and icons

/** A text in which characters that would change its direction are visible. @param {string} text */
export const marked = (text) => pieces(text).map((part, index) => (index % 2 === 0 ? part : html`<mark key=${index}>${codeOf(part)}</mark>`));

/** A text of a person, a model or a tool: its direction is its own. @param {{ children?: Children }} props */
export const Text = ({ children }) => html`<bdi dir="auto">${[children].flat().map((part) => (typeof part === "string" ? marked(part) : part))}</bdi>`;

/** @param {{ name: string }} props */
export const Icon = ({ name }) => html`<svg class="icon" aria-hidden="true"><use href="${SPRITE}#${name}" /></svg>`;

/** The heading of a page. It takes the focus when the page opens. @param {{ children?: Children }} props */
export const Heading = ({ children }) => html`<h1 tabindex="-1">${children}</h1>`;

/** The state of a job: a form, a word and a colour. @param {{ state: import("./texts.js").JobState, reason?: string | null | undefined }} props */
export const State = ({ state, reason }) => html`<span class="state ${state}"><${Icon} name=${state} />${reason === "rejected" ? reason : STATES[state]}</span>`;

/** @param {{ id: string }} props */
export const Id = ({ id }) => html`<span class="id"><code title=${id}>${shortId(id)}</code><${Copy} text=${id} name=${shortId(id)} /></span>`;

/** Copies plain text; where the browser allows no clipboard, the text is selected. @param {{ text: string, name?: string, label?: string }} props */
export function Copy({ text, name = "", label }) {
  const [note, setNote] = useState("");
  const [field, setField] = useState(false);
  useEffect(() => {
    if (!note) return;
    const timer = setTimeout(() => (setNote(""), setField(false)), 5_000);
    return () => clearTimeout(timer);
  }, [note]);
  async function copy() {
    const isCopied = await Promise.resolve().then(() => navigator.clipboard.writeText(text)).then(() => true, () => false);
    setField(!isCopied);
    setNote(isCopied ? T.copied : T.selected);
    announce(isCopied ? T.copied : T.selected);
  }
  const select = (/** @type {HTMLInputElement | null} */ input) => input?.select();
  return html`
    <button type="button" class="small" title=${note || T.copy} aria-label=${[...new Set([T.copy, name, label])].filter(Boolean).join(" ")} onClick=${copy}>
      <${Icon} name=${note === T.copied ? "completed" : "copy"} />${label}
    </button>
    ${field && html`<input class="copied" readonly aria-label=${T.selected} value=${text} ref=${select} />`}
  `;
}

/** Commands that do the same as the page, without the token. @param {{ cli: string, path: string }} props */
export function CopyAs({ cli, path }) {
  const curl = `curl -sS -H "Authorization: Bearer $GANTRY_TOKEN" '${location.origin}${path}'`;
  return html`<p class="note line">${T.now.copyAs} <${Copy} label="CLI" text=${cli} /> <${Copy} label="curl" text=${curl} /></p>`;
}

/** @type {import("@preact/signals").Signal<string>} */
export const announced = signal("");

/** Says something to people who do not see the page. @param {string} text */
export function announce(text) {
  announced.value = "";
  requestAnimationFrame(() => (announced.value = text));
}

/** What the page is about, for the title of the window; null: the name of the page is enough. */
export const subject = signal(/** @type {string | null} */ (null));

/** Names what the page is about while it is open. @param {string | null | undefined} text */
export function useSubject(text) {
  useEffect(() => {
    subject.value = text ?? null;
    return () => void (subject.value = null);
  }, [text]);
}

// --- what is read

/**
 * What a page has read. It is read again when an input changes; what was there stays until then.
 * @template Value
 * `status` says that it failed, or that there is nothing yet.
 * @typedef {{ value: Value | null, error: Error | null, isLoading: boolean, again: () => void, status: any }} Loaded
 */

/** Acts once the connection is back, if something got no answer. @param {Error | null} error @param {() => void} act */
function useReconnected(error, act) {
  const isLive = connection.value.state === "live";
  useEffect(() => {
    if (isLive && isUnanswered(error)) act();
  }, [isLive]);
}

/**
 * @template Value
 * @param {(signal: AbortSignal) => Promise<Value>} load @param {unknown[]} inputs
 * @returns {Loaded<Value>}
 */
export function useLoad(load, inputs) {
  const [tries, setTries] = useState(0);
  /** @typedef {{ value: Value | null, error: Error | null, isLoading: boolean }} Result */
  const [loaded, setLoaded] = useState(/** @type {Result} */ ({ value: null, error: null, isLoading: true }));
  useEffect(() => {
    const isOver = new AbortController();
    const set = (/** @type {Partial<Result>} */ change) => isOver.signal.aborted || setLoaded((before) => ({ ...before, ...change }));
    set({ isLoading: true });
    load(isOver.signal).then(
      (value) => set({ value, error: null, isLoading: false }),
      (error) => set({ error, isLoading: false }),
    );
    return () => isOver.abort();
  }, [...inputs, tries]);
  const again = () => setTries(tries + 1);
  useReconnected(loaded.error, again);
  const status = loaded.error ? html`<${Failed} error=${loaded.error} again=${again} />` : loaded.value === null && loaded.isLoading && html`<${Loading} />`;
  return { ...loaded, again, status };
}

/**
 * A list that is read page by page: the first one, and others when they are asked for. `seen` is the position of the events that the first
 * page is not older than. `more` is the button for the next page.
 * @template Row, Extra
 * @param {(cursor?: string, signal?: AbortSignal) => Promise<{ items: Row[], next_cursor?: string | null | undefined } & Extra>} read
 * @param {unknown[]} inputs
 */
export function usePages(read, inputs) {
  const { value: first, error, isLoading, again, status } = useLoad((signal) => read(undefined, signal), inputs);
  /** @typedef {{ of: unknown, items: Row[], next: string | null, error: Error | null }} More */
  const [others, setOthers] = useState(/** @type {More} */ ({ of: null, items: [], next: null, error: null }));
  /** @type {More} */
  const pages = others.of === first ? others : { of: first, items: [], next: first?.next_cursor ?? null, error: null };
  async function readMore() {
    try {
      const { items, next_cursor: next = null } = await read(pages.next ?? undefined);
      setOthers({ of: first, items: [...pages.items, ...items], next, error: null });
    } catch (failure) {
      setOthers({ ...pages, error: /** @type {Error} */ (failure) });
    }
  }
  const items = first ? [...first.items, ...pages.items] : [];
  const hasMore = pages.next !== null;
  const more = pages.error ? html`<${Failed} error=${pages.error} again=${readMore} />`
    : hasMore && html`<p><button type="button" onClick=${readMore}>${T.jobs.more}</button> <span class="note">${T.jobs.shown(items.length)}</span></p>`;
  return { first, error, isLoading, again, items, hasMore, status, more };
}

// --- what is done

/** Does one thing at a time, and keeps why it failed; `run` tells whether it has worked. */
export function useDoing() {
  const [state, setState] = useState(/** @type {{ isBusy: boolean, error: Error | null }} */ ({ isBusy: false, error: null }));
  const isBusy = useRef(false);
  async function run(/** @type {() => Promise<unknown>} */ work) {
    if (isBusy.current) return false;
    isBusy.current = true;
    setState({ isBusy: true, error: null });
    const error = await work().then(() => null, (failure) => failure);
    isBusy.current = false;
    setState({ isBusy: false, error });
    return error === null;
  }
  const setError = (/** @type {Error | null} */ error) => setState({ isBusy: isBusy.current, error });
  useReconnected(state.error, () => setError(new Error(T.errors.reconnected)));
  return { ...state, run, setError };
}

/** Sends what a person wants once: after a failure that leaves open whether it has arrived, the same intent is sent again. */
export function useIntent() {
  const intent = useRef(newIntent());
  const renew = () => void (intent.current = newIntent());
  return {
    renew,
    /** @template Answer @param {(intent: string) => Promise<Answer>} send */
    async send(send) {
      try {
        const answer = await send(intent.current);
        renew();
        return answer;
      } catch (error) {
        if (isProblem(error)) renew();
        throw error;
      }
    },
  };
}

export const Loading = () => html`<p class="loading" role="status"><${Icon} name="loading" />${T.loading}</p>`;

/** @param {{ children?: Children }} props */
export const Empty = ({ children }) => html`<div class="empty">${children}</div>`;

/** @param {{ error: Error, again?: (() => void) | undefined }} props */
export function Failed({ error, again }) {
  const id = "requestId" in error && error.requestId;
  return html`
    <div class="failure" role="alert">
      <p><${Icon} name="failed" /><strong>${T.failed}</strong></p>
      <p><${Text}>${error.message}<//></p>
      ${id && html`<p class="note">${T.request(String(id))}</p>`}
      ${again && !isProblem(error, 404) && html`<button type="button" onClick=${again}>${T.again}</button>`}
    </div>
  `;
}

/** Why something was not done. @param {{ error: Error | null }} props */
export const Problem = ({ error }) => error && html`<p class="failure" role="alert"><${Text}>${error.message}<//></p>`;

/**
 * Asks before something is done; the safe button has the focus. With `field` it asks for a text, too.
 * @param {{ title: string, note?: string | undefined, field?: string | undefined, isOptional?: boolean, yes: string, no: string, onYes: (text: string) => void, onNo: () => void }} props
 */
export function Confirm({ title, note, field, isOptional = false, yes, no, onYes, onNo }) {
  const [text, setText] = useState("");
  function onSubmit(/** @type {Event} */ event) {
    event.preventDefault();
    // What opened the dialog gets the focus back before it may be disabled.
    /** @type {HTMLElement} */ (event.currentTarget).closest("dialog")?.close();
    onYes(text);
  }
  return html`
    <${Dialog} title=${title} onClose=${onNo} isQuestion>
      ${note && html`<p>${note}</p>`}
      <form onSubmit=${onSubmit}>
        ${field && html`<label for="confirm-text">${field}</label><input id="confirm-text" autofocus required=${!isOptional} value=${text} onInput=${(/** @type {any} */ event) => setText(event.target.value)} />`}
        <p class="line"><button type="button" autofocus=${!field} onClick=${onNo}>${no}</button> <button type="submit" class="danger">${yes}</button></p>
      </form>
    <//>
  `;
}

/**
 * A dialog over the page. Without `onClose` it stays; a question has its own buttons.
 * @param {{ title: string, onClose?: () => void, isQuestion?: boolean, children?: Children }} props
 */
export function Dialog({ title, onClose, isQuestion = false, children }) {
  const dialog = useRef(/** @type {HTMLDialogElement | null} */ (null));
  // Before the next key, which is for the dialog.
  useLayoutEffect(() => {
    const element = dialog.current;
    element?.showModal();
    // What had the focus gets it back only from a dialog that is closed before it is removed.
    return () => element?.close();
  }, []);
  // The event of a closed dialog comes later, when the next one may be open.
  const close = () => (dialog.current?.close(), onClose?.());
  const onCancel = (/** @type {Event} */ event) => (event.preventDefault(), onClose && close());
  // Browsers close a dialog at the second Esc, whatever the page says.
  const onClosed = () => (onClose ? dialog.current && onClose() : dialog.current?.showModal());
  return html`
    <dialog ref=${dialog} aria-label=${title} onCancel=${onCancel} onClose=${onClosed}>
      <h2>${title}</h2>
      ${children}
      ${onClose && !isQuestion && html`<button type="button" onClick=${close}>${T.close}</button>`}
    </dialog>
  `;
}
