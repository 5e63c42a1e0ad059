// A browser's `User-Agent` in short words. Pure.

import { T } from "../../texts.js";

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
