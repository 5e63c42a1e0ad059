// Stories of the dashboard in a real browser, against a running server.
//
//     GANTRY_TEST_URL=http://127.0.0.1:PORT GANTRY_TEST_TOKEN=… GANTRY_TEST_CODES=…,… node --test stories.test.mjs
//
// GANTRY_TEST_PID_FILE has the process of the server, which is started again when it is killed. The token is a user's, and the codes are two one-time codes of the same user (`gantry dashboard`). GANTRY_TEST_CHROMIUM names the browser.
// Every story also holds that no page breaks its policy, has an error in its console, or asks another server for anything.

import assert from "node:assert/strict";
import { readFileSync } from "node:fs";
import { createRequire } from "node:module";
import { after, afterEach, before, test } from "node:test";

// The packages may be installed elsewhere.
const require = createRequire(`${process.env.BROWSER_NODE_DIRECTORY ?? import.meta.dirname}/package.json`);
const { chromium } = require("playwright-core");
const AXE = readFileSync(require.resolve("axe-core/axe.min.js"), "utf8");
const RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "wcag22aa"];

const given = (name) => process.env[name] || assert.fail(`${name} is not set`);
const base = given("GANTRY_TEST_URL").replace(/\/$/, "");
const codes = given("GANTRY_TEST_CODES").split(",");
const token = given("GANTRY_TEST_TOKEN");
const FLAGS = ["--headless", "--no-sandbox", "--disable-gpu", "--disable-quic", "--no-first-run", "--disable-background-networking",
  "--disable-component-update", "--disable-sync"];

let browser;
let contexts = [];
/** What no page may do, in words. */
let faults = [];

before(async () => {
  browser = await chromium.launch({ executablePath: process.env.GANTRY_TEST_CHROMIUM ?? "/usr/bin/chromium", args: FLAGS });
});
after(() => browser?.close());
afterEach(async () => {
  await Promise.all(contexts.map((context) => context.close()));
  contexts = [];
  const seen = faults;
  faults = [];
  assert.deepEqual(seen, []);
});

/** Another browser, without a session. */
async function newBrowser(options = {}) {
  const context = await browser.newContext({ viewport: { width: 1280, height: 800 }, ...options });
  context.setDefaultTimeout(10_000);
  contexts.push(context);
  await context.exposeBinding("reportFault", (_, text) => void faults.push(text));
  await context.addInitScript(() => {
    addEventListener("securitypolicyviolation", ({ violatedDirective, blockedURI, sample }) =>
      window.reportFault(`policy: ${violatedDirective} ${blockedURI} ${sample}`));
  });
  context.on("request", (request) => {
    const url = new URL(request.url());
    if (url.protocol !== "blob:" && url.protocol !== "data:" && url.origin !== base) faults.push(`request to ${url}`);
  });
  context.on("weberror", (error) => faults.push(`error: ${error.error()}`));
  context.on("dialog", (dialog) => (faults.push(`dialog: ${dialog.message()}`), dialog.dismiss()));
  context.on("console", (message) => {
    // The browser itself reports refused requests, such as that of a used link.
    const isRefusal = message.text().startsWith("Failed to load resource");
    if (message.type() === "error" && !isRefusal) faults.push(`console: ${message.text()}`);
  });
  return context;
}

const heading = (page, name) => page.getByRole("heading", { level: 1, name }).waitFor();

/** A page of a new session, at a path. */
async function logInByToken(context, path = "/") {
  const page = await context.newPage();
  await page.goto(base + path);
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("button", { name: "Log out" }).waitFor();
  return page;
}

