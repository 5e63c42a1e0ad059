// Routines and runs: a routine is made, run, edited and deleted; its runs are read; the schedule of a week.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVERY_TRICK, api, base, check, focused, given, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

const name = (of) => `${of}-${Date.now().toString(36)}`;
const manual = (of, prompt = "echo hello") => ({ name: name(of), trigger: { type: "manual" }, action: { type: "lightweight", prompt } });

test("a routine is made by the form, run, read, disabled and deleted", async () => {
  const page = await logInByToken(await newBrowser(), "/routines");
  const called = name("morning");
  await page.getByRole("link", { name: "New routine" }).first().click();
  await heading(page, "New routine");
  await page.getByLabel("Name", { exact: true }).fill(called);
  await page.getByLabel("Schedule", { exact: true }).fill("every weekday at 25:00");
  await page.getByLabel("Prompt").fill("echo good morning");
  const result = page.getByRole("region", { name: "Check" });
  await result.locator(".failure").getByText("trigger.schedule").waitFor();
  await page.getByLabel("Schedule", { exact: true }).fill("every weekday at 9:00");
  await page.getByLabel("Time zone of the schedule").fill("Europe/Berlin");
  await result.getByText(/09:00 Europe\/Berlin/).nth(2).waitFor();
  await check(page, "the form of a routine with its next times");
  await page.getByRole("button", { name: "Create the routine" }).click();
  await heading(page, called);
  await page.getByText(/09:00 Europe\/Berlin/).nth(4).waitFor();
  await page.getByText("It has not run yet.").waitFor();

  await page.getByRole("button", { name: "Run now" }).click();
  // By the events alone.
  await page.locator("td .state").filter({ hasText: "report" }).waitFor({ timeout: 30_000 });
  await page.locator("h1 ~ p .state").filter({ hasText: "report" }).waitFor({ timeout: 30_000 });
  await check(page, "a routine with a run");
  await page.locator(".chart [data-run]").click();
  await heading(page, `Run: ${called}`);
  await page.getByRole("region", { name: "Result" }).getByText("good morning").waitFor();
  await page.locator(".entry.assistant").getByText("good morning").waitFor();
  await page.getByRole("group", { name: "Model calls" }).waitFor();
  await check(page, "a run");
  await page.keyboard.press("Escape");
  await heading(page, "Runs");
  await page.goto(`${base}/routines`);

  const row = page.locator(".row").filter({ hasText: called });
  await row.getByRole("button", { name: "Disable" }).click();
  await row.locator(".state").filter({ hasText: "disabled" }).waitFor();
  await row.getByText("a user disabled it").waitFor();
  await check(page, "the list of routines");
  await row.getByRole("link", { name: called }).click();
  await page.getByRole("button", { name: "Delete" }).click();
  const question = page.getByRole("dialog", { name: "Delete this routine?" });
  await question.waitFor();
  await soon(async () => assert.equal(await focused(page), "No, go back"));
  await question.getByRole("button", { name: "Delete" }).click();
  await heading(page, "Routines");
  await row.waitFor({ state: "detached" });
  // Its run stays.
  await page.getByRole("link", { name: "Runs" }).click();
  await page.getByRole("link", { name: called }).waitFor();
});

test("a change by another one keeps what was written, and both are saved", async () => {
  const page = await logInByToken(await newBrowser());
  const { id, name: called } = await api(page, "POST", "/api/routines", manual("clash"));
  await page.goto(`${base}/routines/${id}/edit`);
  await page.getByLabel("Prompt").fill("echo mine");
  await api(page, "PATCH", `/api/routines/${id}`, { description: "theirs", guardrails: { max_concurrent: 2 } });
  await page.getByRole("button", { name: "Save", exact: true }).click();
  const clash = page.getByRole("alert", { name: "The routine was changed meanwhile" });
  await clash.getByRole("row", { name: "description theirs – the saved one" }).waitFor();
  await clash.getByRole("row", { name: "action.prompt echo hello echo mine yours" }).waitFor();
  await soon(async () => assert.equal(await page.getByLabel("Prompt").inputValue(), "echo mine"));
  await check(page, "two versions of a routine");
  await page.setViewportSize({ width: 360, height: 800 });
  await check(page, "two versions of a routine, 360 px");
  await page.setViewportSize({ width: 1280, height: 800 });
  // What was written outlives the page, too.
  await page.reload();
  await page.waitForFunction(() => document.querySelector("[id='field-action.prompt']")?.value === "echo mine");
  await page.getByRole("button", { name: "Save", exact: true }).click();
  await clash.getByRole("button", { name: "Save my changes on top" }).click();
  await heading(page, called);
  await page.getByText("theirs", { exact: true }).waitFor();
  const { action, guardrails } = await api(page, "GET", `/api/routines/${id}`);
  assert.deepEqual([action.prompt, guardrails.max_concurrent], ["echo mine", 2]);
  await page.goto(`${base}/routines/${id}/edit`);
  await page.getByLabel("What it is for").fill("again mine");
  await api(page, "PATCH", `/api/routines/${id}`, { description: "again theirs" });
  await page.getByLabel("What it is for").press("Control+Enter");
  await clash.getByRole("button", { name: "Take the saved version" }).click();
  await clash.waitFor({ state: "detached" });
  await soon(async () => assert.equal(await page.getByLabel("What it is for").inputValue(), "again theirs"));
  // A routine that another one deletes is gone from its page.
  await page.goto(`${base}/routines/${id}`);
  await page.getByRole("button", { name: "Run now" }).waitFor();
  await api(page, "DELETE", `/api/routines/${id}`);
  // Its page says so, and so may what it was reading.
  await page.getByText("there is no routine").first().waitFor();
  await page.getByRole("button", { name: "Run now" }).waitFor({ state: "detached" });
});

