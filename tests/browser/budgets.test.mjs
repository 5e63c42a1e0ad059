// The budgets of the dashboard with much data, in a real browser against a running server with a seeded database (`seed.py`).
//
//     GANTRY_TEST_URL=… GANTRY_TEST_TOKEN=… GANTRY_TEST_LONG_JOB=… node --test budgets.test.mjs
//
// Numbers of nodes, bytes and rows are exact. Times are reported and may be three times the budget: other programs share the machine.

import assert from "node:assert/strict";
import { createRequire } from "node:module";
import { after, before, test } from "node:test";

const require = createRequire(`${process.env.BROWSER_NODE_DIRECTORY ?? import.meta.dirname}/package.json`);
const { chromium } = require("playwright-core");

const given = (name) => process.env[name] || assert.fail(`${name} is not set`);
const base = given("GANTRY_TEST_URL").replace(/\/$/, "");
const token = given("GANTRY_TEST_TOKEN");
const longJob = given("GANTRY_TEST_LONG_JOB");
const EVENTS = 10_000;
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--no-first-run", "--disable-background-networking", "--disable-sync",
  "--enable-precise-memory-info", "--js-flags=--expose-gc"];
/** A time may be so many times its budget. */
const SLACK = 3;

let browser;
before(async () => {
  browser = await chromium.launch({ executablePath: process.env.GANTRY_TEST_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});
after(() => browser?.close());

/** A context with a session. */
async function session() {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 } });
  context.setDefaultTimeout(60_000);
  // The longest task since the last look.
  await context.addInitScript(() => {
    window.longest = 0;
    new PerformanceObserver((list) => {
      for (const { duration } of list.getEntries()) window.longest = Math.max(window.longest, duration);
    }).observe({ type: "longtask", buffered: true });
  });
  const page = await context.newPage();
  await page.goto(`${base}/login`);
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
  await page.close();
  return context;
}

/** Reports a time, which must be within its budget with the slack. @param {import("node:test").TestContext} t */
function within(t, name, ms, budget) {
  t.diagnostic(`${name}: ${Math.round(ms)} ms, budget ${budget} ms`);
  assert.ok(ms <= budget * SLACK, `${name}: ${Math.round(ms)} ms`);
}

/** The heap after a collection, in MB. */
async function heap(page) {
  return page.evaluate(() => (window.gc?.(), performance.memory.usedJSHeapSize / 1e6));
}

const lastRow = (page) => page.getByRole("list", { name: "Activity" }).getByRole("button", { name: /completed/ }).waitFor();

async function timed(work) {
  const start = performance.now();
  await work();
  return performance.now() - start;
}

test("a job with 10,000 events shows the last ones at once and keeps few nodes", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${longJob}`);
    await lastRow(page);
  });
  within(t, "last rows", ms, 1_000);
  within(t, "longest task", await page.evaluate(() => window.longest), 100);
  const nodes = await page.evaluate(() => document.querySelectorAll("*").length);
  t.diagnostic(`${nodes} nodes, ${(await heap(page)).toFixed(1)} MB`);
  assert.ok(nodes <= 1_500, `${nodes} nodes`);
  assert.ok((await heap(page)) <= 40);

  // Earlier events are read on the way up, a page at a time, and nothing is missing or double.
  const list = page.getByRole("list", { name: "Activity" });
  let reads = 0;
  page.on("request", (request) => (reads += Number(request.url().includes("/events?"))));
  for (let step = 0; step < 5; step += 1) {
    await list.evaluate((element) => (element.scrollTop = 0));
    await page.waitForTimeout(300);
  }
  assert.ok(reads >= 3 && reads <= 12, `${reads} reads`);
  assert.ok((await page.evaluate(() => document.querySelectorAll("*").length)) <= 1_500);
  await context.close();
});

test("the same on a slow processor", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const cdp = await context.newCDPSession(page);
  await cdp.send("Emulation.setCPUThrottlingRate", { rate: 4 });
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${longJob}`);
    await lastRow(page);
  });
  within(t, "last rows, a processor four times as slow", ms, 3_000);
  await context.close();
});

test("failures among 10,000 events are found by the server", async (t) => {
  const context = await session();
  const page = await context.newPage();
  await page.goto(`${base}/jobs/${longJob}?show=failed`);
  const failed = Math.floor((EVENTS - 1 - 3) / 200) + 1;
  const ms = await timed(() => page.getByText(`All ${failed} of these.`).waitFor());
  t.diagnostic(`${failed} failures in ${Math.round(ms)} ms`);
  await context.close();
});

test("a list of 1,000 jobs scrolls and filters without long tasks", async (t) => {
  const context = await session();
  const page = await context.newPage();
  await page.goto(`${base}/jobs`);
  await page.getByRole("link", { name: /Seeded job|A long history/ }).first().waitFor();
  const [more, rows] = [page.getByRole("button", { name: "Show more" }), page.locator(".rows > li")];
  while ((await rows.count()) < 1_000) {
    const count = await rows.count();
    await more.click();
    await rows.nth(count).waitFor();
  }
  await page.evaluate(() => (window.longest = 0));
  for (let step = 0; step < 20; step += 1) await page.mouse.wheel(0, 2_000);
  within(t, "longest task while scrolling", await page.evaluate(() => window.longest), 50);
  const ms = await timed(async () => {
    await page.getByLabel("Text").fill("Seeded job 777");
    await page.keyboard.press("Enter");
    await page.waitForURL(/q=Seeded/);
    await page.getByRole("link", { name: "Seeded job 777", exact: true }).waitFor();
  });
  // With the search.
  within(t, "a filter", ms, 1_000);
  await context.close();
});

test("eight tabs leave the server's answers quick", async (t) => {
  const context = await session();
  const pages = await Promise.all(Array.from({ length: 8 }, () => context.newPage()));
  await Promise.all(pages.map((page) => page.goto(`${base}/jobs/${longJob}`)));
  await Promise.all(pages.map(lastRow));
  const ms = await pages[7].evaluate(async () => {
    const start = performance.now();
    await fetch("/api/jobs/summary");
    return performance.now() - start;
  });
  within(t, "a request beside eight tabs", ms, 1_000);
  await context.close();
});

test("a hidden tab has no timer under 30 s and closes the stream of its job", async (t) => {
  const context = await session();
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.timers = [];
    const set = window.setInterval;
    window.setInterval = (run, ms, ...rest) => (window.timers.push(ms), set(run, ms, ...rest));
  });
  await page.goto(`${base}/jobs/${longJob}`);
  await lastRow(page);
  await page.evaluate(() => {
    window.timers = [];
    Object.defineProperty(document, "hidden", { value: true, configurable: true });
    document.dispatchEvent(new Event("visibilitychange"));
  });
  await page.waitForTimeout(3_000);
  const timers = await page.evaluate(() => window.timers);
  t.diagnostic(`timers of the hidden tab: ${JSON.stringify(timers)}`);
  assert.deepEqual(timers.filter((ms) => ms < 30_000), []);
  await context.close();
});
