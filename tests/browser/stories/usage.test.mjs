// Usage: bars and a table of the same sums, by keyboard, and a file of them.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { EVERY_TRICK, base, check, given, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

const DAY_MS = 86_400_000;
const dayOf = (ago) => new Date(Date.now() - ago * DAY_MS).toISOString().slice(0, 10);
const line = (of, cost, calls = 3) => ({ input_tokens: 1_000, output_tokens: 200, cache_read_tokens: 0, cache_write_tokens: 0, cost_usd: cost, llm_calls: calls, ...of });
const JOB = "01a2181d-0c2b-7f00-8000-0123456789ab";

/** Answers with sums of several days and models, one of which has no price. */
async function withSums(context, asked = []) {
  const sums = {
    "day,model": [line({ day: dayOf(1), model: "m-large" }, 2), line({ day: dayOf(1), model: "=1+1" }, null), line({ day: dayOf(3), model: "m-large" }, 1)],
    model: [line({ model: "m-large" }, 3), line({ model: EVERY_TRICK }, null)],
    "user,model": [line({ user: "ada", model: "m-large" }, 2), line({ user: EVERY_TRICK, model: "m-small" }, 1)],
    "routine,model": [line({ routine_id: "r1", routine_name: EVERY_TRICK, model: "m-large" }, 2), line({ routine_id: "r2", routine_name: "morning", model: "m-large" }, 1)],
    job: [line({ job_id: JOB, user: "ada" }, 2)],
  };
  await context.route(/\/api\/usage\?/, (route) => {
    const { searchParams: query } = new URL(route.request().url());
    asked.push(Object.fromEntries(query));
    return route.fulfill({ json: { items: sums[query.get("by")] ?? [], next_cursor: null } });
  });
}

const readout = (page) => page.locator(".readout");
const valueOf = (page) => page.getByRole("slider").getAttribute("aria-valuetext");

test("bars are read by keyboard and pointer, and the day is in the URL", async () => {
  const context = await newBrowser({ timezoneId: "Pacific/Auckland" });
  await withSums(context);
  const page = await logInByToken(context, "/usage");
  await heading(page, "Usage");
  await page.getByText("$3.00 and unpriced calls, 3.6k tokens, 9 model calls").waitFor();
  await page.getByText("Days are days in UTC.").waitFor();
  await check(page, "usage as bars");
  const bars = page.getByRole("slider", { name: "cost by day, the last 30 days in UTC" });
  await bars.focus();
  assert.match(await valueOf(page), /: nothing$/);
  await page.keyboard.press("ArrowLeft");
  await page.waitForURL((url) => url.searchParams.get("e") === dayOf(1));
  assert.match(await valueOf(page), /: \$2\.00 and unpriced calls · m-large \$2\.00 · =1\+1 unpriced$/);
  await page.keyboard.press("Home");
  await page.waitForURL((url) => url.searchParams.get("e") === dayOf(29));
  await page.keyboard.press("End");
  await page.keyboard.press("ArrowRight");
  await page.waitForURL((url) => url.searchParams.get("e") === dayOf(0));
  for (let step = 0; step < 3; step += 1) await page.keyboard.press("ArrowLeft");
  await readout(page).getByText("$1.00 · m-large $1.00").waitFor();
  await page.reload();
  await readout(page).getByText("$1.00 · m-large $1.00").waitFor();
  // The pointer reads another day, and leaves the selected one.
  const box = await bars.boundingBox();
  await page.mouse.move(box.x + (box.width * 28.5) / 30, box.y + 20);
  await readout(page).getByText("$2.00 and unpriced calls").waitFor();
  await page.mouse.move(box.x, box.y - 60);
  await readout(page).getByText("$1.00 · m-large $1.00").waitFor();
  await page.locator("h1").focus();
  await page.keyboard.press("Escape");
  await page.waitForURL(`${base}/usage`);
  await page.getByLabel("Values").selectOption("tokens");
  await page.getByLabel("Range").selectOption("7");
  await page.waitForURL((url) => url.searchParams.get("values") === "tokens" && url.searchParams.get("range") === "7");
  await page.getByRole("slider", { name: "tokens by day, the last 7 days in UTC" }).focus();
  await page.keyboard.press("ArrowLeft");
  assert.match(await valueOf(page), /: 2\.4k · /);
});

