// Memory: documents are written, changed in two tabs, searched and deleted, and nothing that was typed is lost.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVERY_TRICK, base, check, focused, given, heading, logInByToken, newBrowser, soon, token } from "../browser.mjs";

/** Sends a request of the API from a page. */
const api = (page, method, path, content) => page.evaluate(async ([method, path, content]) => {
  const headers = { "X-Gantry-Key": localStorage.getItem("gantry.key"), ...(content !== undefined && { "Content-Type": "application/json" }) };
  const answer = await fetch(path, { method, headers, body: content === undefined ? undefined : JSON.stringify({ content }) });
  return answer.status;
}, [method, path, content]);

const urlOf = (path) => `/api/memory?${new URLSearchParams({ path })}`;
const pageOf = (path, query = "") => `${base}/memory/${path.split("/").map(encodeURIComponent).join("/")}${query}`;
const body = (page) => page.getByRole("group", { name: "Text", exact: true });
const field = (page) => page.getByRole("textbox", { name: /^(Text|Yours)$/ });

test("a document is created, and what is typed outlives a reload and its session", async () => {
  const context = await newBrowser();
  const page = await logInByToken(context, "/memory");
  await heading(page, "Memory");
  await api(page, "DELETE", urlOf("story/first.md"));
  await page.reload();
  await page.getByRole("link", { name: "New document" }).first().click();
  await page.getByLabel("Path").fill("story/first.md");
  await field(page).fill("The team meets on Mondays.");
  await check(page, "the form of a new document");
  await page.reload();
  await soon(async () => assert.equal(await field(page).inputValue(), "The team meets on Mondays."));
  await api(page, "DELETE", "/api/session");
  // The dialog may be over the page already, after another request.
  await page.getByRole("button", { name: "Save" }).dispatchEvent("click");
  const dialog = page.getByRole("dialog", { name: "Your session has ended" });
  await dialog.getByLabel("Or paste a token").fill(token);
  await dialog.getByRole("button", { name: "Log in" }).click();
  await dialog.waitFor({ state: "hidden" });
  await soon(async () => assert.equal(await page.getByLabel("Path").inputValue(), "story/first.md"));
  await field(page).press("Control+Enter");
  await page.waitForURL(pageOf("story/first.md"));
  await body(page).getByText("The team meets on Mondays.").waitFor();
  await page.getByRole("region", { name: "Documents" }).getByRole("link", { name: "first.md" }).waitFor();
  await soon(async () => assert.equal(await focused(page), "story/first.md", "the form is gone: the focus is on what has opened"));
  await check(page, "a document");
  // A path that is taken replaces nothing.
  await page.goto(`${base}/memory?show=new&path=story/first.md`);
  await field(page).fill("another text");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("alert").getByText("A document has this path already.").waitFor();
  await soon(async () => assert.equal(await field(page).inputValue(), "another text"));
  await page.getByLabel("Path").fill("story/../x");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("alert").getByText(/^path: /).waitFor();
  await check(page, "a form with a wrong path");
  await page.getByRole("button", { name: "Discard the draft" }).click();
  await page.getByRole("link", { name: "New document" }).first().click();
  await soon(async () => assert.equal(await field(page).inputValue(), ""));
});

