// Settings: of the user, of tools, secrets, sessions, and of this browser.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVERY_TRICK, base, check, focused, given, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

/** Puts the settings that every story begins with. */
const reset = (page) => page.evaluate(async () => {
  const headers = { "X-Gantry-Key": localStorage.getItem("gantry.key"), "Content-Type": "application/json" };
  await fetch("/api/settings", { method: "PUT", headers, body: "{}" });
});

const zone = (page) => page.locator("#timezone");
const save = (page) => page.getByRole("button", { name: "Save", exact: true });

test("settings are saved, and another tab's change is noticed", async () => {
  const context = await newBrowser();
  const first = await logInByToken(context, "/settings");
  await heading(first, "Settings");
  await reset(first);
  await first.reload();
  const second = await context.newPage();
  await second.goto(`${base}/settings/general`);
  await zone(first).fill("Europe/Oslo");
  await first.getByLabel("Quiet hours from").fill("22:00");
  await first.getByLabel("Quiet hours to").fill("07:00");
  // What is typed outlives a reload.
  await first.reload();
  await soon(async () => assert.equal(await zone(first).inputValue(), "Europe/Oslo"));
  await save(first).click();
  await first.locator("form").getByText("Saved").waitFor();
  await check(first, "settings that are saved");

  await second.getByLabel("Temperature").fill("0.5");
  await zone(second).fill("Europe/Paris");
  await save(second).click();
  await second.getByRole("alert").getByText("The settings were changed meanwhile").waitFor();
  // What was typed stays, what was not touched is what is stored, and the difference is shown.
  await soon(async () => assert.deepEqual([await zone(second).inputValue(), await second.getByLabel("Temperature").inputValue(), await second.getByLabel("Quiet hours from").inputValue()], ["Europe/Paris", "0.5", "22:00"]));
  await second.getByRole("alert").getByRole("row", { name: "Time zone Europe/Oslo Europe/Paris" }).waitFor();
  await check(second, "settings that were changed in another tab");
  await save(second).click();
  await second.locator("form").getByText("Saved").waitFor();
  await second.reload();
  await soon(async () => assert.equal(await zone(second).inputValue(), "Europe/Paris"));
  assert.equal(await second.getByRole("alert").count(), 0);

  await zone(second).fill("Europe/Atlantis");
  await save(second).click();
  await second.locator("#timezone-wrong").getByText("must be an IANA time zone").waitFor();
  await second.locator("#timezone:focus").waitFor();
  await check(second, "settings with a wrong field");
  await second.getByRole("button", { name: "Discard what is not saved" }).click();
  await soon(async () => assert.equal(await zone(second).inputValue(), "Europe/Paris"));
  // What is typed while the rest is saved is not lost.
  await second.getByLabel("Temperature").fill("0.7");
  let isTyped = () => {};
  const typed = new Promise((resolve) => (isTyped = resolve));
  await second.route(/\/api\/settings$/, async (route) => (await typed, route.continue()));
  await save(second).click();
  await second.getByRole("button", { name: "Saving …" }).waitFor();
  await zone(second).fill("Europe/Rome");
  isTyped();
  await save(second).waitFor();
  await soon(async () => assert.deepEqual([await zone(second).inputValue(), await save(second).isEnabled()], ["Europe/Rome", true]));
  await reset(second);
});

test("a tool's permission is set by keyboard", async () => {
  const page = await logInByToken(await newBrowser(), "/settings/tools");
  await page.getByLabel("Filter").fill("echo");
  await page.waitForURL(/q=echo/);
  const choice = page.getByLabel("Permission echo");
  const choose = async (word) => {
    await choice.focus();
    await choice.selectOption({ label: word });
    const saved = page.waitForResponse((answer) => answer.url().endsWith("/permission"));
    await page.getByRole("button", { name: "Save" }).press("Enter");
    assert.equal((await saved).status(), 200);
    await page.locator(".tool").getByRole("button").waitFor({ state: "detached" });
    await page.reload();
    await choice.waitFor();
    await soon(async () => assert.equal(await choice.evaluate((select) => select.selectedOptions[0].textContent), word));
  };
  await choose("disabled");
  await choose("default");
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await page.getByRole("group", { name: "Parameters echo" }).waitFor();
  await check(page, "a tool");
});

