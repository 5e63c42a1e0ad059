// The card of a gate: a call of a tool that waits for a person, with all that a decision needs. The same in the inbox, on its page, and in chats.
//
// Owns that nothing is approved by accident: a button that has just appeared or moved does nothing yet, and each approval names the digest of
// the parameters that are shown.

import { useEffect, useMemo, useRef, useState } from "preact/hooks";
import { get, isProblem, post } from "../../api.js";
import { relative, shortId } from "../../format.js";
import { bind } from "../../keys.js";
import { position } from "../../live.js";
import { who } from "../../session.js";
import { gates, putGate, readGate, threads, wantThread } from "../../store.js";
import { T } from "../../texts.js";
import { Confirm, Copy, Failed, Icon, Loading, Text, Time, announce, html, now, useDoing, useLoad } from "../../ui.js";

// --- what can be decided about a gate, and when. Pure

/** @typedef {import("../../store.js").Gate} Gate */
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

const HOLD_MS = 500;
const LOOK_MS = 100;
const DIGEST_CHARS = 8;
const ICONS = { pending: "waits", approved: "completed", denied: "cancelled", expired: "stuck" };

// --- buttons that have moved

/** Looks at all buttons that could be pressed, while the page is visible. @type {Set<() => void>} */
const looks = new Set();
/** @type {ReturnType<typeof setInterval> | undefined} */
let timer;

function run() {
  clearInterval(timer);
  if (looks.size > 0 && !document.hidden) timer = setInterval(() => looks.forEach((look) => look()), LOOK_MS);
}
document.addEventListener("visibilitychange", run);

/** Whether an element stays where it is. @param {{ current: HTMLElement | null }} element @param {boolean} isWanted */
function useSteady(element, isWanted) {
  const steady = useMemo(() => createSteady(HOLD_MS), []);
  const [isSteady, setIsSteady] = useState(false);
  const look = () => {
    const box = element.current?.getBoundingClientRect();
    if (!box) return false;
    // Under a dialog it is not seen: the second click of a double click may come when the dialog is closed.
    const isCovered = document.querySelector("dialog[open]") !== null;
    return steady.look([...[box.left, box.top, box.width, box.height].map(Math.round), isCovered].join(), performance.now());
  };
  useEffect(() => {
    if (!isWanted) return;
    const update = () => setIsSteady(look());
    looks.add(update);
    run();
    return () => {
      looks.delete(update);
      run();
    };
  }, [isWanted]);
  return { isSteady, look };
}

// --- parameters

/** The parameters of a gate; those that are too long for the store are read. @param {Gate} gate */
function useParameters({ id, isCut, parameters }) {
  const { value, error, again } = useLoad(async (signal) => (isCut ? get("/api/gates/{id}", { path: { id }, signal }) : null), [id, isCut]);
  return { parameters: isCut ? value?.parameters : parameters, isKnown: !isCut || value !== null, error, again };
}

/** @param {{ parameters: unknown }} props */
const Parameters = ({ parameters }) => html`
  <dl class="parameters">
    ${partsOf(parameters).map(({ name, text }) => html`
      <div key=${name}>${name && html`<dt><${Text}>${name}<//></dt>`}
        <dd><pre tabindex="0" role="group" aria-label=${name || T.gate.parameters}><${Text}>${text}<//></pre></dd></div>`)}
  </dl>
`;

// --- decisions

/**
 * Sends a decision about a gate; true if it was to be remembered and cannot be. After a refusal the gate is read, so that the page shows what
 * it is now.
 * @param {Gate} gate @param {Choice} choice @param {string} [reason]
 */
export async function resolveGate(gate, choice, reason) {
  const [path, seen] = [{ id: gate.id }, position()];
  try {
    const { remembered, ...after } = await post("/api/gates/{id}/resolve", { path, body: decisionOf(choice, gate, reason) });
    putGate(after, seen);
    announce(T.gate.states[after.state]);
    return (choice === "thread" || choice === "user") && !remembered;
  } catch (failure) {
    if (!isProblem(failure, 409) && !isProblem(failure, 404)) throw failure;
    const unread = await readGate(gate.id).then(() => null, (error) => error);
    throw isProblem(unread, 404) ? unread : failure;
  }
}

/** Sends decisions about a gate. @param {Gate} gate */
function useDecision(gate) {
  const [isForgotten, setIsForgotten] = useState(false);
  const { isBusy, error, run } = useDoing();
  const decide = (/** @type {Choice} */ choice, /** @type {string} */ reason) => run(async () => setIsForgotten(await resolveGate(gate, choice, reason)));
  return { isBusy, error, isForgotten, decide };
}

/** The buttons, each with what it does. @param {{ gate: Gate, isKnown: boolean, isBusy: boolean, decide: (choice: Choice, reason?: string) => void }} props */
function Choices({ gate, isKnown, isBusy, decide }) {
  const [isAsking, setIsAsking] = useState(false);
  const list = useRef(/** @type {HTMLUListElement | null} */ (null));
  const choices = choicesOf(gate, who.value, now.value);
  const canApprove = isKnown && choices.includes("once");
  const { isSteady, look } = useSteady(list, canApprove);
  if (choices.length === 0) return null;
  const isReady = (/** @type {Choice} */ choice) => !isBusy && (choice === "deny" || (canApprove && isSteady));
  /** @param {Choice} choice */
  function press(choice) {
    if (!isReady(choice)) return;
    if (choice === "deny") setIsAsking(true);
    // It may have moved since the last look.
    else if (look()) decide(choice);
  }
  // Buttons that wait keep the focus, which disabled ones would lose.
  return html`
    <ul class="choices" ref=${list}>
      ${choices.map((choice) => html`<li key=${choice}>
        <button type="button" data-choice=${choice} class=${choice === "deny" ? "danger" : ""} aria-disabled=${isReady(choice) ? undefined : "true"}
          aria-describedby=${`${choice}-${gate.id}`} onClick=${() => press(choice)}>${T.gate.choices[choice]}</button>
        <span class="note" id=${`${choice}-${gate.id}`}>${T.gate.effects[choice]}</span></li>`)}
    </ul>
    ${!choices.includes("once") && html`<p class="note">${T.gate.denyOnly}</p>`}
    ${isAsking && html`<${Confirm} title=${T.gate.denyQuestion} field=${T.gate.reason} isOptional yes=${T.gate.choices.deny} no=${T.job.keep}
      onYes=${(/** @type {string} */ reason) => (setIsAsking(false), decide("deny", reason))} onNo=${() => setIsAsking(false)} />`}
  `;
}

/** What became of it. @param {{ gate: Gate }} props */
export const Outcome = ({ gate }) => html`
  <p class="line"><span class="state"><${Icon} name=${ICONS[gate.state]} />${T.gate.states[gate.state]}</span>
    ${gate.resolved_at && html`<${Time} at=${gate.resolved_at} />`}
    ${gate.resolved_by && html`<span class="note">${T.gate.by} <${Text}>${gate.resolved_by}<//></span>`}
    ${gate.state === "denied" && !gate.resolved_by && html`<span class="note">${T.gate.stopped}</span>`}
    ${gate.decision === "always" && html`<span class="note">${T.gate.always}</span>`}</p>
  ${gate.reason && html`<p><span class="note">${T.job.reason}:</span> <${Text}>${gate.reason}<//></p>`}