test("a document that two tabs change shows both versions, and none is lost", async () => {
  const context = await newBrowser();
  const first = await logInByToken(context, "/memory");
  await api(first, "DELETE", urlOf("story/shared.md"));
  assert.equal(await api(first, "PUT", urlOf("story/shared.md"), "the beginning"), 201);
  await first.goto(pageOf("story/shared.md", "?show=edit"));
  const second = await context.newPage();
  await second.goto(pageOf("story/shared.md", "?show=edit"));
  await field(first).fill("from the first tab");
  await field(second).fill("from the second tab");
  await second.getByRole("button", { name: "Save" }).click();
  await body(second).getByText("from the second tab").waitFor();
  await first.getByRole("button", { name: "Save" }).click();
  await first.getByRole("alert").getByText("version 2 is stored, and your draft began with version 1").waitFor();
  await first.getByRole("group", { name: "Stored: version 2" }).getByText("from the second tab").waitFor();
  await soon(async () => assert.equal(await field(first).inputValue(), "from the first tab"));
  await check(first, "two versions");
  // A key that saves does not replace the other version.
  await field(first).press("Control+Enter");
  await first.reload();
  await first.getByRole("group", { name: "Stored: version 2" }).waitFor();
  await soon(async () => assert.equal(await field(first).inputValue(), "from the first tab"));
  await first.getByRole("button", { name: "Save mine over version 2" }).click();
  await body(first).getByText("from the first tab").waitFor();

  // The document is deleted while it is edited.
  await first.getByRole("link", { name: "Edit", exact: true }).click();
  await field(first).fill("typed before the deletion");
  assert.equal(await api(second, "DELETE", urlOf("story/shared.md")), 204);
  await first.getByRole("button", { name: "Save" }).click();
  await first.getByRole("alert").getByText("The document was deleted meanwhile.").waitFor();
  await first.getByRole("button", { name: "Save mine as a new document" }).click();
  await body(first).getByText("typed before the deletion").waitFor();

  // A draft that is left is shown where its document is read, and can be discarded.
  await first.getByRole("link", { name: "Edit", exact: true }).click();
  await field(first).fill("not saved");
  await first.getByRole("link", { name: "Text", exact: true }).click();
  await first.getByRole("link", { name: "Go on with it" }).click();
  await soon(async () => assert.equal(await field(first).inputValue(), "not saved"));
  await first.getByRole("button", { name: "Discard the draft" }).click();
  await first.getByRole("dialog", { name: "Discard your draft?" }).waitFor();
  await soon(async () => assert.equal(await focused(first), "No, go back"));
  await first.getByRole("dialog").getByRole("button", { name: "Discard the draft" }).click();
  await body(first).getByText("typed before the deletion").waitFor();
  await first.getByText("You have a draft").waitFor({ state: "detached" });
});

test("a version is restored, and a document is found and deleted by keyboard", async () => {
  const page = await logInByToken(await newBrowser(), "/memory");
  await api(page, "DELETE", urlOf("story/plants.md"));
  await api(page, "PUT", urlOf("story/plants.md"), "Water the plants.");
  await page.goto(pageOf("story/plants.md"));
  await api(page, "PUT", urlOf("story/plants.md"), "Water the plants.\nAnd the zyxomma fern.");
  await page.reload();
  await body(page).getByText("Water the plants.\nAnd the zyxomma fern.").waitFor();
  await page.getByRole("link", { name: "Versions" }).click();
  await check(page, "versions");
  await page.getByRole("link", { name: "version 1", exact: true }).click();
  await page.getByText("This is version 1. The current one is version 2.").waitFor();
  await page.getByRole("button", { name: "Restore this version" }).click();
  await page.waitForURL(pageOf("story/plants.md"));
  await page.getByText("version 3").waitFor();
  await soon(async () => assert.equal(await body(page).textContent(), "Water the plants."));
  await api(page, "PUT", urlOf("story/plants.md"), "Water the zyxomma fern.");

  await page.goto(`${base}/memory`);
  await page.getByRole("link", { name: "plants.md" }).waitFor();
  await page.locator("h1").focus();
  await page.keyboard.press("/");
  await page.keyboard.type("zyxomma");
  await page.keyboard.press("Enter");
  await page.waitForURL(/q=zyxomma/);
  await page.getByRole("link", { name: "story/plants.md" }).waitFor();
  await check(page, "a search in memory");
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await page.keyboard.press("Enter");
  await body(page).getByText("Water the zyxomma fern.").waitFor();
  await soon(async () => assert.equal(await focused(page), "story/plants.md"));
  const question = page.getByRole("dialog", { name: "Delete this document?" });
  await page.getByRole("button", { name: "Delete" }).press("Enter");
  await question.waitFor();
  await soon(async () => assert.equal(await focused(page), "No, go back"));
  await page.keyboard.press("Tab");
  await page.keyboard.press("Enter");
  await page.waitForURL(`${base}/memory`);
  await page.getByRole("region", { name: "Documents" }).getByRole("link").first().waitFor();
  assert.equal(await page.getByRole("link", { name: "plants.md" }).count(), 0);
  await soon(async () => assert.equal(await focused(page), "Memory"));
  await page.goto(pageOf("story/plants.md"));
  await page.getByText("There is no document story/plants.md.").waitFor();
  // A closed directory hides its documents from the keys as well.
  await page.keyboard.press("Escape");
  await page.waitForURL(`${base}/memory`);
  await page.getByRole("region", { name: "Documents" }).getByText("story").click();
  await page.locator("h1").focus();
  const rows = await page.locator(".tree > ul > li").count();
  for (let step = 0; step < rows + 3; step += 1) await page.keyboard.press("j");
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.closest("details:not([open]) > ul")), null));
});

