// Tests of the files and changes of a job that need no browser.

import assert from "node:assert/strict";
import { register } from "node:module";
import { test } from "node:test";

register("../import_map.mjs", import.meta.url);
const nowhere = { addEventListener() {}, removeEventListener() {}, hidden: false };
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage, document: nowhere, location: { hash: "" } });
globalThis.addEventListener = () => {};
globalThis.removeEventListener = () => {};
globalThis.navigator ??= {};
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
const realInterval = globalThis.setInterval;
globalThis.setInterval = (...of) => realInterval(...of).unref();

const load = (name) => import(new URL(`../../../orchestrator/dashboard/app/${name}.js`, import.meta.url));
const bytes = (text) => new TextEncoder().encode(text);

test("a part of a file is read by its range", async () => {
  const { readPart } = await load("api");
  const asked = [];
  const answer = (status, range, body) => {
    globalThis.fetch = async (url, { headers }) => {
      asked.push(headers.Range);
      return new Response(body, { status, headers: { "Content-Range": range, ETag: '"a"', "Last-Modified": "Sun, 06 Nov 1994 08:49:37 GMT" } });
    };
  };
  const read = (from) => readPart("/file", { from, most: 4 }, new AbortController().signal);
  answer(206, "bytes 2-5/10", "text");
  const { content, version } = await read(2);
  assert.deepEqual([asked, new TextDecoder().decode(content)], [["bytes=2-5"], "text"]);
  assert.deepEqual(version, { etag: '"a"', modified: "Sun, 06 Nov 1994 08:49:37 GMT", size: 10 });
  answer(416, "bytes */0", "{}");
  assert.deepEqual([(await read(0)).content.length, (await read(0)).version.size], [0, 0], "an empty file");
  // Without a range the answer is the whole file.
  answer(200, "", "text");
  await assert.rejects(read(4), { status: 200 });
  answer(410, "", '{"code":"workspace_gone"}');
  await assert.rejects(read(0), { status: 410, code: "workspace_gone" });
});

test("an answer with a tag is not sent again", async () => {
  const { getChanged } = await load("api");
  const sent = [];
  globalThis.fetch = async (url, { headers }) => {
    sent.push(headers["If-None-Match"]);
    const isKnown = headers["If-None-Match"] === 'W/"a"';
    return new Response(isKnown ? null : '{"items":[]}', { status: isKnown ? 304 : 200, headers: { ETag: 'W/"a"', "Content-Type": "application/json" } });
  };
  const first = await getChanged("/api/jobs/{id}/changes", { path: { id: "1" } }, null);
  assert.deepEqual(first, { content: { items: [] }, tag: 'W/"a"' });
  assert.deepEqual(await getChanged("/api/jobs/{id}/changes", { path: { id: "1" } }, first.tag), { content: null, tag: 'W/"a"' });
  assert.deepEqual(sent, [undefined, 'W/"a"']);
});

/** The lines of a text that is read in windows, with their numbers. */
async function linesOf(text, windowBytes) {
  const { partAfter } = await load("pages/job/file");
  const [all, lines] = [bytes(text), []];
  let part;
  do {
    part = partAfter(part, all.subarray(part?.to ?? 0, (part?.to ?? 0) + windowBytes), all.length);
    lines.push(...part.lines.map((line, index) => `${part.first + index} ${line}`));
  } while (part.to < all.length);
  return lines;
}

test("a text that is read in windows has its lines and their numbers", async () => {
  assert.deepEqual(await linesOf("one\ntwo\nthree\n", 6), ["1 one", "2 two", "3 three"]);
  assert.deepEqual(await linesOf("one\n\ntwo", 4), ["1 one", "2 ", "3 two"]);
  // Of a line that is longer than a window the beginning is shown, and the next line has its number.
  assert.deepEqual(await linesOf("aaaaaaaaaaaaaaa\nb\nc\n", 6), ["1 aaaaaa", "2 b", "3 c"]);
  assert.deepEqual(await linesOf("aaaaaaaaaaaaaaa", 6), ["1 aaaaaa"]);
  // A window ends between characters.
  assert.deepEqual(await linesOf("ééééé\nb\n", 7), ["1 ééé", "2 b"]);
  assert.deepEqual(await linesOf("€𝄞€\nb\n", 5), ["1 €", "2 b"]);
  assert.equal((await linesOf("x\n".repeat(1_000), 64)).at(-1), "1000 x");
});

test("a window of short lines ends before its bytes do", async () => {
  const { usable } = await load("pages/job/file");
  assert.equal(usable(bytes("\n".repeat(150_000)), true), 100_000);
  assert.equal(usable(bytes("a\nbc"), false), 2);
  assert.equal(usable(bytes("a\nbc"), true), 4);
});

test("two versions of a file are told apart by what both have", async () => {
  const { isSame } = await load("pages/job/file");
  const version = { etag: '"a"', modified: "1", size: 10 };
  assert.ok(isSame(version, { ...version, modified: "2" }));
  assert.ok(!isSame(version, { ...version, etag: '"b"' }));
  // A file that has just changed has no tag.
  assert.ok(isSame({ ...version, etag: null }, version));
  assert.ok(!isSame({ ...version, etag: null }, { ...version, size: 11 }));
  assert.ok(!isSame({ ...version, etag: null }, { ...version, modified: "2" }));
});

test("what is shown as text, and which line is named", async () => {
  const { isBinary, lineOf } = await load("pages/job/file");
  assert.deepEqual(["<svg/>", "a\0b", "%PDF-1.7\n"].map((text) => isBinary(bytes(text))), [false, true, true]);
  assert.deepEqual(["#L12", "#L0", "#L1x", "", "#L9999999999"].map(lineOf), [12, null, null, null, null]);
});

test("directories of changed files are marked as well", async () => {
  const { withDirectories } = await load("pages/job/files");
  assert.deepEqual([...withDirectories(["a/b/c", "a/d", "e"])].toSorted(), ["a", "a/b", "a/b/c", "a/d", "e"]);
});

const change = (path, diff = "--- a\n+++ b\n@@ -1 +1 @@\n-a\n+b\n") => ({ path, change: "modified", diff });

test("changed files are a tree", async () => {
  const { treeOf } = await load("pages/job/changes");
  const rows = treeOf(["a.txt", "src/lib/x.js", "src/lib/y.js", "src/main.js", "srcs/z"].map((path) => change(path)));
  const shown = rows.map(({ depth, name, path, change: file }) => `${" ".repeat(depth)}${name} ${file ? "" : path}`);
  assert.deepEqual(shown, ["a.txt ", "src src/", " lib src/lib/", "  x.js ", "  y.js ", " main.js ", "srcs srcs/", " z "]);
  assert.deepEqual(rows.map(({ seq }) => seq), [0, 1, 2, 3, 4, 5, 6, 7]);
});

test("diffs of up to 400 lines are open at first", async () => {
  const { openAtFirst } = await load("pages/job/changes");
  const { lengthOf } = await load("pages/job/change");
  const long = (count) => change(`${count}`, `--- a\n+++ b\n@@ -0,0 +1 @@\n${"+x\n".repeat(count - 1)}`);
  assert.deepEqual([lengthOf(long(400)), lengthOf(change("binary", null))], [400, 0]);
  assert.deepEqual([...openAtFirst([long(400), long(401), change("binary", null), change("small")])], ["400", "small"]);
});