test("a link logs in once, and leaves nothing behind", async () => {
  const context = await newBrowser();
  const page = await context.newPage();
  await page.goto(`${base}/login#code=${codes[0]}`);
  await heading(page, /^(Now|No jobs)/);
  assert.equal(page.url(), `${base}/`);
  const seen = await page.evaluate(() => ({ cookie: document.cookie, key: localStorage.getItem("gantry.key"), left: history.length }));
  assert.equal(seen.cookie, "", "no script can read the cookie");
  assert.match(seen.key, /^[\w-]{20,}$/);
  const [cookie] = await context.cookies();
  assert.deepEqual([cookie.httpOnly, cookie.sameSite, cookie.path], [true, "Strict", "/"]);
  await page.getByText("live", { exact: true }).waitFor();

  const other = await (await newBrowser()).newPage();
  await other.goto(`${base}/login#code=${codes[0]}`);
  await other.getByRole("alert").getByText("This link was used or has expired.").waitFor();
  assert.equal(other.url(), `${base}/login`, "the code is out of the address bar");
  await page.reload();
  await heading(page, /^(Now|No jobs)/);
});

test("a second link that is opened in the same tab is used as well", async () => {
  const page = await (await newBrowser()).newPage();
  await page.goto(`${base}/login#code=nothing`);
  await page.getByRole("alert").waitFor();
  await page.goto(`${base}/login#code=${codes[1]}`);
  await page.getByRole("button", { name: "Log out" }).waitFor();
});

test("a token that is pasted logs in where the visitor is, and is kept nowhere", async () => {
  const context = await newBrowser();
  const page = await context.newPage();
  await page.goto(`${base}/`);
  await heading(page, "Log in");
  await page.getByText("gantry dashboard", { exact: true }).first().waitFor();
  await page.getByLabel("Or paste a token").fill("not a token");
  await page.getByRole("button", { name: "Log in" }).click();
  await page.getByRole("alert").getByText("This token is invalid").waitFor();
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  await heading(page, "Now");
  const stored = await page.evaluate(() => JSON.stringify([{ ...localStorage }, { ...sessionStorage }]));
  const cookies = JSON.stringify(await context.cookies());
  assert.ok(!stored.includes(token) && !cookies.includes(token));
});

test("logging out in one tab tells the others", async () => {
  const context = await newBrowser();
  const first = await logInByToken(context);
  const second = await context.newPage();
  await second.goto(base);
  await heading(second, "Now");
  await second.getByText("live", { exact: true }).waitFor();
  await first.getByRole("button", { name: "Log out" }).click();
  await heading(second, "Log in");
  await heading(first, "Log in");
  assert.deepEqual(await context.cookies(), []);
  await second.reload();
  await heading(second, "Log in");
  // The other way round: a login in one tab lets the other one in.
  await first.getByLabel("Or paste a token").fill(token);
  await first.getByRole("button", { name: "Log in" }).click();
  await heading(first, "Now");
  await heading(second, "Now");
});

test("a session that ends leaves its page and asks to log in over it", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context);
  await heading(page, "Now");
  await page.getByText("live", { exact: true }).waitFor();
  // Another tool of the same browser ends the session; the stream notices with its next comment, the page with its next request.
  const ended = await page.evaluate(async () => {
    const answer = await fetch("/api/session", { method: "DELETE", headers: { "X-Gantry-Key": localStorage.getItem("gantry.key") } });
    return answer.status;
  });
  assert.equal(ended, 204);
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await dialog.waitFor({ timeout: 40_000 });
  await page.keyboard.press("Escape");
  await page.keyboard.press("Escape");
  await dialog.waitFor();
  await check(page, "the login over the page");
  await dialog.getByLabel("Or paste a token").fill(token);
  await dialog.getByRole("button", { name: "Log in" }).click();
  await dialog.waitFor({ state: "hidden" });
  await page.getByText("live", { exact: true }).waitFor();
});

