// The first page with something in each of its parts, and the jobs of the last day as bars.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVERY_TRICK, api, base, check, given, heading, logInByToken, newBrowser, soon, startJob, state } from "../browser.mjs";

const part = (page, name) => page.getByRole("region", { name });
/** Text of a title: it has no control characters. */
const TRICK = EVERY_TRICK.replaceAll("\u0000", "").replaceAll("\u001b", "").slice(0, 120);

test("what waits, runs, failed and fires next is on the first page, and nothing moves by itself", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context);
  const mark = Date.now();
  await api(page, "POST", "/api/routines", { name: `water the plants ${mark}`, trigger: { type: "every", every_seconds: 3_600 }, action: { type: "lightweight", prompt: "say hello" } });
  const review = await api(page, "POST", "/api/jobs", { prompt: "run: true", title: `review ${mark} ${TRICK}`, review: true });
  const failing = await api(page, "POST", "/api/jobs", { prompt: "count slowly", title: `fails soon ${mark}`, limits: { max_iterations: 1 } });
  await page.goto(`${base}/jobs/${review.id}`);
  await state(page, "review");
  await page.goto(`${base}/jobs/${failing.id}`);
  await state(page, "failed");
  await startJob(page, "count slowly");
  await state(page, "running");
  await page.goto(base);
  await heading(page, "Now");
  const server = page.getByRole("list", { name: "State of the server" });
  await server.getByText("sandbox ready").waitFor();
  await server.getByText(/\d of \d+ slots busy, \d+ queued/).waitFor();
  await server.getByText(/today \(UTC\): \$/).waitFor();
  await part(page, "Waits for you").getByRole("link", { name: `review ${mark} <img` }).waitFor();
  await part(page, "Running").getByRole("link", { name: "count slowly" }).first().waitFor();
  await part(page, "Next").getByRole("link", { name: /^water the plants/ }).first().waitFor();
  const failed = part(page, "Failed in 24 h");
  await failed.getByRole("link", { name: `fails soon ${mark}` }).waitFor();
  await check(page, "the first page");

  // Another job that waits is counted, and shown when it is asked for.
  await page.evaluate(() => {
    window.shifts = 0;
    new PerformanceObserver((list) => list.getEntries().forEach(({ value, hadRecentInput }) => (window.shifts += hadRecentInput ? 0 : value))).observe({ type: "layout-shift" });
  });
  const other = await api(page, "POST", "/api/jobs", { prompt: "run: true", title: `another to review ${mark}`, review: true });
  await part(page, "Waits for you").getByRole("button", { name: "1 new: show" }).waitFor({ timeout: 60_000 });
  assert.equal(await part(page, "Waits for you").getByRole("link", { name: `another to review ${mark}` }).count(), 0);
  const shifts = await page.evaluate(() => window.shifts);
  // Numbers become longer.
  assert.ok(shifts < 0.001, `shifted by ${shifts}`);
  await part(page, "Waits for you").getByRole("button", { name: "1 new: show" }).click();
  await part(page, "Waits for you").getByRole("link", { name: `another to review ${mark}` }).waitFor();

  await failed.getByRole("button", { name: new RegExp(`^Restart.*fails soon ${mark}`) }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  await heading(page, `fails soon ${mark}`);
  await api(page, "POST", `/api/jobs/${review.id}/accept`);
  // A person's no is called that, and the time of the review is not that of the work.
  await api(page, "POST", `/api/jobs/${other.id}/reject`, { reason: "not what was asked for" });
  await page.goto(`${base}/jobs/${other.id}`);
  await page.locator("h1 ~ p .state").getByText("rejected", { exact: true }).waitFor();
  await page.goto(`${base}/jobs?state=in_progress`);
  await page.getByRole("checkbox", { name: "Select count slowly" }).first().check();
  await page.keyboard.press("c");
  await page.getByRole("dialog").getByRole("button", { name: /Cancel 1 selected/ }).click();
});

test("a job that ended well is not offered for a restart", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "run: true");
  await state(page, "completed");
  await page.getByRole("link", { name: "New job from this one" }).waitFor();
  await page.getByRole("button", { name: "Delete" }).waitFor();
  assert.equal(await page.getByRole("button", { name: "Restart" }).count(), 0);
});

test("a bar of the last day filters the jobs by its time", async () => {
  const page = await logInByToken(await newBrowser(), "/jobs");
  const bars = page.getByRole("figure", { name: "Jobs of the last 24 h" });
  const bar = bars.getByRole("listitem").getByRole("link").last();
  await soon(async () => assert.match(await bar.getAttribute("aria-label"), /^\d\d:\d\d–\d\d:\d\d: \d+ [a-z]/));
  await bar.click();
  await page.waitForURL(/since=.*until=/);
  const { searchParams } = new URL(page.url());
  assert.equal(Date.parse(searchParams.get("until")) - Date.parse(searchParams.get("since")), 3_600_000);
  await page.locator(".rows .row").first().waitFor();
  await soon(async () => assert.equal(await bar.getAttribute("aria-current"), "true"));
  await check(page, "a chosen bar");
  await bars.getByText("As a table").click();
  await bars.getByRole("table").getByRole("link").last().waitFor();
  // An hour that has no jobs.
  await page.goto(`${base}/jobs?since=2020-01-01T00:00:00Z&until=2020-01-01T01:00:00Z`);
  await page.getByText("No job matches these filters.").waitFor();
  await page.getByRole("button", { name: "Clear the filters" }).click();
  await page.waitForURL(`${base}/jobs`);
  await page.getByLabel("Created").selectOption("in the last 24 h");
  await page.waitForURL(/since=/);
  await page.getByText("More filters").click();
  await page.getByLabel("Source").selectOption("routine");
  await page.waitForURL(/source=routine/);
});

test("a viewer has no controls that change anything", async () => {
  const page = await logInByToken(await newBrowser(), "/", given("GANTRY_TEST_VIEWER_TOKEN"));
  await page.getByText("Your role is viewer").first().waitFor();
  const allowed = /^(Search|Log out|Keyboard|Copy.*|Try again|Show.*|Clear the filters|Choose.*|Close)$/;
  for (const path of ["/", "/jobs", "/jobs/new", "/inbox", "/inbox?tab=resolved", "/inbox?tab=news", "/chat", "/admin", "/admin/tools"]) {
    await page.goto(base + path);
    await page.locator("h1").waitFor();
    await page.locator("main .loading").first().waitFor({ state: "detached" });
    const names = await page.getByRole("button").evaluateAll((buttons) => buttons.map((button) => button.getAttribute("aria-label") ?? button.textContent.trim()));
    assert.deepEqual(names.filter((name) => !allowed.test(name)), [], path);
    assert.equal(await page.locator("main").getByRole("link", { name: "New job" }).count(), 0, path);
    assert.equal(await page.locator("main textarea, main input[type=checkbox]").count(), 0, path);
  }
});
