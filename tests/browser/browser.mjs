// What the stories in a browser share: browsers that report each fault, logins, and the checks of a page.
//
// Owns the rules that hold in every story: no page breaks its policy, has an error in its console, or asks another server for anything.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, afterEach, before, test } from "node:test";

// The packages may be installed elsewhere.
const require = createRequire(`${process.env.BROWSER_NODE_DIRECTORY ?? import.meta.dirname}/package.json`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

export const given = (name) => process.env[name] || assert.fail(`${name} is not set`);
export const base = given("GANTRY_TEST_URL").replace(/\/$/, "");
export const codes = given("GANTRY_TEST_CODES").split(",");
export const token = given("GANTRY_TEST_TOKEN");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

let browser;
let contexts = [];
/** What no page may do, in words. */
let faults = [];

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.GANTRY_TEST_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});
after(() => browser?.close());
afterEach(async () => {
  await Promise.all(contexts.map((context) => context.close()));
  contexts = [];
  const seen = faults;
  faults = [];
  assert.deepEqual(seen, []);
});

/** Another browser, without a session. */
export async function newBrowser(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(10_000);
  contexts.push(context);
  await context.exposeBinding("reportFault", (_, text) => void faults.push(text));
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sample }) =>
      window.reportFault(`policy: ${violatedDirective} ${blockedURI} ${sample}`));
  });
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "blob:" && url.protocol !== "data:" && url.origin !== base) faults.push(`request to ${url}`);
  });
  context.on("weberror", (error) => faults.push(`error: ${error.error()}`));
  context.on("dialog", (dialog) => (faults.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  context.on("console", (message) => {
    // The browser itself reports refused requests, such as that of a used link.
    const isRefusal = message.text().startsWith("Failed to load resource");
    if (message.type() === "error" && !isRefusal) faults.push(`console: ${message.text()}`);
  });
  return context;
}

export const heading = (page, name) => page.getByRole("heading", { level: 1, name }).waitFor();

/** A page of a new session, at a path; of another user by `as`, that user's token. */
export async function logInByToken(context, path = "/", as = token) {
  const page = await context.newPage();
  await page.goto(base + path);
  await page.getByLabel("Or paste a token").fill(as);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
  return page;
}

/** Sends a request with the session of a page; the answer must be a success. */
export async function api(page, method, path, body) {
  const [status, answer] = await page.evaluate(async ([method, path, body]) => {
    const headers = { "Content-Type": "application/json", "X-Gantry-Key": localStorage.getItem("gantry.key") };
    const answer = await fetch(path, { method, headers, ...(body && { body: JSON.stringify(body) }) });
    return [answer.status, await answer.json().catch(() => null)];
  }, [method, path, body]);
  assert.ok(status < 300, `${method} ${path}: ${status} ${JSON.stringify(answer)}`);
  return answer;
}

/** The text of what has the focus. The page moves the focus after it has painted, so this looks two frames later. */
export const focused = (page) => page.evaluate(() => new Promise((resolve) => {
  const later = (act) => requestAnimationFrame(() => setTimeout(act));
  later(() => later(() => resolve(document.activeElement.textContent.trim())));
}));

/** Starts a job by the form and returns its id. */
export async function startJob(page, prompt) {
  await page.goto(`${base}/jobs/new`);
  await page.getByLabel("What should the agent do?").fill(prompt);
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  return page.url().split("/").at(-1);
}

/** An assertion about what a page shows after something was done, which it draws a moment later. @param {() => Promise<void>} check */
export async function soon(check, deadline = Date.now() + 5_000) {
  try {
    await check();
  } catch (error) {
    if (!(error instanceof assert.AssertionError) || Date.now() > deadline) throw error;
    await new Promise((resolve) => setTimeout(resolve, 50));
    await soon(check, deadline);
  }
}

export const state = (page, word) => page.locator(".state").filter({ hasText: word }).first().waitFor({ timeout: 60_000 });

/** Text that would be markup, change its direction, move a cursor, or break the layout. */
export const EVERY_TRICK = `<img src=x onerror=alert(1)><svg onload=alert(2)><a href="javascript:alert(3)">x</a> [x](javascript:alert(4)) \u202Egnp.exe\u202C \u001b[31mred\u001b[2J \u0000 ${"W".repeat(5_000)}`;

/** No rule of WCAG 2.2 AA is broken, and nothing is wider than the window. */
export async function check(page, where) {
  await page.evaluate(AXE);
  const violations = await page.evaluate(async (rules) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: "tag", values: rules } });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  }, RULES);
  assert.deepEqual(violations, [], where);
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(excess <= 0, `${where} scrolls to the side by ${excess} px`);
}