test("keys open and close their list, and can be switched off", async () => {
  const page = await logInByToken(await newBrowser());
  const list = page.getByRole("dialog", { name: "Keyboard" });
  await page.keyboard.press("?");
  await list.getByLabel("Use single keys").uncheck();
  await page.keyboard.press("Escape");
  await list.waitFor({ state: "hidden" });
  await page.keyboard.press("?");
  await page.getByRole("button", { name: "Keyboard" }).click();
  await list.getByLabel("Use single keys").check();
  await list.getByRole("button", { name: "Close" }).click();
  await list.waitFor({ state: "hidden" });
  await page.keyboard.press("?");
  await list.waitFor();
});

test("times are shown in the chosen zone, which the URL names", async () => {
  const page = await logInByToken(await newBrowser({ timezoneId: "Europe/Oslo" }));
  const zone = page.getByLabel("Time zone");
  assert.equal(await zone.inputValue(), "Europe/Oslo");
  await zone.selectOption("UTC");
  await page.waitForURL(`${base}/?zone=UTC`);
  await page.reload();
  assert.equal(await zone.inputValue(), "UTC");
  await zone.selectOption("Europe/Oslo");
  await page.waitForURL(`${base}/`);
});

/** Starts a job by the form and returns its id. */
async function startJob(page, prompt) {
  await page.goto(`${base}/jobs/new`);
  await page.getByLabel("What should the agent do?").fill(prompt);
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
  return page.url().split("/").at(-1);
}

test("the first job is started where there is none, and a draft outlives its session", async () => {
  const page = await logInByToken(await newBrowser());
  const field = page.getByLabel("What should the agent do?");
  await page.getByRole("button", { name: "Use the example" }).click();
  assert.match(await field.inputValue(), /median/);
  await check(page, "the first visit");
  await field.fill("run: echo first");
  await page.getByRole("link", { name: "More settings" }).click();
  await heading(page, "New job");
  assert.equal(await field.inputValue(), "run: echo first");
  await page.getByText("More settings").click();
  await page.getByLabel("Labels").fill("note=a b, c");
  await check(page, "the form with all fields");
  await page.evaluate(() => fetch("/api/session", { method: "DELETE", headers: { "X-Gantry-Key": localStorage.getItem("gantry.key") } }));
  await page.reload();
  await page.getByLabel("Or paste a token").fill(token);
  await page.getByRole("button", { name: "Log in" }).click();
  assert.equal(await field.inputValue(), "run: echo first");
  // A value that a closed part of the form hides is shown with what is wrong.
  await page.getByText("More settings").click();
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
  assert.equal(await page.getByLabel("Labels").inputValue(), "note=a b, c");
  await page.getByRole("button", { name: "Start the job" }).click();
  await page.waitForURL(/\/jobs\/[0-9a-f-]{36}$/);
});

const state = (page, word) => page.locator(".state").filter({ hasText: word }).first().waitFor({ timeout: 60_000 });

test("a job is started, watched, prompted and cancelled", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "count slowly");
  await state(page, "running");
  const rows = page.getByRole("list", { name: "Activity" });
  await rows.getByRole("button", { name: /shell/ }).first().waitFor({ timeout: 30_000 });
  await page.getByLabel("Prompt", { exact: true }).fill("count by ten");
  await page.keyboard.press("Control+Enter");
  await page.getByRole("list", { name: "Prompts" }).getByText("read", { exact: false }).waitFor({ timeout: 30_000 });
  await rows.getByRole("button", { name: /count by ten/ }).waitFor({ timeout: 30_000 });
  await page.getByRole("button", { name: "Cancel", exact: true }).click();
  const question = page.getByRole("dialog", { name: "Cancel this job?" });
  await question.waitFor();
  const focused = () => page.evaluate(() => document.activeElement.textContent);
  assert.equal(await focused(), "No, go back");
  await page.keyboard.press("Escape");
  await question.waitFor({ state: "hidden" });
  assert.equal(await focused(), "Cancel");
  await page.keyboard.press("Enter");
  await question.waitFor();
  await question.getByRole("button", { name: "Cancel", exact: true }).click();
  await state(page, "cancelled");
  await page.getByText(/Events 1 to \d+: complete\./).waitFor();
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
  await page.getByRole("dialog").getByRole("button", { name: "Cancel", exact: true }).click();
  await state(page, "cancelled");
  await page.getByText(/Events 1 to \d+: complete\./).waitFor();
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