test("a secret is set, and its value is nowhere afterwards", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context, "/settings/secrets");
  const [weak, strong] = ["aaaaaaaaaaaa", "k9Zt-4vQxW_72pLmYb"];
  const everywhere = async () => {
    const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }, history.state, [...document.querySelectorAll("input, textarea")].map(({ value }) => value), document.documentElement.outerHTML]));
    return `${stored}${page.url()}${await page.title()}${JSON.stringify(await context.cookies())}`;
  };
  await page.getByLabel("Name").fill("STORY_TOKEN");
  await page.getByLabel("Value").fill(weak);
  assert.ok(!(await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]))).includes(weak), "a value is no draft");
  await page.getByLabel("Value").press("Enter");
  await page.getByRole("alert").getByText("This value is weak:").waitFor();
  await check(page, "a weak secret");
  await page.getByRole("button", { name: "Store it nevertheless" }).click();
  await page.locator("form").getByText("STORY_TOKEN is stored.").waitFor();
  await page.locator(".rows code").getByText("STORY_TOKEN").waitFor();
  assert.ok(!(await everywhere()).includes(weak));
  await page.getByLabel("Name").fill("STORY_TOKEN");
  await page.getByText("There is a secret with this name.").waitFor();
  await page.getByLabel("Value").fill(strong);
  await page.getByLabel("Hosts that it is for").fill("api.example.org https://example.org");
  await page.getByRole("button", { name: "Replace the secret" }).click();
  await page.locator("#secret-hosts[aria-invalid]:focus").waitFor();
  await page.getByLabel("Hosts that it is for").fill("api.example.org");
  await page.getByRole("button", { name: "Replace the secret" }).click();
  await page.locator("form").getByText("STORY_TOKEN is stored.").waitFor();
  await page.locator(".rows").getByText("only for api.example.org").waitFor();
  assert.ok(!(await everywhere()).includes(strong));
  // A value that is left in its field is not there when the page is opened again.
  await page.getByLabel("Value").fill(strong);
  await page.getByRole("link", { name: "Tools" }).click();
  await page.getByRole("link", { name: "Secrets" }).click();
  await soon(async () => assert.equal(await page.getByLabel("Value").inputValue(), ""));
  await page.reload();
  await soon(async () => assert.equal(await page.getByLabel("Value").inputValue(), ""));
  // Line breaks would be lost without a word.
  await page.getByLabel("Value").evaluate((field) => {
    const data = new DataTransfer();
    data.setData("text", "-----BEGIN KEY-----\nabc\n-----END KEY-----\n");
    field.dispatchEvent(new ClipboardEvent("paste", { clipboardData: data, bubbles: true, cancelable: true }));
  });
  await page.getByRole("alert").getByText("The value has line breaks").waitFor();

  await page.getByRole("button", { name: "Delete STORY_TOKEN" }).click();
  const question = page.getByRole("dialog", { name: "Delete the secret STORY_TOKEN?" });
  await question.waitFor();
  await soon(async () => assert.equal(await focused(page), "No, go back"));
  await check(page, "the question before a deletion");
  await question.getByRole("button", { name: "Delete" }).click();
  await page.locator(".rows code").getByText("STORY_TOKEN").waitFor({ state: "detached" });
});

test("a session is ended from another browser, whose own is marked", async () => {
  const mine = await logInByToken(await newBrowser(), "/settings/sessions");
  const agent = "Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0 <img src=x onerror=alert(1)>";
  const other = await logInByToken(await newBrowser({ userAgent: agent }), "/memory");
  await heading(other, "Memory");
  await mine.reload();
  const rows = mine.locator(".sessions > li");
  await rows.first().getByText("this browser").waitFor();
  assert.equal(await mine.getByText("this browser", { exact: true }).count(), 1);
  await check(mine, "sessions");
  const before = await rows.filter({ hasText: "Firefox on Linux" }).count();
  await mine.getByRole("button", { name: "End Firefox on Linux" }).first().click();
  const question = mine.getByRole("dialog", { name: "End the session of Firefox on Linux?" });
  await question.waitFor();
  await soon(async () => assert.equal(await focused(mine), "No, go back"));
  await question.getByRole("button", { name: "End" }).click();
  await mine.waitForFunction((count) => [...document.querySelectorAll(".sessions > li")].filter((row) => row.textContent.includes("Firefox on Linux")).length < count, before);
  // Its stream notices with its next comment.
  await other.getByRole("dialog", { name: "Your session has ended" }).waitFor({ timeout: 40_000 });

  await rows.first().getByRole("button", { name: /^End/ }).click();
  await mine.getByRole("dialog").getByText("you are logged out").waitFor();
  await mine.getByRole("dialog").getByRole("button", { name: "End" }).click();
  await heading(mine, "Log in");
});

