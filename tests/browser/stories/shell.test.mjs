// What is around every page: keys, the time zone, unknown paths.

import assert from "node:assert/strict";
import { test } from "node:test";
import { base, heading, logInByToken, newBrowser, soon } from "../browser.mjs";

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
  await soon(async () => assert.equal(await zone.inputValue(), "Europe/Oslo"));
  await zone.selectOption("UTC");
  await page.waitForURL(`${base}/?zone=UTC`);
  await page.reload();
  await soon(async () => assert.equal(await zone.inputValue(), "UTC"));
  await zone.selectOption("Europe/Oslo");
  await page.waitForURL(`${base}/`);
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
