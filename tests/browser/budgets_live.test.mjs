// The budgets of the dashboard while events arrive: a source of events (`stand_in.mjs`) before a running server with a seeded database.
//
//     GANTRY_TEST_URL=… GANTRY_TEST_TOKEN=… GANTRY_TEST_LONG_JOB=… [GANTRY_TEST_SOAK_SECONDS=300] node --test budgets_live.test.mjs
//
// Numbers of streams, nodes and events are exact. Times are reported and may be three times the budget: other programs share the machine.

import assert from "node:assert/strict";
import { after, before, test } from "node:test";
import { base, given, heap, nodes, read, session, timed, within } from "./budgets.mjs";
import { startStandIn } from "./stand_in.mjs";

const longJob = given("GANTRY_TEST_LONG_JOB");
const SOAK_SECONDS = Number(process.env.GANTRY_TEST_SOAK_SECONDS || 20);
const SOAK_RATE = 1_000;
/** The rows that a trace keeps. */
const MAX_ROWS = 5_000;

/** @type {Awaited<ReturnType<typeof startStandIn>>} */
let source;
before(async () => {
  const { items } = await read("/api/jobs?limit=200&state=completed");
  const [{ last_seq: last }, { user }] = [await read(`/api/jobs/${longJob}/events?limit=1`), await read("/api/whoami")];
  source = await startStandIn(base, { job: longJob, last, others: items.map(({ id }) => id).filter((id) => id !== longJob), user });
});
after(() => source?.stop());

/** Runs a test with events at a rate. */
async function at(rate, work) {
  source.setRate(rate);
  try {
    await work();
  } finally {
    source.setRate(0);
  }
}

/** The page of the job that is followed. */
async function follow(context) {
  const page = await context.newPage();
  await page.goto(`${source.url}/jobs/${longJob}`);
  await page.locator(".state.in_progress").first().waitFor();
  await until("the streams are open", () => source.open().details >= 1 && source.open().instances >= 1);
  return page;
}

async function until(name, isSo, ms = 20_000) {
  for (const end = Date.now() + ms; !isSo(); await new Promise((resolve) => setTimeout(resolve, 50))) {
    assert.ok(Date.now() < end, name);
  }
}

/** Notes how long each row that is drawn took, from the time in its text, when the next frame is shown. */
const noteDelays = (page, pattern) => page.evaluate((source) => {
  const [seen, expression] = [new Set(), new RegExp(source)];
  window.delays = [];
  const look = () => requestAnimationFrame(() => {
    for (const row of document.querySelectorAll(".event[data-seq]")) {
      const sent = expression.exec(row.textContent)?.[1];
      if (!sent || seen.has(row.dataset.seq)) continue;
      seen.add(row.dataset.seq);
      window.delays.push(Date.now() - Number(sent));
    }
  });
  new MutationObserver(look).observe(document.querySelector("main"), { subtree: true, childList: true, characterData: true });
}, pattern.source);

const p95 = (numbers) => numbers.toSorted((a, b) => a - b)[Math.floor(numbers.length * 0.95)];

test("at 200 events a second an event is visible at once", async (t) => {
  const context = await session(source.url);
  const page = await follow(context);
  await noteDelays(page, /sent=(\d+)/);
  await at(200, () => page.waitForTimeout(5_000));
  const delays = await page.evaluate(() => window.delays);
  assert.ok(delays.length >= 200, `${delays.length} rows were seen`);
  within(t, "sent to visible, 95 %", p95(delays), 150);
  await context.close();
});