test("the JSON text and the form are one definition, and a secret is shown once", async () => {
  const page = await logInByToken(await newBrowser(), "/routines/new");
  await page.getByLabel("Name", { exact: true }).fill(name("hook"));
  await page.getByLabel("Trigger", { exact: true }).selectOption("webhook");
  await page.getByRole("link", { name: "JSON text" }).click();
  const text = page.getByLabel("JSON text", { exact: true });
  await page.waitForFunction(() => document.querySelector("#json")?.value.includes('"webhook"'));
  const written = JSON.parse(await text.inputValue());
  await text.fill("{");
  await page.getByText("This is not the JSON text of an object").waitFor();
  await soon(async () => assert.ok(await page.getByRole("button", { name: "Create the routine" }).isDisabled()));
  await check(page, "a JSON text that cannot be read");
  await text.fill(JSON.stringify({ ...written, action: { type: "lightweight", prompt: "echo hook" }, guardrails: { cooldown_seconds: 5 } }));
  await page.getByRole("link", { name: "Form" }).click();
  await page.getByText("Guardrails").click();
  await soon(async () => assert.equal(await page.getByLabel("Cooldown in seconds").inputValue(), "5"));
  await page.getByLabel("Cooldown in seconds").fill("");
  await page.getByLabel("Path after").fill("Not A Path");
  await page.getByRole("button", { name: "Create the routine" }).click();
  // What is wrong has the focus.
  await page.locator("[id='field-trigger.path'][aria-invalid]:focus").waitFor();
  await page.getByLabel("Path after").fill("");
  await page.getByRole("button", { name: "Create the routine" }).click();
  await page.getByText("Copy the secret now").waitFor();
  await page.getByText(/^whsec_|[A-Za-z0-9+/=_-]{24,}/).first().waitFor();
  await page.getByRole("heading", { name: "Webhook deliveries" }).waitFor();
  await check(page, "a routine with a webhook");
  const id = page.url().split("/").at(-1);
  const { guardrails } = await api(page, "GET", `/api/routines/${id}`);
  assert.equal(guardrails.cooldown_seconds, 300);
  await page.reload();
  await page.getByRole("heading", { name: "Webhook deliveries" }).waitFor();
  assert.equal(await page.getByText("Copy the secret now").count(), 0);
  await api(page, "DELETE", `/api/routines/${id}`);
});

test("the keyboard is enough, and another tab's routine is announced", async () => {
  const page = await logInByToken(await newBrowser(), "/routines");
  await heading(page, "Routines");
  await page.locator(".loading").first().waitFor({ state: "detached" });
  const made = await api(page, "POST", "/api/routines", manual("keys"));
  await page.getByRole("button", { name: "1 new: show" }).focus();
  await page.keyboard.press("Enter");
  await page.getByRole("link", { name: made.name }).waitFor();
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await soon(async () => assert.equal(await focused(page), made.name));
  await page.keyboard.press("Enter");
  await heading(page, made.name);
  await page.keyboard.press("Tab");
  while ((await focused(page)) !== "Edit") await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await heading(page, "Edit a routine");
  await page.locator("[id='field-description']").focus();
  await page.keyboard.type("by keys");
  await page.keyboard.press("Control+Enter");
  await heading(page, made.name);
  await page.getByText("by keys").first().waitFor();
  await page.keyboard.press("Escape");
  await heading(page, "Routines");
  await api(page, "DELETE", `/api/routines/${made.id}`);
});

