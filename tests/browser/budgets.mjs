// What the tests of budgets share: a browser that shows its heap, logins, and times with their slack.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, afterEach, before } from "node:test";

const require = createRequire(`${process.env.BROWSER_NODE_DIRECTORY ?? import.meta.dirname}/package.json`);
const { chromium } = require("playwright-core");

export const given = (name) => process.env[name] || assert.fail(`${name} is not set`);
export const base = given("GANTRY_TEST_URL").replace(/\/$/, "");
export const token = given("GANTRY_TEST_TOKEN");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
  "--enable-precise-memory-info", "--js-flags=--expose-gc"];
/** A time may be so many times its budget. */
const SLACK = 3;

let browser;
let contexts = [];
before(async () => {
  browser = await chromium.launch({ executablePath: process.env.GANTRY_TEST_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});
after(() => browser?.close());
afterEach(async () => {
  // What a failed test has left would slow the next one down.
  await Promise.all(contexts.map((context) => context.close()));
  contexts = [];
});

/** A context with a session at a server. */
export async function session(at = base) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  contexts.push(context);
  context.setDefaultTimeout(60_000);
  // The longest task since the last look.
  await context.addInitScript(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
    }).observe({ type: "longtask", buffered: true });
  });
  const page = await context.newPage();
  await page.goto(`${at}/login`);
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
  await page.close();
  return context;
}

/** Reports a time, which must be within its budget with the slack. @param {import("node:test").TestContext} t */
export function within(t, name, ms, budget) {
  t.diagnostic(`${name}: ${Math.round(ms)} ms, budget ${budget} ms`);
  assert.ok(ms <= budget * SLACK, `${name}: ${Math.round(ms)} ms`);
}

/** The heap after a collection, in MB. */
export async function heap(page) {
  return page.evaluate(() => (window.gc?.(), performance.memory.usedJSHeapSize / 1e6));
}

export async function timed(work) {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

/** How many elements a page has. */
export const nodes = (page) => page.evaluate(() => document.querySelectorAll("*").length);

/** What the API answers to the user of the token. */
export async function read(path) {
  const response = await fetch(base + path, { headers: { Authorization: `Bearer ${token}`, Accept: "application/json" } });
  assert.ok(response.ok, `${path}: ${response.status}`);
  return response.json();
}