test("the same sums are a table and a file, in which nothing is a formula", async () => {
  const context = await newBrowser({ acceptDownloads: true });
  await withSums(context);
  const page = await logInByToken(context, "/usage?range=7");
  await page.getByRole("button", { name: "As table" }).press("Enter");
  await page.waitForURL(/as=table/);
  const table = page.getByRole("group", { name: "Usage" });
  await table.getByRole("cell", { name: "unpriced" }).waitFor();
  assert.deepEqual(await table.getByRole("row").nth(1).getByRole("cell").allTextContents(), [dayOf(1), "m-large", "3", "1,000", "200", "0", "0", "$2.00"]);
  await check(page, "usage as a table");
  const [download] = await Promise.all([page.waitForEvent("download"), page.getByRole("button", { name: "CSV" }).press("Enter")]);
  assert.equal(download.suggestedFilename(), `usage-day-7-days-${dayOf(0)}.csv`);
  const rows = readFileSync(await download.path(), "utf8").split("\r\n");
  assert.deepEqual(rows.slice(1, 3), [`${dayOf(1)},m-large,3,1000,200,0,0,2`, `${dayOf(1)},"'=1+1",3,1000,200,0,0,unpriced`]);
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.getAttribute("href")), `/jobs/${JOB}`));
});

test("an admin sees usage by user and of one user; names are text", async () => {
  for (const width of [1280, 360]) {
    const context = await newBrowser({ viewport: { width, height: 800 } });
    const asked = [];
    await withSums(context, asked);
    const page = await logInByToken(context, "/usage", given("GANTRY_TEST_ADMIN_TOKEN"));
    const parts = page.getByRole("navigation", { name: "By" });
    await parts.getByRole("link", { name: "user" }).click();
    await page.locator(".groups").getByText("onerror=alert(1)").waitFor();
    await check(page, "usage by user");
    await page.getByLabel("User").fill("ada");
    await page.keyboard.press("Enter");
    await page.waitForURL(/user=ada/);
    for (const name of ["model", "routine"]) {
      await parts.getByRole("link", { name }).click();
      await page.locator(".groups").getByText("onerror=alert(1)").waitFor();
      await check(page, `usage by ${name}`);
    }
    await page.locator(".groups").getByRole("link", { name: "morning" }).waitFor();
    await page.getByRole("button", { name: "As table" }).click();
    await page.getByRole("cell", { name: "onerror=alert(1)" }).waitFor();
    await check(page, "a table with hostile names");
    assert.ok(asked.some(({ by, user }) => by === "routine,model" && user === "ada") && asked.every(({ since }) => since === dayOf(29)));
    await page.goto(`${base}/usage?by=${encodeURIComponent(EVERY_TRICK.slice(0, 300))}&range=1e9&e=${encodeURIComponent("<img>")}`);
    await page.getByRole("slider", { name: "cost by day, the last 30 days in UTC" }).waitFor();
  }
});

test("the sums of the server are shown for each grouping, and others' are not asked for", async () => {
  const page = await logInByToken(await newBrowser(), "/usage");
  assert.equal(await page.getByLabel("User").count(), 0);
  for (const by of ["day", "model", "routine"]) {
    await page.goto(`${base}/usage?by=${by}`);
    await page.getByText(/tokens, .* model calls/).waitFor();
    await page.getByRole("heading", { name: "Most expensive jobs" }).waitFor();
    assert.equal(await page.getByRole("alert").count(), 0);
  }
  assert.equal(await page.getByRole("navigation", { name: "By" }).getByRole("link", { name: "user" }).count(), 0);
});
