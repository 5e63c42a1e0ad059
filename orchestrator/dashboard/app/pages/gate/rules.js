// What can be decided about a gate, and when. Pure.

/** @typedef {import("../../api.js").schemas["Gate"]} Gate */
/** @typedef {"once" | "thread" | "user" | "deny"} Choice */

/** A time without a look in which the control may have moved and come back, such as that of a hidden tab. */
const UNSEEN_MS = 1_000;

/**
 * What a user can decide, in the order of the buttons.
 * @param {Pick<Gate, "state" | "user_id" | "expires_at" | "can_be_remembered">} gate
 * @param {{ user: string, role: string } | null} who @param {number} now
 * @returns {Choice[]}
 */
export function choicesOf(gate, who, now) {
  if (!who || who.role === "viewer" || gate.state !== "pending" || Date.parse(gate.expires_at) <= now) return [];
  // An admin, who sees the gates of others, can only deny them.
  if (gate.user_id !== who.user) return ["deny"];
  return gate.can_be_remembered ? ["once", "thread", "user", "deny"] : ["once", "deny"];
}

/** The body of the request. The digest holds that exactly what was shown is approved. @param {Choice} choice @param {Pick<Gate, "parameters_digest">} gate @param {string} [reason] */
export function decisionOf(choice, gate, reason = "") {
  if (choice === "deny") return { decision: "deny", ...(reason.trim() && { reason: reason.trim() }) };
  const decision = choice === "once" ? { decision: "approve" } : { decision: "always", scope: choice };
  return { ...decision, parameters_digest: gate.parameters_digest };
}

/** What a message decides that is nothing but a word, or null: the words of the server. @param {string} text @returns {Choice | null} */
export function choiceOf(text) {
  /** @type {Record<string, Choice>} */
  const words = { yes: "once", no: "deny", always: "thread" };
  const word = text.trim().toLowerCase();
  return Object.hasOwn(words, word) ? words[word] ?? null : null;
}

/** The arguments of a call, each as a text: strings as they are, other values as JSON. @param {unknown} parameters @returns {{ name: string, text: string }[]} */
export function partsOf(parameters) {
  const json = (/** @type {unknown} */ value) => JSON.stringify(value, null, 2) ?? "";
  const isNamed = typeof parameters === "object" && parameters !== null && !Array.isArray(parameters) && Object.keys(parameters).length > 0;
  if (!isNamed) return [{ name: "", text: json(parameters) }];
  return Object.entries(parameters).map(([name, value]) => ({ name, text: typeof value === "string" ? value : json(value) }));
}

/** Tells whether something has been at its place for `holdMs`: a control that just appeared, or moved, is not what was aimed at. @param {number} holdMs */
export function createSteady(holdMs) {
  let place = "";
  let [since, seenAt] = [0, -Infinity];
  return {
    /** @param {string} next its place @param {number} at in milliseconds */
    look(next, at) {
      if (next !== place || at - seenAt > UNSEEN_MS) since = at;
      [place, seenAt] = [next, at];
      return at - since >= holdMs;
    },
  };
}