test("colours, the zone of times and single keys are chosen for this browser", async () => {
  const page = await logInByToken(await newBrowser({ timezoneId: "Europe/Oslo" }), "/settings/appearance");
  await page.getByRole("radio", { name: "dark" }).check();
  await page.locator("main").getByLabel("Time zone").selectOption("UTC");
  await page.waitForURL(/zone=UTC/);
  await page.getByText("Times are in UTC").waitFor();
  await page.getByLabel("Use single keys").uncheck();
  await page.reload();
  await soon(async () => assert.deepEqual([await page.evaluate(() => document.documentElement.dataset.theme), await page.getByRole("radio", { name: "dark" }).isChecked(), await page.getByLabel("Use single keys").isChecked()], ["dark", true, false]));
  await page.locator("h1").focus();
  await page.keyboard.press("?");
  await page.getByRole("button", { name: "Show the list of keys" }).click();
  await page.getByRole("dialog", { name: "Keyboard" }).waitFor();
  await check(page, "appearance");
});

test("a viewer has no control that changes a setting", async () => {
  const page = await logInByToken(await newBrowser(), "/settings", given("GANTRY_TEST_VIEWER_TOKEN"));
  await page.getByText("Your role is viewer: you can look at the settings").waitFor();
  await page.locator("#timezone:disabled").waitFor();
  assert.equal(await page.locator("main :is(input, select):enabled").count(), 0);
  for (const tab of ["general", "tools", "secrets", "sessions"]) {
    await page.goto(`${base}/settings/${tab}`);
    await page.locator(tab === "general" ? "#timezone" : tab === "secrets" ? ".empty" : ".rows > li").first().waitFor();
    assert.deepEqual([await page.locator("main").getByRole("button", { name: /Save|End|Delete|Set|Store/ }).count(), await page.locator("main select:enabled").count(), await page.locator("main input[type=password]").count()], [0, 0, 0], tab);
  }
});

test("settings, tools and sessions of every trick are shown as text", async () => {
  for (const width of [1280, 360]) {
    const context = await newBrowser({ viewport: { width, height: 800 } });
    const text = EVERY_TRICK;
    const at = "2026-01-01T00:00:00Z";
    const answers = {
      settings: { model: text, temperature: null, timezone: text, quiet_hours: null, heartbeat_every_seconds: null },
      tools: { items: [{ name: text, description: text, domain: "orchestrator", requirement: "never", permission: "default", parameters: { text }, source: `mcp:${text}` }], next_cursor: null, unavailable: [{ server: text, tool: text, reason: text }] },
      secrets: { items: [{ name: text, created_at: at, updated_at: at }], next_cursor: null },
      sessions: { items: [{ id: "s", created_at: at, last_used_at: at, expires_at: at, address: text, agent: text, current: false }], next_cursor: null },
    };
    for (const [name, json] of Object.entries(answers)) await context.route(new RegExp(`/api/${name}(\\?|$)`), (route) => route.fulfill({ json }));
    const page = await logInByToken(context, "/settings");
    await zone(page).waitFor();
    await soon(async () => assert.equal(await page.locator("#model").evaluate((select) => select.selectedOptions[0].textContent.startsWith("<img")), true));
    await check(page, "hostile settings");
    for (const tab of ["tools", "secrets", "sessions"]) {
      await page.goto(`${base}/settings/${tab}`);
      await page.locator(".rows").getByText("onerror=alert(1)").first().waitFor();
      if (tab === "tools") await page.locator(".tools summary").click();
      await check(page, `hostile ${tab}`);
    }
  }
});
