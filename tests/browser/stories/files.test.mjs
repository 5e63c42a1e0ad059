// The files of a job and what it changed in them: found by name, in windows, as text or image and never rendered; changes one by one.

import assert from "node:assert/strict";
import { test } from "node:test";
import { base, check, logInByToken, newBrowser, soon, startJob, state } from "../browser.mjs";

/** A PNG of one pixel. */
const PNG = "iVBORw0KGgoAAAANSUhEUgAAAAEAAAABCAYAAAAfFcSJAAAADUlEQVR42mNk+M9QDwADhgGAWjR9awAAAABJRU5ErkJggg==";
const SVG = "<svg xmlns='http://www.w3.org/2000/svg' onload='alert(1)'><script>alert(2)</script></svg>";

let page;
let id;
test("a job writes many kinds of files", async () => {
  page = await logInByToken(await newBrowser());
  id = await startJob(page, `run: mkdir -p src/deep '<b>'; echo hi > '<b>/parser.txt'; seq 1000 > src/deep/Parser.txt; seq 450 > long.txt; echo ${PNG} | base64 -d > dot.png; `
    + `printf "%s" "${SVG.replaceAll('"', '\\"')}" > image.svg; printf '%%PDF-1.7 x' > paper.pdf; printf 'a\\0b' > data.bin; touch empty; ln -s /etc/passwd link`);
  await state(page, "completed");
});

/** A page of the job, by another login: each story has its own browser. */
async function open(path) {
  const opened = await logInByToken(await newBrowser(), "/");
  await opened.goto(`${base}/jobs/${id}${path}`);
  return opened;
}

test("files are found by name, below a directory", async () => {
  const page = await open("/files");
  await page.getByRole("link", { name: "src/" }).waitFor();
  // What the job has changed is marked, also a directory with such files.
  await page.getByRole("row", { name: /src\// }).getByRole("img", { name: "changed by the job" }).waitFor();
  await page.locator("h1").focus();
  await page.keyboard.press("/");
  await page.keyboard.type("PARSER");
  await page.keyboard.press("Enter");
  await page.waitForURL(/find=PARSER/);
  await page.getByRole("link", { name: "<b>/parser.txt" }).waitFor();
  await check(page, "names that were found");
  await page.getByRole("link", { name: "src/deep/Parser.txt" }).click();
  await page.getByRole("group", { name: "src/deep/Parser.txt" }).getByText("1", { exact: true }).first().waitFor();
  await page.goto(`${base}/jobs/${id}/files?find=nothing`);
  await page.getByText("No name has this text in it.").waitFor();
});

test("a line has an address", async () => {
  const page = await open("/files/src/deep/Parser.txt#L700");
  const named = page.locator(".source.named");
  await named.getByText("700").first().waitFor();
  await check(page, "a line of a file");
  await page.locator(".source > a.number").filter({ hasText: /^705$/ }).click();
  await page.waitForURL(/#L705$/);
  await named.getByText("705").first().waitFor();
});

test("images are shown; SVG is source, PDF and other bytes are downloads", async () => {
  const page = await open("/files/dot.png");
  const source = await page.getByRole("img", { name: "dot.png" }).getAttribute("src");
  assert.match(source, /^blob:/);
  await check(page, "an image");
  await page.goto(`${base}/jobs/${id}/files/image.svg`);
  await page.getByRole("group", { name: "image.svg" }).getByText("alert(2)").waitFor();
  for (const [name, text] of [["paper.pdf", "This is not a text file."], ["data.bin", "This is not a text file."], ["empty", "This file is empty."]]) {
    await page.goto(`${base}/jobs/${id}/files/${name}`);
    await page.getByText(text).waitFor();
    await soon(async () => assert.equal(await page.getByRole("link", { name: "Download", exact: true }).getAttribute("download"), name));
  }
  await page.goto(`${base}/jobs/${id}/files/link`);
  await page.getByText("links are not followed").waitFor();
});

test("changed files are gone through by keys, and looked at once", async () => {
  const page = await open("/changes");
  await page.getByText("9 files").waitFor();
  const tree = page.getByRole("navigation", { name: "Tree" });
  await tree.getByRole("link", { name: "long.txt" }).waitFor();
  await check(page, "changes");
  await page.locator("h1").focus();
  await page.keyboard.press("j");
  await page.locator(".place.current summary:focus").getByText("<b>/parser.txt").waitFor();
  await page.keyboard.press("v");
  await page.getByText("1 viewed").waitFor();
  await soon(async () => assert.equal(await page.locator(".place.current details").getAttribute("open"), null));
  await page.keyboard.press("j");
  await page.locator(".place.current").getByText("data.bin").waitFor();
  await page.locator(".place.current summary").click();
  await soon(async () => assert.equal(await page.locator(".place.current").getByRole("link", { name: "Download" }).getAttribute("download"), "data.bin"));
  await page.keyboard.press("k");
  await page.locator(".place.current").getByText("<b>/parser.txt").waitFor();
  // Over 400 lines: closed at first.
  await tree.getByRole("link", { name: "long.txt" }).click();
  await page.locator(".place.current summary:focus").getByText("long.txt").waitFor();
  assert.equal(await page.locator(".place.current table").count(), 0);
  await page.keyboard.press("Enter");
  await page.locator(".place.current table").getByText("450", { exact: true }).first().waitFor();
  await page.getByLabel("Wrap lines").uncheck();
  assert.equal(await page.locator(".place.current td.code").first().evaluate((cell) => getComputedStyle(cell).whiteSpace), "pre");
  await page.getByLabel("Wrap lines").check();

  // Nothing is transferred again.
  const answer = page.waitForResponse((response) => response.url().includes("/changes"));
  await page.getByRole("button", { name: "Compare again" }).click();
  assert.equal((await answer).status(), 304);
  await page.getByText("1 viewed").waitFor();
  // A directory has its own page.
  await tree.getByRole("link", { name: "src/" }).click();
  await page.getByText("1 file in src").waitFor();
  await page.setViewportSize({ width: 360, height: 800 });
  await check(page, "changes of a directory on a narrow window");
});
