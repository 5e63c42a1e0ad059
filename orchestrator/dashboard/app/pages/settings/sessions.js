// The browsers that are logged in as the user, in short words; each session can be ended.

import { get, ignoreProblem, remove } from "../../api.js";
import { generation, logOut } from "../../session.js";
import { T } from "../../texts.js";
import { Empty, Icon, Problem, Text, Time, html, useDoing, useLoad } from "../../ui.js";
import { ConfirmButton } from "../../parts.js";

// --- a browser's `User-Agent` in short words. Pure

/** In this order: most browsers name others as well. @type {[RegExp, string][]} */
const BROWSERS = [[/\bEdgA?\//, "Edge"], [/\bOPR\//, "Opera"], [/\bFirefox\/|\bFxiOS\//, "Firefox"], [/\bSamsungBrowser\//, "Samsung Internet"], [/\bHeadlessChrome\//, "Chrome without a window"],
  [/\bChrome\/|\bCriOS\//, "Chrome"], [/\bSafari\//, "Safari"], [/^curl\//, "curl"]];
/** @type {[RegExp, string][]} */
const SYSTEMS = [[/\biPhone\b/, "iPhone"], [/\biPad\b/, "iPad"], [/\bAndroid\b/, "Android"], [/\bCrOS\b/, "ChromeOS"], [/\bWindows\b/, "Windows"], [/\bMac OS X\b|\bMacintosh\b/, "macOS"], [/\bLinux\b/, "Linux"]];
const MAX_CHARS = 60;

/** `Firefox on Linux`, or the beginning of what the browser says. @param {string | null | undefined} agent */
export function agentWords(agent) {
  if (!agent) return T.settings.sessions.unknown;
  const find = (/** @type {[RegExp, string][]} */ names) => names.find(([pattern]) => pattern.test(agent))?.[1];
  const [browser, system] = [find(BROWSERS), find(SYSTEMS)];
  if (browser && system) return T.settings.sessions.on(browser, system);
  return browser ?? (agent.length > MAX_CHARS ? `${agent.slice(0, MAX_CHARS)}…` : agent);
}

/** @typedef {import("../../api.js").schemas["SessionSummary"]} Session */

/** @param {{ session: Session, canWrite: boolean, again: () => void }} props */
function Row({ session: { id, agent, address, created_at: created, last_used_at: used, expires_at: ends, current }, canWrite, again }) {
  const { error, run } = useDoing();
  const name = agentWords(agent);
  const end = () => (current ? logOut() : run(() => remove("/api/sessions/{id}", { path: { id } }).catch(ignoreProblem(404)).then(again)));
  return html`
    <li class="item">
      <p class="line"><strong title=${agent}><${Text}>${name}<//></strong>
        ${current && html`<span class="state completed"><${Icon} name="completed" />${T.settings.sessions.current}</span>`}
        ${canWrite && html`<${ConfirmButton} name=${T.settings.sessions.end} title=${T.settings.sessions.endQuestion(current ? T.settings.sessions.current : name)}
          note=${current ? T.settings.sessions.endCurrent : T.settings.sessions.endNote} onYes=${end}><span class="hidden"> <${Text}>${name}<//></span><//>`}</p>
      <p class="note line"><span>${T.settings.sessions.used} <${Time} at=${used} /></span>${address && html`<span>${T.settings.sessions.from} <${Text}>${address}<//></span>`}
        <span>${T.settings.sessions.opened} <${Time} at=${created} /></span><span>${T.settings.sessions.ends} <${Time} at=${ends} /></span></p>
      <${Problem} error=${error} />
    </li>
  `;
}

/** @param {{ canWrite: boolean }} props */
export function Sessions({ canWrite }) {
  const { value, again, status } = useLoad((signal) => get("/api/sessions", { signal }), [generation.value]);
  // This browser first, which stays in its place.
  const sessions = [...(value?.items ?? [])].sort((one, other) => Number(other.current) - Number(one.current));
  return html`
    <p class="note">${T.settings.sessions.note}</p>
    ${status}
    ${value && sessions.length === 0 && html`<${Empty}><p>${T.settings.sessions.none}</p><//>`}
    ${sessions.length > 0 && html`<ul class="rows sessions">${sessions.map((session) => html`<${Row} key=${session.id} session=${session} canWrite=${canWrite} again=${again} />`)}</ul>`}
  `;
}
