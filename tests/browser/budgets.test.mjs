// The budgets of the dashboard with much data, in a real browser against a running server with a seeded database (`seed.py`).
//
//     GANTRY_TEST_URL=… GANTRY_TEST_TOKEN=… GANTRY_TEST_LONG_JOB=… GANTRY_TEST_LARGE_JOB=… GANTRY_TEST_FILES_JOB=… node --test budgets.test.mjs
//
// Numbers of nodes, bytes and rows are exact. Times are reported and may be three times the budget: other programs share the machine.

import assert from "node:assert/strict";
import { test } from "node:test";
import { base, given, heap, nodes, session, timed, within } from "./budgets.mjs";

const longJob = given("GANTRY_TEST_LONG_JOB");
const EVENTS = 10_000;

const lastRow = (page) => page.getByRole("list", { name: "Activity" }).getByRole("button", { name: /completed/ }).waitFor();

test("the page is usable at once, soon over a network, and sooner at the next visit", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const cdp = await context.newCDPSession(page);
  await cdp.send("Network.enable");
  const visit = async (name, budget) => within(t, name, await timed(async () => {
    await page.goto(base);
    await page.getByRole("heading", { level: 1, name: "Now" }).waitFor();
  }), budget);
  await cdp.send("Network.clearBrowserCache");
  await visit("first visit", 500);
  await visit("next visit", 300);
  await cdp.send("Network.clearBrowserCache");
  await cdp.send("Network.emulateNetworkConditions", { offline: false, latency: 50, downloadThroughput: -1, uploadThroughput: -1 });
  await visit("first visit with 50 ms of round trip", 800);
  await context.close();
});

test("a job with 10,000 events shows the last ones at once and keeps few nodes", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${longJob}`);
    await lastRow(page);
  });
  within(t, "last rows", ms, 1_000);
  within(t, "longest task", await page.evaluate(() => window.longest), 100);
  const count = await nodes(page);
  t.diagnostic(`${count} nodes, ${(await heap(page)).toFixed(1)} MB`);
  assert.ok(count <= 1_500, `${count} nodes`);
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
  assert.ok((await nodes(page)) <= 1_500);
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

test("a list of 1,000 jobs scrolls and filters without long tasks, and draws only the rows near the view", async (t) => {
  const context = await session();
  const page = await context.newPage();
  await page.goto(`${base}/jobs`);
  const list = page.getByRole("list", { name: "Jobs" });
  const row = (number) => list.locator(`[aria-posinset="${number}"]`);
  const longest = async (name) => {
    // A long task is reported after it has ended.
    await page.evaluate(() => new Promise((resolve) => setTimeout(resolve, 200)));
    within(t, `longest task while ${name}`, await page.evaluate(() => window.longest), 50);
    await page.evaluate(() => (window.longest = 0));
  };
  const bounded = async (where) => {
    const [count, rows] = [await nodes(page), await list.getByRole("listitem").count()];
    t.diagnostic(`${where}: ${rows} rows, ${count} nodes`);
    assert.ok(rows <= 60 && count <= 1_500, `${where}: ${rows} rows, ${count} nodes`);
  };
  await list.locator('[aria-setsize="100"]').first().waitFor();
  for (let size = 200; size <= 1_000; size += 100) {
    await page.getByRole("button", { name: "Show more" }).click();
    await list.locator(`[aria-setsize="${size}"]`).first().waitFor();
  }
  await bounded("1,000 rows");
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight));
  await row(1_000).waitFor();
  await bounded("at the end");
  await page.evaluate(() => scrollTo(0, 0));
  await row(1).waitFor();
  for (let step = 0; step < 3; step += 1) await page.keyboard.press("j");
  await row(3).locator("a.open:focus").waitFor();
  await page.evaluate(() => (window.longest = 0));
  // As fast as a hand scrolls: most of a window in each frame.
  for (let step = 0; step < 60; step += 1) {
    await page.mouse.wheel(0, 600);
    await page.evaluate(() => new Promise(requestAnimationFrame));
  }
  await page.waitForFunction(() => scrollY > 30_000);
  await longest("scrolling");
  await bounded("in the middle");
  // The row with the focus stays, and the next one is beside it.
  await row(3).locator("a.open:focus").waitFor();
  await page.keyboard.press("j");
  await row(4).locator("a.open:focus").waitFor();
  await page.waitForFunction(() => scrollY < 2_000);
  await page.getByLabel("Text").fill("Seeded job 777");
  const ms = await timed(async () => {
    await page.keyboard.press("Enter");
    await page.getByRole("link", { name: "Seeded job 777", exact: true }).waitFor();
  });
  // 150 ms of the page, and as much for the search.
  within(t, "a filter", ms, 300);
  await longest("filtering");
  await context.close();
});

test("a job with 256 MB of events is opened by reading its last ones, cut", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const bodies = [];
  page.on("response", (response) => response.url().includes("max_text=") && bodies.push(response.body()));
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${given("GANTRY_TEST_LARGE_JOB")}`);
    await lastRow(page);
  });
  within(t, "last rows of 256 MB", ms, 1_000);
  const read = (await Promise.all(bodies)).reduce((sum, body) => sum + body.length, 0);
  t.diagnostic(`${read} bytes of events, ${(await heap(page)).toFixed(1)} MB`);
  assert.ok(read > 0 && read <= 1_000_000, `${read} bytes`);
  assert.ok((await heap(page)) <= 40);
  await context.close();
});

