// The search over everything, by keyboard alone.

import assert from "node:assert/strict";
import { test } from "node:test";
import { api, base, check, heading, logInByToken, newBrowser, soon, startJob, state } from "../browser.mjs";

const field = (page) => page.getByRole("combobox", { name: "Page, job, routine, document or command" });

test("pages, jobs, routines and commands are found and opened without a mouse", async () => {
  const page = await logInByToken(await newBrowser());
  const id = await startJob(page, "run: echo found by its id");
  await state(page, "completed");
  const name = `find me by name ${Date.now()}`;
  const routine = await api(page, "POST", "/api/routines", { name, trigger: { type: "every", every_seconds: 86_400 }, action: { type: "lightweight", prompt: "say hello" } });
  await page.goto(base);
  await heading(page, "Now");

  // What is typed while it is loaded is not lost, and no single key does anything.
  await page.keyboard.press("Control+k");
  await page.keyboard.type("inbox");
  await page.getByRole("option", { name: "Inbox" }).waitFor();
  await soon(async () => assert.equal(await field(page).inputValue(), "inbox"));
  await page.keyboard.press("Enter");
  await heading(page, "Inbox");
  await page.waitForFunction(() => document.activeElement.tagName === "H1");

  // A job by the end of its id, from inside a field.
  await page.goto(`${base}/jobs/new`);
  await page.getByLabel("What should the agent do?").focus();
  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type(id.slice(-6));
  await page.getByRole("option", { name: /found by its id/ }).waitFor();
  await check(page, "the search with a job");
  await page.keyboard.press("Enter");
  await page.waitForURL(`${base}/jobs/${id}`);

  // The arrows choose, and the field names what is chosen.
  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type("colours");
  await page.getByRole("option", { name: "Colours: dark" }).waitFor();
  const chosen = () => page.evaluate(() => document.getElementById(document.activeElement.getAttribute("aria-activedescendant")).textContent.trim());
  assert.equal(await chosen(), "Colours: system");
  await page.keyboard.press("ArrowUp");
  assert.equal(await chosen(), "Colours: dark");
  await page.keyboard.press("Enter");
  await page.waitForFunction(() => document.documentElement.dataset.theme === "dark");

  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type(name);
  await page.getByRole("option", { name }).waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL(`${base}/routines/${routine.id ?? routine.routine.id}`);

  await api(page, "PUT", "/api/memory?path=palette%2Fwanted.md", { content: "a document about hedgehogs" });
  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type("hedgehogs");
  await page.getByRole("option", { name: "palette/wanted.md" }).waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL(`${base}/memory/palette/wanted.md`);
  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type("schedule");
  await page.getByRole("option", { name: "Schedule" }).waitFor();
  await page.keyboard.press("Enter");
  await heading(page, "Schedule");

  // Nothing is found, and the focus goes back where it was.
  await page.goto(`${base}/jobs`);
  const search = page.getByRole("button", { name: "Search" });
  await search.focus();
  await page.keyboard.press("Enter");
  await field(page).waitFor();
  await page.keyboard.type("no such thing anywhere");
  await page.getByText("Nothing matches.").waitFor();
  await page.keyboard.press("Enter");
  await page.keyboard.press("Escape");
  await field(page).waitFor({ state: "detached" });
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.textContent), "Search"));
  await page.keyboard.press("?");
  await page.getByRole("dialog", { name: "Keyboard" }).getByText("Ctrl K").waitFor();
});

test("an older answer never takes the place of a newer one", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context);
  let asked = 0;
  await context.route(/\/api\/jobs\?q=/, async (route) => {
    asked += 1;
    const isFirst = route.request().url().includes("q=one");
    if (isFirst) await new Promise((resolve) => setTimeout(resolve, 1_500));
    await route.continue().catch(() => {});
  });
  await page.keyboard.press("Control+k");
  await field(page).waitFor();
  await page.keyboard.type("one");
  await page.waitForTimeout(400);
  await page.keyboard.type(" two three four");
  await page.getByText("Nothing matches.").waitFor();
  await page.waitForTimeout(1_500);
  await page.getByText("Nothing matches.").waitFor();
  // Each key by itself would have been 18 searches.
  assert.ok(asked <= 4, `${asked} searches`);
});