test("documents of every trick are shown as text", async () => {
  for (const width of [1280, 360]) {
    const page = await logInByToken(await newBrowser({ viewport: { width, height: 800 } }), "/memory");
    const path = `story/<img src=x onerror=alert(1)>/[x](javascript:alert(4)) #?%2e ${"W".repeat(150)}.md`;
    const text = EVERY_TRICK.replaceAll("\u0000", "");
    const status = await api(page, "PUT", urlOf(path), text);
    assert.ok(status === 200 || status === 201, String(status));
    await page.goto(pageOf(path));
    await body(page).getByText("<img src=x onerror=alert(1)>").waitFor();
    await body(page).getByText("U+202E").waitFor();
    await check(page, "a hostile document");
    await page.goto(pageOf(path, "?show=edit"));
    await soon(async () => assert.equal(await field(page).inputValue(), text));
    await page.goto(`${base}/memory?q=onerror`);
    await page.getByRole("link", { name: "onerror" }).first().waitFor();
    await check(page, "a hostile search");
    // On a narrow screen the document takes the place of the tree.
    await page.getByRole("link", { name: "onerror" }).first().click();
    await body(page).waitFor();
    await soon(async () => assert.equal(await focused(page), path));
    assert.equal(await page.getByRole("region", { name: "Documents" }).isVisible(), width > 360);
    await page.goto(`${base}/memory/${encodeURIComponent("<svg onload=alert(2)>")}?show=${encodeURIComponent(EVERY_TRICK.slice(0, 200))}&version=x`);
    await page.getByText("There is no document <svg onload=alert(2)>.").waitFor();
    assert.equal(await api(page, "DELETE", urlOf(path)), 204);
  }
});

test("a viewer reads documents and has no control that changes them", async () => {
  const context = await newBrowser();
  const document = { path: "notes.md", content: "for eyes", version: 2, updated_at: "2026-01-01T00:00:00Z" };
  await context.route(/\/api\/memory\?/, (route) => route.fulfill({ json: document }));
  await context.route(/\/api\/memory\/tree/, (route) => route.fulfill({ json: { items: [{ path: "notes.md", version: 2, bytes: 8, updated_at: "2026-01-01T00:00:00Z" }], next_cursor: null } }));
  const page = await logInByToken(context, "/memory", given("GANTRY_TEST_VIEWER_TOKEN"));
  await page.getByText("Your role is viewer: you cannot change documents.").waitFor();
  await page.getByRole("link", { name: "notes.md" }).click();
  await body(page).getByText("for eyes").waitFor();
  for (const query of ["", "?show=edit", "?show=versions", "?version=1"]) {
    await page.goto(pageOf("notes.md", query));
    await page.getByRole("heading", { level: 2 }).waitFor();
    const main = page.locator("main");
    assert.deepEqual([await main.locator("textarea").count(), await main.getByRole("button", { name: /Delete|Save|Restore|Add/ }).count(), await page.getByRole("link", { name: /Edit|New document/ }).count()], [0, 0, 0], query);
  }
  await page.goto(`${base}/memory?show=new`);
  await page.getByText("Choose a document.").waitFor();
});