/** Text that would be markup, change its direction, move a cursor, or break the layout. */
const EVERY_TRICK = `<img src=x onerror=alert(1)><svg onload=alert(2)><a href="javascript:alert(3)">x</a> [x](javascript:alert(4)) \u202Egnp.exe\u202C \u001b[31mred\u001b[2J \u0000 ${"W".repeat(5_000)}`;

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
  assert.match(await page.getByLabel("What should the agent do?").inputValue(), /^run: printf/);
});

test("jobs are filtered by what the URL says, and cancelled together", async () => {
  const page = await logInByToken(await newBrowser());
  await startJob(page, "count slowly");
  await startJob(page, "count slowly");
  await page.goto(`${base}/jobs?state=in_progress,pending`);
  await heading(page, "Jobs");
  await page.getByRole("checkbox", { name: "Select count slowly" }).nth(1).waitFor();
  assert.equal(await page.getByLabel("State").evaluate((select) => select.selectedOptions[0].textContent), "not finished");
  await page.getByRole("checkbox", { name: "Select count slowly" }).first().check();
  await page.locator("h1").focus();
  for (const key of ["j", "j", "x", "c"]) await page.keyboard.press(key);
  await page.getByRole("dialog").getByRole("button", { name: "Cancel 2 selected" }).click();
  await page.locator(".rows .state.cancelled").nth(1).waitFor({ timeout: 60_000 });
  await page.getByLabel("State").selectOption("cancelled");
  await page.waitForURL(/state=cancelled/);
  await page.getByRole("link", { name: "count slowly" }).nth(1).waitFor({ timeout: 60_000 });
  // Single keys do nothing in a field.
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

/** Sends a message to the thread in view. */
async function send(page, text) {
  await page.getByLabel("Message", { exact: true }).fill(text);
  await page.keyboard.press("Control+Enter");
}

const card = (page) => page.getByRole("article", { name: "Approval: memory_write" }).last();
const HOSTILE = "<img src=x onerror=alert(1)>";

test("a chat asks for approval, which is given in the inbox", async () => {
  const context = await newBrowser();
  let isSent = () => {};
  const sent = new Promise((resolve) => (isSent = resolve));
  // The thread is created after its stream was not found, and before it is read.
  await context.route(/\/api\/chat\/threads\/main\?/, async (route) => (await sent, route.continue()));
  const page = await logInByToken(context, "/chat");
  await heading(page, "Chat");
  const answered = page.waitForResponse((answer) => answer.url().endsWith("/api/chat/send"));
  await send(page, `remember ${HOSTILE} milk`);
  await answered;
  isSent();
  const entries = page.getByRole("group", { name: "Entries of the thread" });
  await card(entries).getByText(`${HOSTILE} milk`).waitFor({ timeout: 30_000 });
  await page.getByRole("region", { name: "Threads" }).getByText("waits for approval").waitFor();
  await check(page, "a chat that waits for approval");
  await page.getByLabel("Message", { exact: true }).fill("a draft");

  const inbox = await context.newPage();
  await inbox.goto(`${base}/inbox`);
  await inbox.getByRole("link", { name: "Inbox (1)" }).waitFor();
  await inbox.waitForFunction(() => document.title.startsWith("(1) "));
  await card(inbox).getByText("This call runs, with exactly these parameters.").waitFor();
  await check(inbox, "the inbox with a call");
  await inbox.locator("h1").focus();
  await inbox.keyboard.press("j");
  await inbox.locator("[data-choice=once]:not([aria-disabled])").waitFor();
  await inbox.keyboard.press("a");
  await card(inbox).getByText("approved", { exact: true }).waitFor();
  await inbox.getByRole("link", { name: "Inbox", exact: true }).waitFor();

  await entries.getByText("in your memory has it now").waitFor({ timeout: 30_000 });
  await page.reload();
  await entries.getByText("in your memory has it now").waitFor();
  assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "a draft");

  await inbox.goto(`${base}/inbox?tab=resolved`);
  await inbox.getByRole("link", { name: "memory_write" }).first().click();
  await heading(inbox, "Approval");
  await card(inbox).getByText("approved", { exact: true }).waitFor();
  await check(inbox, "a gate that was approved");
});

test("a call is denied in its chat, with a reason, and the news of it is read", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context, "/chat");
  await page.getByRole("button", { name: "New thread" }).click();
  await page.waitForURL(/\/chat\/[0-9a-f-]{36}$/);
  await send(page, "remember bread");
  const news = await context.newPage();
  await news.goto(`${base}/inbox?tab=news`);
  await news.getByRole("link", { name: "Approval required: memory_write" }).first().waitFor({ timeout: 30_000 });
  await news.getByText("unread", { exact: true }).first().waitFor();
  await check(news, "news");
  await news.getByRole("button", { name: "Mark all as read" }).click();
  await news.getByText("unread", { exact: true }).first().waitFor({ state: "detached" });
  await card(page).getByRole("button", { name: "Deny" }).click();
  const question = page.getByRole("dialog", { name: "Deny this call?" });
  await question.waitFor();
  assert.equal(await page.evaluate(() => document.activeElement.id), "confirm-text");
  await check(page, "the question before a denial");
  await question.getByLabel(/^Reason/).fill("not now");
  await question.getByRole("button", { name: "Deny" }).click();
  await page.getByText("Then I write nothing.").first().waitFor({ timeout: 30_000 });
  await card(page).getByText("not now").waitFor();
});