test("hostile text is text in routines and runs", async () => {
  const page = await logInByToken(await newBrowser());
  const line = EVERY_TRICK.replaceAll("\u0000", "").replaceAll("\u001b", "").replaceAll("\u202e", "").replaceAll("\u202c", "").slice(0, 90);
  const { id } = await api(page, "POST", "/api/routines", {
    ...manual("x", `echo ${EVERY_TRICK.replaceAll("\u0000", "")}`), name: `${name("x")} ${line}`.slice(0, 128), description: EVERY_TRICK.replaceAll("\u0000", "").slice(0, 4_000),
    trigger: { type: "event", channel: line.slice(0, 60), pattern: "<script>alert(6)</script>" },
  });
  const run = await api(page, "POST", `/api/routines/${id}/trigger`, { wait_seconds: 20, payload: { text: EVERY_TRICK } });
  for (const path of ["/routines", `/routines/${id}`, `/routines/${id}/edit`, `/routines/${id}/edit?as=json`, "/runs", `/runs/${run.id}`, "/routines/schedule", `/runs?routine=${id}`]) {
    await page.goto(base + path);
    await page.locator("h1").waitFor();
    await page.locator(".loading").first().waitFor({ state: "detached" });
    const found = await page.evaluate(() => ({
      elements: document.querySelectorAll("main img[src=x], main svg[onload], main script, main a[href^=javascript]").length,
      excess: document.documentElement.scrollWidth - innerWidth,
    }));
    assert.deepEqual(found, { elements: 0, excess: 0 }, path);
  }
  await api(page, "DELETE", `/api/routines/${id}`);
});

test("a week in which the clock changes: what has run and what is planned, and lists of both", async () => {
  for (const width of [1280, 360]) {
    const context = await newBrowser({ viewport: { width, height: 800 } });
    await context.clock.setFixedTime(new Date("2026-10-24T12:00:00Z"));
    await context.route(/\/api\/session$/, async (route) => {
      const answer = await route.fetch();
      await route.fulfill({ response: answer, json: { ...(await answer.json()), now: "2026-10-24T12:00:00Z" } });
    });
    await context.route(/\/api\/runs\/histogram\?/, (route) => route.fulfill({ json: { items: [
      { hour: "2026-10-24T06:00:00Z", statuses: { ok: 3, attention: 0, failed: 1 } }, { hour: "2026-10-24T07:00:00Z", statuses: { missed: 2 } },
    ] } }));
    await context.route(/\/api\/routines\/upcoming\?/, (route) => route.fulfill({ json: {
      items: [{ routine_id: "0195a000-0000-7000-8000-000000000000", routine_name: "<b>nightly</b>", user_id: "ada", utc: "2026-10-25T00:30:00Z", local: "2026-10-25T02:30:00+02:00" }],
      hours: [{ hour: "2026-10-25T00:00:00Z", count: 1 }, { hour: "2026-10-25T01:00:00Z", count: 4 }], until: "2026-10-25T23:00:00Z", left_out: 1,
    } }));
    const page = await logInByToken(context, "/routines/schedule?zone=Europe/Oslo&week=2026-W43");
    await heading(page, "Schedule");
    await page.getByText("In this week: 1 failed, 2 missed, 3 ok, 5 planned.").waitFor();
    const past = page.getByRole("link", { name: "Sat 24 Oct 08:00: 1 failed, 3 ok" });
    await soon(async () => assert.equal(new URL(await past.getAttribute("href"), base).searchParams.get("since"), "2026-10-24T06:00:00Z"));
    // Both hours at 2 are one place.
    await page.getByRole("link", { name: "Sun 25 Oct 02:00: 5 planned" }).click();
    await page.getByRole("link", { name: "<b>nightly</b>" }).waitFor();
    await page.getByText("4 more are not listed.").waitFor();
    await page.getByText("1 more routines are not counted").waitFor();
    await check(page, `the schedule, ${width} px`);
    // Days are rows where there is room for all hours, else hours are.
    await page.locator("h1").focus();
    await page.keyboard.press("j");
    await soon(async () => assert.match(await focused(page), width > 1_000 ? /^Sat 24 Oct 08:00/ : /^Sun 25 Oct 02:00/));
    await page.keyboard.press("j");
    if (width <= 1_000) assert.match(await focused(page), /^Sat 24 Oct 08:00/);
    await page.keyboard.press("Enter");
    await heading(page, "Runs");
    assert.match(page.url(), /since=2026-10-24T0[67]/);
    await page.goto(`${base}/routines/schedule?week=2026-W43&zone=Europe/Oslo`);
    await page.getByRole("link", { name: "Next week" }).click();
    await page.getByText("Week 44 of 2026").waitFor();
  }
});

test("a viewer has no buttons that change anything", async () => {
  const page = await logInByToken(await newBrowser(), "/routines", given("GANTRY_TEST_VIEWER_TOKEN"));
  await page.getByRole("heading", { name: "No routines yet" }).waitFor();
  assert.equal(await page.getByRole("link", { name: "New routine" }).count(), 0);
  await page.goto(`${base}/routines/new`);
  await page.getByText("Your role is viewer").nth(1).waitFor();
  assert.equal(await page.locator("main form").count(), 0);
});