`;

// --- the card

/** The name of the thread, where it is known. @param {{ gate: Gate }} props */
function ThreadLink({ gate: { thread_id: id, user_id: user } }) {
  const known = threads.get(id);
  useEffect(() => {
    // Those of others are not in the list of threads.
    if (!known && user === who.value?.user) wantThread(id);
  }, [id, known === undefined]);
  return html`<a href=${`/chat/${id}`}><${Text}>${known?.key || known?.title || shortId(id)}<//></a>`;
}

/** @param {{ gate: Gate }} props */
const Asked = ({ gate }) => html`
  <p class="note line"><span>${T.gate.askedBy} <${Text}>${gate.user_id}<//></span> <${Time} at=${gate.created_at} />
    <span>${T.gate.thread} <${ThreadLink} gate=${gate} /></span>
    ${gate.state === "pending" && html`<span>${Date.parse(gate.expires_at) > now.value ? T.gate.expires : T.gate.expired} <${Time} at=${gate.expires_at} /> (${relative(Date.parse(gate.expires_at), now.value)})</span>`}</p>
`;

/** @param {{ gate: Gate, level?: 2 | 3 }} props */
export function Card({ gate, level = 2 }) {
  const card = useRef(/** @type {HTMLElement | null} */ (null));
  const { parameters, isKnown, error: unread, again } = useParameters(gate);
  const { decide, isBusy, error, isForgotten } = useDecision(gate);
  const isGone = isProblem(error, 404);
  const isPending = gate.state === "pending";
  const wasPending = useRef(isPending);
  useEffect(() => {
    // The buttons that had the focus are gone.
    if (wasPending.current && !isPending && document.activeElement === document.body) card.current?.focus();
    wasPending.current = isPending;
  }, [isPending]);
  // The card says that it is gone until it is left. No event does.
  useEffect(() => (isGone ? () => gates.drop(gate.id) : undefined), [isGone]);
  return html`
    <article class=${gate.state === "pending" ? "gate" : "gate resolved"} tabindex="-1" ref=${card} aria-label=${`${T.gate.title}: ${gate.tool}`}>
      <${`h${level}`}><${Icon} name=${ICONS[gate.state]} /><a class="open" href=${`/inbox/gates/${gate.id}`}><${Text}>${gate.tool}<//></a><//>
      <${Asked} gate=${gate} />
      ${gate.reasoning && html`<blockquote><${Text}>${gate.reasoning}<//></blockquote>`}
      ${unread && html`<${Failed} error=${unread} again=${again} />`}
      ${isKnown ? html`<${Parameters} parameters=${parameters} />` : !unread && html`<${Loading} />`}
      <p class="note line"><span>${T.gate.digest} <code title=${gate.parameters_digest}>${gate.parameters_digest.slice(0, DIGEST_CHARS)}…</code></span>
        ${isKnown && html`<${Copy} text=${JSON.stringify(parameters, null, 2)} label="JSON" name=${T.gate.parameters} />`}</p>
      ${error && html`<p class="failure" role="alert"><${Text}>${isGone ? T.gate.gone : error.message}<//></p>`}
      ${isGone ? null : isPending ? html`<${Choices} gate=${gate} isKnown=${isKnown} isBusy=${isBusy} decide=${decide} />` : html`<${Outcome} gate=${gate} />`}
      ${isForgotten && html`<p class="note">${T.gate.forgotten}</p>`}
    </article>
  `;
}

/** Keys for the card that has the focus, or for the only one of a page. The button is pressed, so its rules hold. @param {boolean} isOnly */
export function bindGateKeys(isOnly) {
  /** @param {Choice} choice */
  const press = (choice) => {
    const card = document.activeElement?.closest(".gate") ?? (isOnly ? document.querySelector(".gate") : null);
    /** @type {HTMLElement | null | undefined} */ (card?.querySelector(`[data-choice=${choice}]`))?.click();
  };
  return bind([
    { key: "a", text: T.keys.approve, run: () => press("once") },
    { key: "d", text: T.keys.deny, run: () => press("deny") },
  ]);
}