test("an unknown path is a page that leads back", async () => {
  const page = await logInByToken(await newBrowser(), "/no/such%20page?x=1");
  await heading(page, "Page not found");
  await page.getByRole("link", { name: "Go to what runs now" }).click();
  await heading(page, "Now");
  await page.waitForFunction(() => document.activeElement.tagName === "H1");
  await page.goBack();
  await heading(page, "Page not found");
});

const PAGES = [["/login", "Log in"], ["/", "Now"], ["/jobs", "Jobs"], ["/jobs/new", "New job"],
  ["/inbox", "Inbox"], ["/inbox?tab=resolved", "Inbox"], ["/inbox?tab=news", "Inbox"], ["/chat", "Chat"], ["/nothing", "Page not found"]];
for (const colorScheme of ["light", "dark"]) {
  for (const width of [1280, 360]) {
    test(`pages are accessible: ${colorScheme}, ${width} px`, async () => {
      const context = await newBrowser({ colorScheme, viewport: { width, height: 800 } });
      const page = await logInByToken(context);
      for (const [path, name] of PAGES) {
        await page.goto(base + path);
        await heading(page, name);
        await check(page, path);
      }
      await page.goto(base);
      await page.getByRole("button", { name: "Keyboard" }).click();
      await page.getByRole("dialog").waitFor();
      await check(page, "the list of keys");
    });
  }
}

/** No rule of WCAG 2.2 AA is broken, and nothing is wider than the window. */
async function check(page, where) {
  await page.evaluate(AXE);
  const violations = await page.evaluate(async (rules) => {
    const { violations } = await window.axe.run(document, { runOnly: { type: "tag", values: rules } });
    return violations.map(({ id, nodes }) => `${id}: ${nodes.map(({ html }) => html).join(" ")}`);
  }, RULES);
  assert.deepEqual(violations, [], where);
  const excess = await page.evaluate(() => document.documentElement.scrollWidth - innerWidth);
  assert.ok(excess <= 0, `${where} scrolls to the side by ${excess} px`);
}
