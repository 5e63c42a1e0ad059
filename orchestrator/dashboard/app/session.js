// The session of this browser: who it belongs to, its beginning and its end, in all tabs.
//
// Owns the difference between the server's clock and this one. Never keeps a token: it is exchanged for a cookie that no code can read.

import { effect, signal } from "@preact/signals";
import { ApiError, get, isRefused, key, post, remove } from "./api.js";

/** @typedef {import("./api.js").schemas["WhoAmI"]} WhoAmI */
/** @typedef {{ code: string } | { token: string }} Credential */

/** The cookie is renewed by a request after half of its 12 hours. */
const RENEW_MS = 3_600_000;
/** Whose drafts the tab has. */
const OWNER = "gantry.user";

/** `none`: there is no session. `ended`: the session ended while its page was open, which stays. `unreachable`: not known, no answer.
 * @type {import("@preact/signals").Signal<"starting" | "open" | "none" | "ended" | "unreachable">} */
export const status = signal("starting");

/** Why it is not known whether there is a session. @type {import("@preact/signals").Signal<Error | null>} */
export const failure = signal(null);

/** @type {import("@preact/signals").Signal<WhoAmI | null>} */
export const who = signal(null);

/** Whether the server has another version than this page. */
export const isOutdated = signal(false);

/** Whether the last logout has not reached the server. */
export const isLeftOpen = signal(false);

/** Whether the last logout was in another tab. */
export const isEndedElsewhere = signal(false);

/** Grows with each session, so that what depends on it is read again. */
export const generation = signal(0);

let clockOffset = 0;
let checkedAt = 0;

/** The server's time, in milliseconds. */
export const serverNow = () => Date.now() + clockOffset;

const channel = new BroadcastChannel("gantry-session");

/** @param {WhoAmI} answer @param {number} askedAt */
function accept(answer, askedAt) {
  const at = Date.now();
  clockOffset = Date.parse(answer.now) - (askedAt + at) / 2;
  checkedAt = at;
  isOutdated.value ||= who.value !== null && who.value.version !== answer.version;
  who.value = answer;
  keepDraftsOf(answer.user);
}

function open() {
  isRefused.value = false;
  isLeftOpen.value = false;
  isEndedElsewhere.value = false;
  generation.value += 1;
  status.value = "open";
}

/** Drafts, which are in the storage of the tab, belong to who wrote them. @param {string} user */
function keepDraftsOf(user) {
  if (sessionStorage.getItem(OWNER) !== user) sessionStorage.clear();
  sessionStorage.setItem(OWNER, user);
}

/** What was written and not sent yet. */
export const drafts = {
  /** @param {string} name @returns {any} */
  get(name) {
    try {
      return JSON.parse(sessionStorage.getItem(`gantry.draft.${name}`) ?? "null");
    } catch {
      return null;
    }
  },
  /** @param {string} name @param {unknown} value */
  set(name, value) {
    try {
      sessionStorage.setItem(`gantry.draft.${name}`, JSON.stringify(value));
    } catch {
      // The storage is full; the text is still in its field.
    }
  },
  /** @param {string} name */
  remove: (name) => sessionStorage.removeItem(`gantry.draft.${name}`),
};

function forget() {
  key.clear();
  who.value = null;
  status.value = "none";
}

/** Asks the server whose session this browser has, and until when. */
export async function check() {
  const askedAt = Date.now();
  checkedAt = askedAt;
  accept(await get("/api/session"), askedAt);
}

/** Finds out whether there is a session. */
export async function start() {
  if (!key.get()) return (status.value = "none");
  try {
    await check();
    open();
  } catch (error) {
    if (error instanceof ApiError && (error.status === 401 || error.status === 403)) return forget();
    failure.value = /** @type {Error} */ (error);
    status.value = "unreachable";
  }
}

/** Opens a session. Another user's page is not shown to this one. @param {Credential} credential */
export async function logIn(credential) {
  const askedAt = Date.now();
  const answer = await post("/api/session", { body: credential });
  const before = who.value;
  key.set(answer.key ?? "");
  accept(answer, askedAt);
  channel.postMessage({ type: "login", user: answer.user, role: answer.role });
  if (before && (before.user !== answer.user || before.role !== answer.role)) location.reload();
  else open();
}

/** Ends the session of this browser, in all its tabs. */
export async function logOut() {
  let isEnded = true;
  try {
    await remove("/api/session");
  } catch (error) {
    // A key without its cookie opens nothing either.
    isEnded = error instanceof ApiError && (error.status === 401 || error.code === "cross_origin");
  }
  channel.postMessage({ type: "logout" });
  sessionStorage.clear();
  forget();
  isLeftOpen.value = !isEnded;
}

/** A login or a logout in another tab.
 * @param {MessageEvent<{ type: "login", user: string, role: string } | { type: "logout" }>} event */
channel.onmessage = ({ data }) => {
  if (data.type === "logout") return (sessionStorage.clear(), forget(), void (isEndedElsewhere.value = true));
  const before = who.value;
  if (!before || before.user !== data.user || before.role !== data.role) return location.reload();
  check().catch(() => {});
  open();
};

// The page of an open session stays; without one there is nothing to keep.
effect(() => {
  if (isRefused.value && status.peek() === "open") status.value = "ended";
});

function renew() {
  if (document.hidden || status.value !== "open" || Date.now() - checkedAt < RENEW_MS) return;
  check().catch(() => {});
}
setInterval(renew, RENEW_MS);
document.addEventListener("visibilitychange", renew);