test("an event that the server stores is visible at once", async (t) => {
  const context = await session();
  const page = await context.newPage();
  await page.goto(`${base}/jobs/new`);
  await page.getByLabel("What should the agent do?").fill("count slowly");
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  const id = page.url().split("/").at(-1);
  await page.getByRole("list", { name: "Activity" }).getByText("sh count.sh").first().waitFor();
  const seen = await page.evaluate(() => new Promise((resolve) => {
    const found = {};
    const look = () => requestAnimationFrame(() => {
      for (const row of document.querySelectorAll(".event[data-seq]")) found[row.dataset.seq] ??= Date.now();
      if (Object.keys(found).length >= first + 12) resolve(found);
    });
    const first = document.querySelectorAll(".event[data-seq]").length;
    for (const row of document.querySelectorAll(".event[data-seq]")) found[row.dataset.seq] = 0;
    new MutationObserver(look).observe(document.querySelector("main"), { subtree: true, childList: true });
  }));
  const { items } = await read(`/api/jobs/${id}/events?limit=200`);
  const delays = items.flatMap(({ seq, at: stored }) => (seen[seq] ? [seen[seq] - Date.parse(stored)] : []));
  assert.ok(delays.length >= 10, `${delays.length} events were seen`);
  within(t, "stored to visible, 95 %", p95(delays), 150);
  await page.getByRole("button", { name: "Cancel" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel" }).click();
  await page.locator(".state.cancelled").first().waitFor({ timeout: 60_000 });
  await context.close();
});

test("eight tabs have one stream of the installation, and a request is answered beside them", async (t) => {
  const context = await session(source.url);
  const pages = await Promise.all(Array.from({ length: 8 }, () => context.newPage()));
  await Promise.all(pages.map((page) => page.goto(`${source.url}/jobs`)));
  await Promise.all(pages.map((page) => page.getByText("live", { exact: true }).waitFor()));
  // The end of an earlier test's stream may be noticed late.
  await until("one stream is open", () => source.open().instances === 1);
  await at(200, async () => {
    const ms = await pages[7].evaluate(async () => {
      const start = performance.now();
      await fetch("/api/jobs/summary");
      return performance.now() - start;
    });
    within(t, "a request beside eight tabs", ms, 1_000);
  });
  // Another tab takes over.
  await pages[0].close();
  await until("another tab leads", () => source.open().instances === 1);
  await pages[1].getByText("live", { exact: true }).waitFor();
  await context.close();
});

const hide = (page, isHidden) => page.evaluate((hidden) => {
  Object.defineProperty(document, "hidden", { value: hidden, configurable: true });
  document.dispatchEvent(new Event("visibilitychange"));
}, isHidden);

test("a hidden tab has no timer under 30 s, closes the stream of its job, and goes on where it was", async (t) => {
  const context = await session(source.url);
  const page = await context.newPage();
  await page.addInitScript(() => {
    window.timers = [];
    for (const name of ["setInterval", "setTimeout"]) {
      const set = window[name];
      window[name] = (run, ms, ...rest) => (window.timers.push(ms ?? 0), set(run, ms, ...rest));
    }
  });
  await page.goto(`${source.url}/jobs/${longJob}`);
  await until("the job is followed", () => source.open().details === 1);
  await page.waitForTimeout(3_000);
  await hide(page, true);
  await page.evaluate(() => (window.timers = []));
  await until("the stream of the job is closed", () => source.open().details === 0, 40_000);
  const timers = await page.evaluate(() => window.timers);
  t.diagnostic(`timers of the hidden tab: ${JSON.stringify(timers)}`);
  assert.deepEqual(timers.filter((ms) => ms < 30_000), []);
  assert.equal(source.open().instances, 1, "what waits for a person is still heard of");

  await at(100, () => page.waitForTimeout(1_000));
  await hide(page, false);
  await until("the job is followed again", () => source.open().details === 1);
  await at(100, () => page.waitForTimeout(1_000));
  await page.locator(`.event[data-seq="${source.lastSeq()}"]`).waitFor();
  assert.equal(await page.getByText(/with gaps/).count(), 0);
  await context.close();
});

test(`${SOAK_SECONDS * SOAK_RATE} events in ${SOAK_SECONDS} s leave the heap flat`, { timeout: (SOAK_SECONDS + 120) * 1_000 }, async (t) => {
  const context = await session(source.url);
  const page = await follow(context);
  // The least of some looks: the page goes on working.
  const least = async () => {
    const looks = [];
    for (let look = 0; look < 5; look += 1) {
      looks.push(await heap(page));
      await page.waitForTimeout(200);
    }
    return Math.min(...looks);
  };
  const [before, first] = [source.sent(), source.lastSeq()];
  await at(SOAK_RATE, async () => {
    const end = Date.now() + SOAK_SECONDS * 1_000;
    // Until all that is kept is there: 5,000 rows, which were replaced by as many others once.
    await until("the page is full", () => source.lastSeq() - first > 2.1 * MAX_ROWS, 60_000);
    const warm = await least();
    let highest = 0;
    do {
      await page.waitForTimeout(SOAK_SECONDS * 100);
      highest = Math.max(highest, await least());
    } while (Date.now() < end);
    t.diagnostic(`${source.sent() - before} events, heap after warm-up ${warm.toFixed(1)} MB, highest ${highest.toFixed(1)} MB, ${await nodes(page)} nodes`);
    assert.ok(highest <= warm * 1.1, `the heap has grown from ${warm.toFixed(1)} to ${highest.toFixed(1)} MB`);
    assert.ok(highest <= 80, `${highest.toFixed(1)} MB`);
    assert.ok((await nodes(page)) <= 1_500);
  });
  // Nothing is behind: the last event is shown soon.
  const ms = await timed(() => page.locator(`.event[data-seq="${source.lastSeq()}"]`).waitFor());
  within(t, "the last event after the end", ms, 1_000);
  await context.close();
});
