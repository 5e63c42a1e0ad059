// Jobs: the first one, the form, the list, the page of a job and its parts.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { test } from "node:test";
import { EVERY_TRICK, base, check, focused, given, heading, logInByToken, newBrowser, soon, startJob, state, token } from "../browser.mjs";

test("the page of the first visit leaves the focus to its heading", async () => {
  const page = await logInByToken(await newBrowser(), "/no/such/page");
  await page.getByRole("link", { name: "Go to what runs now" }).click();
  await page.getByRole("heading", { name: "No jobs yet" }).waitFor();
  await page.locator("h1:focus").waitFor();
});

test("the first job is started where there is none, and a draft outlives its session", async () => {
  const page = await logInByToken(await newBrowser());
  const field = page.getByLabel("What should the agent do?");
  await page.getByRole("button", { name: "Use the example" }).click();
  await soon(async () => assert.match(await field.inputValue(), /median/));
  await check(page, "the first visit");
  await field.fill("run: echo first");
  await page.getByRole("link", { name: "More settings" }).click();
  await heading(page, "New job");
  await soon(async () => assert.equal(await field.inputValue(), "run: echo first"));
  await page.getByLabel("Labels").fill("note=a b, c");
  await check(page, "the form with all fields");
  await page.evaluate(() => fetch("/api/session", { method: "DELETE", headers: { "X-Gantry-Key": localStorage.getItem("gantry.key") } }));
  await page.reload();
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await soon(async () => assert.equal(await field.inputValue(), "run: echo first"));
  // A value that a closed part of the form hides is shown with what is wrong.
  await page.getByLabel("Token limit").fill("0");
  await page.getByText("More settings").click();
  await field.press("Control+Enter");
  await page.getByLabel("Token limit").fill("");
  await page.getByLabel("Hosts that it may reach").fill("not/a/host");
  await page.getByText("More settings").click();
  await field.press("Control+Enter");
  await page.locator("#egress:focus, #hosts:focus").waitFor();
  await check(page, "a form with a wrong field");
  await page.getByLabel("Hosts that it may reach").fill("");
  await field.press("Control+Enter");
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  await state(page, "completed");
  await page.getByRole("link", { name: "New job from this one" }).click();
  await page.getByText("More settings").click();
  await soon(async () => assert.equal(await page.getByLabel("Labels").inputValue(), "note=a b, c"));
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
});

test("a job is started, watched, prompted and cancelled", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "count slowly");
  await state(page, "running");
  const rows = page.getByRole("list", { name: "Activity" });
  await rows.getByRole("button", { name: /shell/ }).first().waitFor({ timeout: 30_000 });
  await page.getByLabel("Prompt", { exact: true }).fill("count by ten");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("list", { name: "Prompts" }).getByText("received", { exact: false }).waitFor({ timeout: 30_000 });
  await rows.getByRole("button", { name: /count by ten/ }).waitFor({ timeout: 30_000 });
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  const question = page.getByRole("dialog", { name: "Cancel this job?" });
  await question.waitFor();
  await soon(async () => assert.equal(await focused(page), "No, go back"));
  await page.keyboard.press("Escape");
  await question.waitFor({ state: "hidden" });
  await soon(async () => assert.equal(await focused(page), "Cancel"));
  await page.keyboard.press("Enter");
  await question.waitFor();
  await question.getByRole("button", { name: "Cancel the job" }).click();
  await state(page, "cancelled");
  await page.getByText(/Events 1 to \d+, none missing\./).waitFor();
  await check(page, "a cancelled job");
});

test("a restart of the server loses no event and shows none twice", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "count slowly");
  const rows = page.getByRole("list", { name: "Activity" });
  await rows.getByRole("button", { name: /shell/ }).nth(1).waitFor({ timeout: 30_000 });
  process.kill(Number(readFileSync(given("GANTRY_TEST_PID_FILE"), "utf8")), "SIGKILL");
  await page.locator(".connection.reconnecting").first().waitFor();
  await page.locator(".connection.live").first().waitFor({ timeout: 60_000 });
  const before = await rows.getByRole("button", { name: /shell/ }).count();
  await rows.getByRole("button", { name: /shell/ }).nth(before).waitFor({ timeout: 30_000 });
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Cancel the job" }).click();
  await state(page, "cancelled");
  await page.getByText(/Events 1 to \d+, none missing\./).waitFor();
  // The answer of the server has as many calls as the page has rows.
  const id = page.url().split("/").at(-1);
  const calls = await page.evaluate(async (job) => {
    const { items } = await (await fetch(`/api/jobs/${job}/events?kind=tool_use&limit=200`)).json();
    return items.length;
  }, id);
  const shown = new Set();
  const list = await rows.elementHandle();
  for (let top = 0; top < 20_000; top += 200) {
    await list.evaluate((element, at) => (element.scrollTop = at), top);
    for (const row of await rows.getByRole("button", { name: /shell|write_file/ }).all()) shown.add(await row.getAttribute("aria-posinset") ?? (await row.textContent()));
    if (await list.evaluate((element) => element.scrollTop + element.clientHeight >= element.scrollHeight)) break;
  }
  assert.ok(calls >= 3 && shown.size <= calls + 1, `${shown.size} rows of ${calls} calls`);
});

