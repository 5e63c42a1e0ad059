// Requests to the API: JSON in and out, problems as errors, the session's key with each change.
//
// Owns what a request carries and where the key is kept. The cookie is the browser's: no code here can read it. Never shows anything.

import { signal } from "@preact/signals";
import { T } from "./texts.js";

/** @typedef {import("../openapi.d.ts").paths} paths */
/** @typedef {import("../openapi.d.ts").components["schemas"]} schemas */

/**
 * The JSON that a path answers with, after success.
 * @template {keyof paths} P
 * @template {"get" | "post" | "put" | "patch" | "delete"} M
 * @typedef {paths[P][M] extends { responses: infer R } ?
 *   R extends { 200: { content: { "application/json": infer A } } } ? A
 *   : R extends { 201: { content: { "application/json": infer A } } } ? A
 *   : R extends { 202: { content: { "application/json": infer A } } } ? A
 *   : undefined : undefined} Answer
 */

/**
 * `path` has the values of `{names}` in the path. `intent` names what a person wants once, so that a double click or a retry does it once.
 * `ifMatch` is the tag of what a change is based on, `ifNoneMatch` that of what is known.
 * @typedef {{
 *   path?: Record<string, string>, query?: Record<string, string | number | boolean | null | undefined>, body?: unknown, intent?: string, signal?: AbortSignal | undefined,
 *   ifMatch?: string | null, ifNoneMatch?: string
 * }} RequestOptions
 */

/** A request that takes longer has failed. */
const TIMEOUT_MS = 30_000;
const KEY = "gantry.key";

/** Whether the server has refused this browser's session. `session.js` opens a new one and resets it. */
export const isRefused = signal(false);

/** The session's key. Each port has its own storage, while they share cookies. */
export const key = {
  get: () => localStorage.getItem(KEY),
  set: (/** @type {string} */ value) => localStorage.setItem(KEY, value),
  clear: () => localStorage.removeItem(KEY),
  /** Names the session, of which a browser may have the cookies of several. @returns {Record<string, string>} */
  header: () => {
    const value = localStorage.getItem(KEY);
    return value ? { "X-Gantry-Key": value } : {};
  },
};

/** A new idempotency key. `crypto.randomUUID` would need https. */
export const newIntent = () => Array.from(crypto.getRandomValues(new Uint8Array(16)), (byte) => byte.toString(16).padStart(2, "0")).join("");

/** A request that failed. `status` is 0 if there was no answer. */
export class ApiError extends Error {
  /** @param {number} status @param {Partial<schemas["Problem"]>} problem @param {number | null} retryAfter in seconds */
  constructor(status, problem, retryAfter = null) {
    super(problem.detail ?? (status === 0 ? T.errors.network : T.errors.unexpected(status)));
    this.status = status;
    this.code = problem.code ?? null;
    this.title = problem.title ?? null;
    this.requestId = problem.request_id ?? null;
    this.fields = problem.errors ?? [];
    this.retryAfter = retryAfter;
    /** The answer as it was, which is not always a problem. */
    this.body = /** @type {any} */ (problem);
  }
}

/** Whether the server has refused a request with a status, or with any: trying again changes nothing. @param {unknown} error @param {number} [status] */
export const isProblem = (error, status) => error instanceof ApiError && (status === undefined ? error.status >= 400 && error.status < 500 : error.status === status);

/** Whether a request got no answer. @param {unknown} error */
export const isUnanswered = (error) => error instanceof ApiError && error.status === 0;

/** For `catch`: a refusal with a status is none. @param {number} status */
export const ignoreProblem = (status) => (/** @type {unknown} */ error) => {
  if (!isProblem(error, status)) throw error;
  return null;
};

/** For `catch`: does something after a refusal with a status, which stays one. @param {number} status @param {() => void} act @returns {(error: unknown) => never} */
export const onProblem = (status, act) => (error) => {
  if (isProblem(error, status)) act();
  throw error;
};

/** @param {string} path @param {RequestOptions} options */
export function address(path, { path: values = {}, query = {} }) {
  const filled = path.replace(/\{(\w+)\}/g, (_, name) => encodeURIComponent(values[name] ?? ""));
  const pairs = Object.entries(query).flatMap(([name, value]) => (value == null ? [] : [[name, String(value)]]));
  return pairs.length === 0 ? filled : `${filled}?${new URLSearchParams(pairs)}`;
}

/**
 * There was no answer, or a part of one, unless the caller has given up.
 * @param {unknown} error @param {AbortSignal | undefined} signal the caller's
 * @returns {never}
 */
function cutShort(error, signal) {
  throw signal?.aborted ? error : new ApiError(0, {});
}