const WINDOW = 2 * 1024 * 1024;
const filesJob = given("GANTRY_TEST_FILES_JOB");

test("of a file of 64 MiB only windows are read", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const windows = [];
  page.on("response", (response) => {
    if (/\/api\/.*\/files\/large.txt$/.test(response.url())) windows.push([response.status(), Number(response.headers()["content-length"])]);
  });
  const line = (number) => page.getByRole("group", { name: "large.txt" }).getByText(`line ${number} `).first().waitFor();
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${filesJob}/files/large.txt`);
    await line(1);
  });
  within(t, "the first lines of 64 MiB", ms, 1_000);
  assert.deepEqual(windows, [[206, WINDOW]]);
  await page.getByText(/^Lines 1 to \d+, of 2\.1 MB of 67 MB\.$/).waitFor();
  await page.getByRole("button", { name: "Load 2.1 MB more" }).click();
  await page.getByText(/of 4\.2 MB of 67 MB/).waitFor();
  // The address of a line in the tenth window: those before are read one after the other, and not all are kept.
  await page.goto("about:blank");
  windows.length = 0;
  await page.goto(`${base}/jobs/${filesJob}/files/large.txt#L300000`);
  await line(300_000);
  t.diagnostic(`${windows.length} windows up to line 300,000, ${(await heap(page)).toFixed(1)} MB, ${await nodes(page)} nodes`);
  assert.ok(windows.length > 1 && windows.length <= 12 && windows.every(([status, size]) => status === 206 && size <= WINDOW), JSON.stringify(windows));
  assert.ok((await nodes(page)) <= 1_500);
  assert.ok((await heap(page)) <= 80);
  await page.getByRole("button", { name: "Go to the beginning" }).click();
  await page.getByText(/^Lines 1 to/).waitFor();
  await context.close();
});

test("1,000 changed files are drawn near the view only, and the page tells what is left out", async (t) => {
  const context = await session();
  const page = await context.newPage();
  const ms = await timed(async () => {
    await page.goto(`${base}/jobs/${filesJob}/changes`);
    await page.getByText("1000 of 1006 changed files are shown.").waitFor();
    await page.locator(".change").first().waitFor();
  });
  within(t, "1,000 changed files", ms, 2_000);
  const bounded = async (where) => {
    const count = await nodes(page);
    t.diagnostic(`${where}: ${count} nodes`);
    // A place for each file, and what is drawn.
    assert.ok(count <= 1_000 + 1_500, `${where}: ${count} nodes`);
  };
  await bounded("opened");
  await page.locator("h1").focus();
  for (let step = 0; step < 30; step += 1) await page.keyboard.press("j");
  await page.locator(".place.current summary:focus").waitFor();
  await page.evaluate(() => scrollTo(0, document.body.scrollHeight / 2));
  await page.waitForTimeout(500);
  await bounded("in the middle");
  const last = page.getByRole("navigation", { name: "Tree" }).getByRole("list");
  await last.evaluate((element) => (element.scrollTop = element.scrollHeight));
  await page.getByRole("link", { name: "f0999.txt", exact: true }).click();
  await page.locator(".place.current").getByText("f0999.txt").waitFor();
  await bounded("at the end");
  assert.ok((await heap(page)) <= 40);
  // Those that have no room are in their directory.
  await page.goto(`${base}/jobs/${filesJob}/changes/z`);
  await page.getByText("5 files").waitFor();
  await context.close();
});