test("hostile text is text, wherever it stands", async () => {
  const page = await logInByToken(await newBrowser());
  const id = await page.evaluate(async (text) => {
    // A title has no control characters.
    const title = text.replaceAll("\u0000", "").replaceAll("\u001b", "").slice(0, 200);
    const prompt = `run: printf '%s\\n' '${text.replaceAll("'", "").replaceAll("\u0000", "")}' > "$(printf '<b>\u202Ea')"; head -c 1000000 /dev/zero | tr '\\0' x; printf '<script>alert(5)</script>'`;
    const answer = await fetch("/api/jobs", {
      method: "POST",
      headers: { "Content-Type": "application/json", "X-Gantry-Key": localStorage.getItem("gantry.key") },
      body: JSON.stringify({ prompt, title, metadata: { note: "<i>label</i>" } }),
    });
    return (await answer.json()).id;
  }, EVERY_TRICK);
  for (const path of [`/jobs/${id}`, `/jobs/${id}?e=5`, `/jobs/${id}/changes`, `/jobs/${id}/files`, `/jobs/${id}/calls`, `/jobs/${id}/details`, "/jobs", "/"]) {
    await page.goto(base + path);
    if (path === `/jobs/${id}`) await state(page, "completed");
    await page.locator("h1").waitFor();
    await page.locator(".loading").first().waitFor({ state: "detached" });
    const found = await page.evaluate(() => ({
      elements: document.querySelectorAll("main img[src=x], main svg[onload], main script, main a[href^=javascript]").length,
      excess: document.documentElement.scrollWidth - innerWidth,
    }));
    assert.deepEqual(found, { elements: 0, excess: 0 }, path);
  }
});

test("the result, the changes, the files and the calls of a job", async () => {
  const page = await logInByToken(await newBrowser());
  const id = await startJob(page, "run: printf 'one\\n<img src=x onerror=alert(1)>\\n' > a.txt; mkdir d; echo two > d/b.txt");
  await state(page, "completed");
  const parts = page.getByRole("navigation", { name: "Parts of the job" });
  await parts.getByRole("link", { name: "Changes" }).click();
  await page.getByText("2 files").waitFor();
  await page.getByText("<img src=x onerror=alert(1)>").first().waitFor();
  await check(page, "changes");
  await parts.getByRole("link", { name: "Files" }).click();
  await page.getByRole("link", { name: "d/" }).click();
  await page.getByRole("link", { name: "b.txt" }).click();
  await page.getByRole("group", { name: "d/b.txt" }).getByText("two").waitFor();
  await check(page, "a file");
  await parts.getByRole("link", { name: "Calls" }).click();
  await page.getByRole("heading", { name: "Tool calls" }).waitFor();
  await check(page, "calls");
  await parts.getByRole("link", { name: "Details" }).click();
  await page.getByRole("heading", { name: "Prompt" }).waitFor();
  await check(page, "details");
  await page.goto(`${base}/jobs/new?from=${id}`);
  await soon(async () => assert.match(await page.getByLabel("What should the agent do?").inputValue(), /^run: printf/));
});

test("jobs are filtered by what the URL says, and cancelled together", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "count slowly");
  await startJob(page, "count slowly");
  await page.goto(`${base}/jobs?state=in_progress,pending`);
  await heading(page, "Jobs");
  await page.getByRole("checkbox", { name: "Select count slowly" }).nth(1).waitFor();
  await soon(async () => assert.equal(await page.getByLabel("State").evaluate((select) => select.selectedOptions[0].textContent), "not finished"));
  await page.getByRole("checkbox", { name: "Select count slowly" }).first().check();
  await page.locator("h1").focus();
  for (const key of ["j", "j", "x", "c"]) await page.keyboard.press(key);
  await page.getByRole("dialog").getByRole("button", { name: "Cancel 2 selected" }).click();
  await page.locator(".rows .state.cancelled").nth(1).waitFor({ timeout: 60_000 });
  await page.getByLabel("State").selectOption("cancelled");
  await page.waitForURL(/state=cancelled/);
  await page.getByRole("link", { name: "count slowly" }).nth(1).waitFor({ timeout: 60_000 });
  // A text applies by Enter, which is said; Back takes a filter back, and then the next one.
  await page.getByLabel("Text", { exact: true }).fill("count slowly");
  await page.getByText("Enter applies it").waitFor();
  await page.keyboard.press("Enter");
  await page.waitForURL(/q=count/);
  await page.getByText("Enter applies it").waitFor({ state: "detached" });
  await page.goBack();
  await page.waitForURL(/state=cancelled$/);
  await page.waitForFunction(() => document.querySelector(".filters input[type=search]:not([placeholder])").value === "");
  await page.goBack();
  await page.waitForURL(/state=in_progress,pending$/);
  await page.goForward();
  await page.getByRole("link", { name: "count slowly" }).nth(1).waitFor();
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  await page.keyboard.press("Escape");
  await page.waitForURL(/\/jobs\?state=cancelled/);
  await heading(page, "Jobs");
  await page.keyboard.press("n");
  await heading(page, "New job");
});
