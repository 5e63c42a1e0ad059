// One stream of server-sent events over `fetch`, which shows what `EventSource` hides: the status, comments and messages that only have an id.
//
// Owns the parser, when to connect again and when not. Never knows what the events mean.

import { key } from "./api.js";

/** @typedef {{ id: string | null, event: string, data: string | null }} Message */
/**
 * `since` is when the connection was lost, `retryAt` when it is tried next.
 * @typedef {{ state: "connecting" | "live" | "login" | "ended" | "gone" } | { state: "reconnecting", since: number, retryAt: number }} Connection
 */

/** The server sends a comment every 15 s. */
const SILENCE_MS = 40_000;
/** A timer that is so late has slept, with the machine. */
const SLEEP_MS = 20_000;
const CHECK_MS = 10_000;
/** Hidden tabs have no timers under 30 s. */
const HIDDEN_CHECK_MS = 30_000;
const MAX_BACKOFF_MS = 30_000;
/** An event has at most 100 KB of text. */
const MAX_LINE_CHARS = 4_194_304;

/**
 * Returns a function that takes pieces of the stream.
 * @param {(message: Message) => void} onMessage
 */
export function createParser(onMessage) {
  let rest = "";
  /** @type {Message} */
  let message = { id: null, event: "message", data: null };

  /** @param {string} line */
  function take(line) {
    if (line === "") {
      if (message.id !== null || message.data !== null) onMessage(message);
      message = { id: null, event: "message", data: null };
      return;
    }
    const colon = line.indexOf(":");
    const name = colon < 0 ? line : line.slice(0, colon);
    const value = colon < 0 ? "" : line.slice(line[colon + 1] === " " ? colon + 2 : colon + 1);
    if (name === "id") message.id = value;
    else if (name === "event") message.event = value;
    else if (name === "data") message.data = message.data === null ? value : `${message.data}\n${value}`;
    // Comments and `retry` need nothing: the bytes themselves show that the connection is alive.
  }

  return (/** @type {string} */ piece) => {
    const text = rest + piece;
    let start = 0;
    for (let end = text.indexOf("\n"); end >= 0; end = text.indexOf("\n", start)) {
      take(text.slice(start, text[end - 1] === "\r" && end > start ? end - 1 : end));
      start = end + 1;
    }
    rest = text.slice(start);
    if (rest.length > MAX_LINE_CHARS) throw new Error("a line of the stream is too long");
  };
}

/**
 * What follows the end of a connection, by the answer's status: 0 if there was none, 200 if the stream was cut.
 * @param {number} status @param {number | null} retryAfter in seconds @param {number} failures before this one @param {number} random from 0 to 1
 * @returns {{ state: "login" | "ended" | "gone" } | { state: "reconnecting", waitMs: number }}
 */
export function nextStep(status, retryAfter, failures, random) {
  if (status === 204) return { state: "ended" };
  if (status === 401) return { state: "login" };
  if (status === 404) return { state: "gone" };
  if ((status === 429 || status === 503) && retryAfter) return { state: "reconnecting", waitMs: retryAfter * 1_000 };
  const backoff = Math.min(MAX_BACKOFF_MS, 1_000 * 2 ** Math.min(failures, 5));
  // Many tabs and browsers lose the same server at the same time.
  return { state: "reconnecting", waitMs: backoff * (0.75 + 0.25 * random) };
}

/**
 * Follows a stream until it is closed, from after the position `after`, or from now.
 * @param {{
 *   url: (after: string | null) => string, after?: string | null,
 *   onMessage: (message: Message) => void, onConnection: (connection: Connection) => void
 * }} options
 */
export function openStream({ url, after = null, onMessage, onConnection }) {
  let controller = new AbortController();
  let isClosed = false;
  let failures = 0;
  let position = after;
  let lastByteAt = Date.now();
  let lostAt = Date.now();
  /** @type {Connection["state"]} */
  let state = "connecting";
  let wake = () => {};
  /** Whether the connection was ended here, to have another one at once. */
  let isUrgent = false;
  /** @type {ReturnType<typeof setTimeout> | undefined} */
  let watch;

  /** @param {Connection} connection */
  function report(connection) {
    if (isClosed) return;
    state = connection.state;
    onConnection(connection);
  }

  const parse = () => createParser((message) => {
    if (message.id !== null) position = message.id;
    // It is for clients that do not see the bytes.
    if (message.event === "position") return;
    // The owner may have closed the stream during the last message.
    if (!isClosed) onMessage(message);
  });

  /** Returns how the connection ended. */
  async function connect() {
    controller = new AbortController();
    isUrgent = false;
    lastByteAt = Date.now();
    const headers = { Accept: "text/event-stream", ...key.header() };
    const response = await fetch(url(position), { headers, signal: controller.signal, cache: "no-store" });
    const retryAfter = Number(response.headers.get("Retry-After")) || null;
    if (response.status !== 200 || !response.body) {
      controller.abort();
      return { status: response.status, retryAfter };
    }
    report({ state: "live" });
    const [reader, decoder, take] = [response.body.getReader(), new TextDecoder(), parse()];
    for (;;) {
      const { done, value } = await reader.read();
      if (done) return { status: 200, retryAfter: null };
      lastByteAt = Date.now();
      failures = 0;
      take(decoder.decode(value, { stream: true }));
    }
  }

  async function run() {
    while (!isClosed) {
      const { status, retryAfter } = await connect().catch(() => ({ status: 0, retryAfter: null }));
      controller.abort();
      if (isClosed) return;
      const step = nextStep(status, retryAfter, failures, Math.random());
      if (step.state === "reconnecting") {
        const waitMs = isUrgent ? 0 : step.waitMs;
        if (state === "live") lostAt = Date.now();
        report({ state: "reconnecting", since: lostAt, retryAt: Date.now() + waitMs });
        failures += 1;
        await new Promise((resolve) => {
          const timer = setTimeout(resolve, waitMs);
          wake = () => (clearTimeout(timer), resolve(undefined));
        });
      } else {
        report({ state: step.state });
        if (step.state !== "login") return close();
        await new Promise((resolve) => (wake = () => resolve(undefined)));
      }
      wake = () => {};
    }
  }

  /** Looks whether the server is silent, or this machine has slept. */
  function check() {
    const delay = globalThis.document?.hidden ? HIDDEN_CHECK_MS : CHECK_MS;
    const due = Date.now() + delay;
    watch = setTimeout(() => {
      const silence = Date.now() - lastByteAt;
      const hasSlept = Date.now() - due > SLEEP_MS && silence > SLEEP_MS;
      if (hasSlept || silence > SILENCE_MS) renew();
      check();
    }, delay);
  }

  /** Ends the wait between two tries, but asks for no login by itself. */
  function hurry() {
    if (state === "reconnecting") wake();
  }

  /** Ends a connection that is probably dead and tries the next one at once. */
  function renew() {
    isUrgent = true;
    controller.abort();
    hurry();
  }

  function onVisible() {
    if (globalThis.document.hidden) return;
    if (Date.now() - lastByteAt > SILENCE_MS) renew();
    else hurry();
  }

  function close() {
    isClosed = true;
    clearTimeout(watch);
    globalThis.removeEventListener?.("online", hurry);
    globalThis.document?.removeEventListener("visibilitychange", onVisible);
    controller.abort();
    wake();
  }

  globalThis.addEventListener?.("online", hurry);
  globalThis.document?.addEventListener("visibilitychange", onVisible);
  check();
  run();
  return {
    close,
    /** Connects now, also after a login. */
    retry: () => ((failures = 0), wake()),
  };
}