/** @param {string} method @param {string} path @param {RequestOptions} options */
async function send(method, path, options) {
  /** @type {Record<string, string>} */
  const headers = { Accept: "application/json" };
  if (options.body !== undefined) headers["Content-Type"] = "application/json";
  if (options.intent) headers["Idempotency-Key"] = options.intent;
  if (options.ifMatch) headers["If-Match"] = options.ifMatch;
  if (options.ifNoneMatch) headers["If-None-Match"] = options.ifNoneMatch;
  Object.assign(headers, key.header());
  const body = options.body === undefined ? null : JSON.stringify(options.body);
  const timeout = AbortSignal.timeout(TIMEOUT_MS);
  const signal = options.signal ? AbortSignal.any([options.signal, timeout]) : timeout;
  const response = await fetch(address(path, options), { method, headers, body, signal }).catch((error) => cutShort(error, options.signal));
  const isJson = response.status !== 304 && /\bjson\b/.test(response.headers.get("Content-Type") ?? "");
  const content = isJson ? await response.json().catch((error) => cutShort(error, options.signal)) : null;
  if (response.ok || response.status === 304) return { content, tag: response.headers.get("ETag") };
  const error = new ApiError(response.status, content ?? {}, Number(response.headers.get("Retry-After")) || null);
  const isLogin = method === "POST" && path === "/api/session";
  // Without its key the session can only read, so it is as good as none.
  if (!isLogin && (error.status === 401 || error.code === "cross_origin")) isRefused.value = true;
  throw error;
}

/** @param {string} method @param {string} path @param {RequestOptions} options */
const request = async (method, path, options) => (await send(method, path, options)).content;

/**
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<Answer<P, "get">>}
 */
export const get = (path, options = {}) => request("GET", path, options);

/**
 * What is there, with its tag, which a change of it names.
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<{ content: Answer<P, "get">, tag: string | null }>}
 */
export const getTagged = (path, options = {}) => send("GET", path, options);

/**
 * The same, without content if it is still what has the tag `known`.
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} options @param {string | null} known
 * @returns {Promise<{ content: Answer<P, "get"> | null, tag: string | null }>}
 */
export const getChanged = (path, options, known) => send("GET", path, { ...options, ...(known && { ifNoneMatch: known }) });

/**
 * The beginning of a file, at most `most` bytes. The rest is not read.
 * @param {string} url @param {number} most @param {AbortSignal} signal
 */
export const read = (url, most, signal) => inTime((isOver) => readBytes(url, most, isOver), signal);

/**
 * @template Value
 * @param {(signal: AbortSignal) => Promise<Value>} read @param {AbortSignal} signal
 */
const inTime = (read, signal) => read(AbortSignal.any([signal, AbortSignal.timeout(TIMEOUT_MS)]))
  .catch((error) => (error instanceof ApiError ? Promise.reject(error) : cutShort(error, signal)));

/** Why bytes were not read. @param {Response} response */
async function refusal(response) {
  if (response.status === 401) isRefused.value = true;
  return new ApiError(response.status, await response.json().catch(() => ({})));
}

/** @param {string} url @param {number} most @param {AbortSignal} signal */
async function readBytes(url, most, signal) {
  const response = await fetch(url, { headers: key.header(), signal });
  if (!response.ok || !response.body) throw await refusal(response);
  const size = Number(response.headers.get("Content-Length")) || 0;
  const content = new Uint8Array(Math.min(most, size || most));
  const reader = response.body.getReader();
  let length = 0;
  for (;;) {
    const { done, value } = await reader.read();
    if (done) return { content: content.subarray(0, length), size: length, isCut: false };
    content.set(value.subarray(0, content.length - length), length);
    length += value.length;
    if (length > content.length) break;
  }
  await reader.cancel();
  return { content, size: Math.max(size, length), isCut: true };
}

/** The version of a file, as far as it is known, and its size. @typedef {{ etag: string | null, modified: string | null, size: number }} Version */

/**
 * A part of a file: at most `most` bytes from `from` on. The rest is not read. A file that ends before has no content there.
 * @param {string} url @param {{ from: number, most: number }} part @param {AbortSignal} signal
 */
export const readPart = (url, part, signal) => inTime((isOver) => readRange(url, part, isOver), signal);

/** @param {string} url @param {{ from: number, most: number }} part @param {AbortSignal} signal */
async function readRange(url, { from, most }, signal) {
  const headers = { ...key.header(), Range: `bytes=${from}-${from + most - 1}` };
  const response = await fetch(url, { headers, signal, cache: "no-store" });
  const size = Number(/\/(\d+)$/.exec(response.headers.get("Content-Range") ?? "")?.[1]);
  const version = { etag: response.headers.get("ETag"), modified: response.headers.get("Last-Modified"), size };
  if (response.status === 416 && !Number.isNaN(size)) return { content: new Uint8Array(0), version };
  if (response.status !== 206) throw await refusal(response);
  return { content: new Uint8Array(await response.arrayBuffer()), version };
}

/**
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<Answer<P, "post">>}
 */
export const post = (path, options = {}) => request("POST", path, options);

/**
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<Answer<P, "put">>}
 */
export const put = (path, options = {}) => request("PUT", path, options);

/**
 * Replaces what has a tag; the answer has the next one.
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<{ content: Answer<P, "put">, tag: string | null }>}
 */
export const putTagged = (path, options = {}) => send("PUT", path, options);

/**
 * @param {keyof paths} path @param {RequestOptions} [options]
 * @returns {Promise<void>}
 */
export const remove = (path, options = {}) => request("DELETE", path, options);

/**
 * @template {keyof paths} P
 * @param {P} path @param {RequestOptions} [options]
 * @returns {Promise<Answer<P, "patch">>}
 */
export const patch = (path, options = {}) => request("PATCH", path, options);
