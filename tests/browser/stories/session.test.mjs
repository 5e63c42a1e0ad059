// Logging in and out, and sessions that end.

import assert from "node:assert/strict";
import { test } from "node:test";
import { base, check, codes, heading, logInByToken, newBrowser, token } from "../browser.mjs";

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
  assert.equal(await page.getByText("The dashboard did not start.").count(), 0);

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
  await second.getByText("You logged out in another tab.").waitFor();
  await heading(first, "Log in");
  assert.equal(await first.getByText("You logged out in another tab.").count(), 0);
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

test("a page whose scripts do not start says what it needs", async () => {
  const context = await newBrowser();
  await context.route("**/app/main.js", (route) => route.abort());
  const page = await context.newPage();
  await page.goto(base);
  await page.getByText("The dashboard did not start.").waitFor();
  await context.unroute("**/app/main.js");
  await page.reload();
  await heading(page, "Log in");
  assert.equal(await page.getByText("The dashboard did not start.").count(), 0);
});
