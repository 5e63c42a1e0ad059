// The pages of admins, and what others see of them.

import assert from "node:assert/strict";
import { test } from "node:test";
import { EVERY_TRICK, base, check, given, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

const asAdmin = async (path) => logInByToken(await newBrowser(), path, given("GANTRY_TEST_ADMIN_TOKEN"));

test("an admin sees the system and what a user stores", async () => {
  const page = await asAdmin("/");
  await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Admin" }).click();
  await heading(page, "Admin");
  await page.getByText("free disk space").waitFor();
  await page.getByText(/\d of \d+ slots busy/).waitFor();
  await page.getByLabel("User", { exact: true }).fill("ada");
  await page.keyboard.press("Enter");
  await page.waitForURL(/user=ada/);
  await page.getByRole("meter", { name: "Stored by ada" }).waitFor();
  await check(page, "the system");
});

test("the audit log is filtered by its URL and read page by page", async () => {
  const page = await asAdmin("/admin/audit");
  const rows = page.getByRole("group", { name: "Audit" }).getByRole("row");
  await rows.nth(1).waitFor();
  await page.getByLabel("Action").fill("session.open");
  await page.keyboard.press("Enter");
  await page.waitForURL(/action=session\.open/);
  await page.getByLabel("User", { exact: true }).fill("root");
  await page.keyboard.press("Enter");
  await page.waitForURL(/user=root/);
  await page.waitForFunction(() => [...document.querySelectorAll("table.audit tbody tr")].every((row) => row.textContent.includes("session.open") && row.textContent.includes("root")));
  assert.ok((await rows.count()) > 1);
  await page.reload();
  await rows.nth(1).waitFor();
  await soon(async () => assert.equal(await page.getByLabel("Action").inputValue(), "session.open"));
  await check(page, "the audit log");
  await page.goto(`${base}/admin/audit?action=no.such`);
  await page.getByText("No entry matches these filters.").waitFor();
  await page.goto(`${base}/admin/audit?job=nothing`);
  await page.getByRole("alert").waitFor();
});

test("tools are disabled for everyone and for a user, and unknown names are pointed out", async () => {
  const page = await asAdmin("/admin/tools");
  await page.getByRole("checkbox", { name: "echo" }).check();
  await page.getByLabel("Other names, with spaces between").fill(`no_such_tool`);
  await page.getByText("No tool has this name now: no_such_tool").waitFor();
  await page.getByRole("button", { name: "Add a user" }).click();
  await page.getByLabel("Tools, with spaces between").fill("time typo_tool");
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("alert").getByText("has no user").waitFor();
  await page.getByLabel("User", { exact: true }).fill("<b>bob</b>");
  await page.getByText("No tool has this name now: typo_tool").waitFor();
  await check(page, "the policy of tools");
  await page.getByRole("button", { name: "Save" }).click();
  const question = page.getByRole("dialog", { name: "Disable these tools?" });
  await question.getByText("<b>bob</b>: time, typo_tool").waitFor();
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.textContent), "No, go back"));
  await question.getByRole("button", { name: "Save" }).click();
  await page.getByText("Saved.").first().waitFor();
  await page.reload();
  // A disabled tool is in no list of tools, but its name is still known as one.
  await page.getByLabel("Other names, with spaces between").waitFor();
  await soon(async () => assert.match(await page.getByLabel("Other names, with spaces between").inputValue(), /no_such_tool/));
  await soon(async () => assert.equal(await page.getByLabel("Tools, with spaces between").inputValue(), "time typo_tool"));

  // Another admin changes it meanwhile: nothing is overwritten unseen.
  await page.evaluate(() => fetch("/api/admin/tool-policy", {
    method: "PUT", headers: { "Content-Type": "application/json", "X-Gantry-Key": localStorage.getItem("gantry.key") },
    body: JSON.stringify({ disabled_tools: ["json"] }),
  }));
  await page.getByRole("button", { name: "Save" }).click();
  await page.getByRole("dialog").getByRole("button", { name: "Save" }).click();
  await page.getByText("Another admin has changed the policy meanwhile.").waitFor();
  await page.evaluate(() => fetch("/api/admin/tool-policy", {
    method: "PUT", headers: { "Content-Type": "application/json", "X-Gantry-Key": localStorage.getItem("gantry.key") }, body: "{}",
  }));
});

test("a changed definition of an MCP server is compared and approved by its digest", async () => {
  const context = await newBrowser();
  const digest = "cd".repeat(32);
  const definition = (description) => ({ name: "search", description, inputSchema: { type: "object" } });
  let status = "withheld";
  const tool = () => ({ name: "search", status, digest, first_seen_at: "2026-01-01T00:00:00Z", ...(status === "withheld" && { definition: definition(`Searches.\n${EVERY_TRICK}`), approved_definition: definition("Searches.") }) });
  await context.route("**/api/admin/mcp", (route) => route.fulfill({ json: { items: [
    { name: "tracker", transport: "http", address: "http://tracker.example/", requirement: "always", connections: 1, tools: [tool()] },
    { name: EVERY_TRICK.slice(0, 60), transport: "stdio", address: "image:1", requirement: "never", connections: 0, error: EVERY_TRICK, stderr: EVERY_TRICK, tools: [] },
  ], next_cursor: null } }));
  let sent = null;
  await context.route("**/api/admin/mcp/tracker/approve", async (route) => {
    sent = route.request().postDataJSON();
    status = "approved";
    await route.fulfill({ json: tool() });
  });
  const page = await logInByToken(context, "/admin/mcp", given("GANTRY_TEST_ADMIN_TOKEN"));
  await page.getByRole("group", { name: "What has changed in search" }).locator("tr.added").first().waitFor();
  await page.locator("mark").getByText("U+202E").first().waitFor();
  await check(page, "a changed definition");
  await page.getByRole("button", { name: /^Approve the change.*search/ }).click();
  const question = page.getByRole("dialog", { name: "Approve the changed definition of search?" });
  await question.waitFor();
  await soon(async () => assert.equal(await page.evaluate(() => document.activeElement.textContent), "No, go back"));
  await question.getByRole("button", { name: "Approve the change" }).click();
  await page.getByText("approved", { exact: true }).first().waitFor();
  assert.deepEqual(sent, { tool: "search", digest });
});

test("others have no entry to the pages of admins, and are told why", async () => {
  for (const as of [undefined, given("GANTRY_TEST_VIEWER_TOKEN")]) {
    const page = await logInByToken(await newBrowser(), "/admin/audit", as);
    await heading(page, "Admin");
    await page.getByText("This page is for admins only.").waitFor();
    assert.equal(await page.getByRole("navigation", { name: "Pages" }).getByRole("link", { name: "Admin" }).count(), 0);
    // The server decides, whatever the page shows.
    assert.equal(await page.evaluate(async () => (await fetch("/api/audit")).status), 403);
  }
});
