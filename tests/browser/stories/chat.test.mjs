// Chats, approvals and the inbox.

import assert from "node:assert/strict";
import { test } from "node:test";
import { base, check, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

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
  await soon(async () => assert.equal(await page.getByLabel("Message", { exact: true }).inputValue(), "a draft"));

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
  await page.locator("#message:focus").waitFor();
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
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.id), "confirm-text"));
  await check(page, "the question before a denial");
  await question.getByLabel(/^Reason/).fill("not now");
  await question.getByRole("button", { name: "Deny" }).click();
  await page.getByText("Then I write nothing.").first().waitFor({ timeout: 30_000 });
  await card(page).getByText("not now").waitFor();
  // A denial is no failure of the call.
  await page.reload();
  await page.locator(".entry.tool_use summary").getByText("denied").waitFor();
  await news.getByText(/^approval · .* · denied$/).waitFor();
});
