// Tests of the first page, the search, the bars of the job list and the pages of admins that need no browser.

import assert from "node:assert/strict";
import { register } from "node:module";
import { test } from "node:test";

register("../import_map.mjs", import.meta.url);
// What modules ask a browser for when they are loaded.
const nowhere = { addEventListener() {}, removeEventListener() {}, hidden: false, documentElement: { dataset: {} } };
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage, document: nowhere, addEventListener() {}, removeEventListener() {} });
globalThis.navigator ??= {};
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
const realInterval = globalThis.setInterval;
globalThis.setInterval = (...of) => realInterval(...of).unref();

const load = (name) => import(new URL(`../../../orchestrator/dashboard/app/${name}.js`, import.meta.url));

test("only admins have the pages of admins in their navigation", async () => {
  const { listedFor } = await load("router");
  const paths = (role) => listedFor(role).map(({ path }) => path);
  assert.ok(paths("admin").includes("/admin"));
  for (const role of ["user", "viewer", undefined]) assert.ok(!paths(role).includes("/admin") && paths(role).includes("/jobs"));
});

test("a restart is offered in the states that the server restarts", async () => {
  const { canRestart } = await load("store");
  const states = ["pending", "in_progress", "completed", "submitted", "accepted", "failed", "stuck", "cancelled"];
  assert.deepEqual(states.filter(canRestart), ["failed", "cancelled"]);
});

test("one key works everywhere, with both modifiers and no other", async () => {
  const { isPaletteKey } = await load("keys");
  const key = (of) => isPaletteKey({ key: "k", ctrlKey: false, metaKey: false, altKey: false, shiftKey: false, ...of });
  assert.deepEqual([{ ctrlKey: true }, { metaKey: true }, { ctrlKey: true, key: "K" }].map(key), [true, true, true]);
  assert.deepEqual([{}, { ctrlKey: true, shiftKey: true }, { ctrlKey: true, altKey: true }, { ctrlKey: true, key: "j" }].map(key), [false, false, false, false]);
});

test("all words of a search are in what is found", async () => {
  const { matching } = await load("palette");
  const rows = ["Colours: dark", "Colours: light", "Jobs"].map((text) => ({ text }));
  const found = (text) => matching(rows, text).map((row) => row.text);
  assert.deepEqual(found("DARK col"), ["Colours: dark"]);
  assert.deepEqual(found(" "), ["Colours: dark", "Colours: light", "Jobs"]);
  assert.deepEqual(found("dark jobs"), []);
});

test("hours become bars, also the empty ones, and none is left out", async () => {
  const { beginOf, binsOf } = await load("pages/jobs/histogram");
  const now = Date.parse("2026-11-29T14:20:00Z");
  const begin = beginOf(now);
  assert.equal(new Date(begin).toISOString(), "2026-11-28T15:00:00.000Z");
  const items = [
    { hour: "2026-11-28T15:00:00Z", states: { failed: 1 } },
    { hour: "2026-11-29T13:00:00Z", states: { completed: 2 } },
    { hour: "2026-11-29T14:00:00Z", states: { completed: 3, in_progress: 1 } },
  ];
  const bins = binsOf(items, begin, 1);
  assert.equal(bins.length, 24);
  assert.deepEqual([bins[0].total, bins[22].total, bins[23].total, bins[1].total], [1, 2, 4, 0]);
  assert.deepEqual([bins[23].from, bins[23].to], ["2026-11-29T14:00:00Z", "2026-11-29T15:00:00Z"]);
  const wide = binsOf(items, begin, 2);
  assert.deepEqual([wide.length, wide[11].total, wide[11].states], [12, 6, { completed: 5, in_progress: 1 }]);
});

test("two texts are compared line by line, and nothing is lost", async () => {
  const { compare, linesOf } = await load("pages/admin/mcp");
  const words = (found) => found.map(({ kind, text }) => `${{ same: " ", added: "+", removed: "-" }[kind]}${text}`);
  assert.deepEqual(words(compare("a\nb\nc", "a\nx\nc\nd")), [" a", "-b", "+x", " c", "+d"]);
  assert.deepEqual(words(compare("", "a")), ["-", "+a"]);
  assert.deepEqual(compare("a\nb", "b").map(({ before, after }) => [before, after]), [[1, null], [2, 1]]);
  const [before, after] = ["one\ntwo\nthree\ntwo", "two\nthree\nfour\ntwo\none"];
  const found = compare(before, after);
  assert.equal(found.filter(({ kind }) => kind !== "added").map(({ text }) => text).join("\n"), before);
  assert.equal(found.filter(({ kind }) => kind !== "removed").map(({ text }) => text).join("\n"), after);
  assert.equal(compare("a\n".repeat(2_000), "b\n".repeat(2_000)), null);
  // The lines of a description are lines.
  assert.deepEqual(linesOf({ d: "x\ny" }).split("\n"), ["{", "  \"d\": \"x\\n", "y\"", "}"]);
});

test("the policy of tools becomes a form, and the same policy again", async () => {
  const { draftOf, policyOf, unknownOf } = await load("pages/admin/tools");
  const policy = { disabled_tools: ["http", "no_such"], user_disabled_tools: { bob: ["shell", "typo"] } };
  const draft = draftOf(policy, ["http", "shell"]);
  assert.deepEqual(draft, { disabled: ["http"], others: "no_such", users: [{ user: "bob", tools: "shell typo" }] });
  assert.deepEqual(policyOf(draft), policy);
  assert.equal(policyOf({ ...draft, users: [{ user: " ", tools: "shell" }] }), null);
  assert.equal(policyOf({ ...draft, users: [{ user: "bob", tools: "a" }, { user: "bob ", tools: "b" }] }), null);
  assert.deepEqual(policyOf({ disabled: [], others: " a,b  a", users: [{ user: "", tools: "" }, { user: "eve", tools: "" }] }), { disabled_tools: ["a", "b"], user_disabled_tools: {} });
  assert.deepEqual(unknownOf(["", "shell", "typo"], ["shell"]), ["typo"]);
});

test("only the filters that a page has are taken from its URL", async () => {
  const { filtersOf } = await load("parts");
  assert.deepEqual(filtersOf(new URLSearchParams("state=failed&zone=UTC&q=&since=x"), ["state", "q", "since"]), { state: "failed", since: "x" });
});
