// Tests of the pages of memory, usage and settings that need no browser.

import assert from "node:assert/strict";
import { register } from "node:module";
import { test } from "node:test";

register("../import_map.mjs", import.meta.url);
const nowhere = { addEventListener() {}, removeEventListener() {}, hidden: false, documentElement: { dataset: {} } };
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage, document: nowhere, location: { origin: "http://a", href: "http://a/", search: "", pathname: "/" } });
globalThis.addEventListener = () => {};
globalThis.removeEventListener = () => {};
globalThis.navigator ??= {};
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
const realInterval = globalThis.setInterval;
globalThis.setInterval = (...of) => realInterval(...of).unref();

const load = (name) => import(new URL(`../../../orchestrator/dashboard/app/${name}.js`, import.meta.url));

// --- usage

const line = (of, cost, tokens = 10) => ({ input_tokens: tokens, output_tokens: 5, cache_read_tokens: 1, cache_write_tokens: 2, cost_usd: cost, llm_calls: 2, ...of });
const day = (text, model, cost) => line({ day: text, model }, cost);

test("days of a range are days in UTC, and each has a group", async () => {
  const { daysOf, groupsOf } = await load("pages/usage/chart");
  const days = daysOf(3, Date.parse("2026-03-01T23:59:00Z"));
  assert.deepEqual(days, ["2026-02-27", "2026-02-28", "2026-03-01"]);
  const lines = [day("2026-03-01", "m", 2), day("2026-02-27", "m", 1), day("2026-02-27", "n", null)];
  const groups = groupsOf(lines, { by: "day", measure: "cost", days });
  assert.deepEqual(groups.map(({ key, sum, parts }) => [key, sum.usd, sum.calls, [...parts.keys()]]),
    [["2026-02-27", 1, 4, ["m", "n"]], ["2026-02-28", 0, 0, []], ["2026-03-01", 2, 2, ["m"]]]);
});

test("groups begin with the largest value, and those of one name stay apart by their id", async () => {
  const { groupsOf } = await load("pages/usage/chart");
  const lines = [line({ routine_id: "r1", routine_name: "a", model: "m" }, 1, 900), line({ routine_id: "r2", routine_name: "a", model: "m" }, 3), line({ model: "m" }, 2)];
  const names = (measure) => groupsOf(lines, { by: "routine", measure, days: [] }).map(({ key }) => key);
  assert.deepEqual([names("cost"), names("tokens")], [["r2", "", "r1"], ["r1", "r2", ""]]);
  assert.equal(groupsOf(lines, { by: "routine", measure: "cost", days: [] })[1].name, "not from a routine");
  assert.deepEqual(groupsOf([line({ user: "ada", model: "m" }, 1), line({ user: "ada", model: "n" }, 2)], { by: "user", measure: "calls", days: [] }).map(({ key, sum }) => [key, sum.calls]), [["ada", 4]]);
});

test("only so many models have a colour; the others are one piece, and pieces make the whole", async () => {
  const { MAX_PARTS, groupsOf, modelsOf, piecesOf } = await load("pages/usage/chart");
  const lines = Array.from({ length: MAX_PARTS + 2 }, (_, index) => day("2026-03-01", `m${index}`, index + 1));
  const groups = groupsOf(lines, { by: "day", measure: "cost", days: [] });
  const models = modelsOf(groups, "cost");
  assert.deepEqual([models.shown[0], models.shown.length, models.others], [`m${MAX_PARTS + 1}`, MAX_PARTS, ["m1", "m0"]]);
  const pieces = piecesOf(groups[0], models, "cost");
  assert.deepEqual(pieces.at(-1), { index: MAX_PARTS, value: 3 });
  assert.equal(pieces.reduce((sum, { value }) => sum + value, 0), groups[0].sum.usd);
});

test("what has no price is not free", async () => {
  const { totalOf } = await load("pages/usage/chart");
  const { textOf } = await load("pages/usage");
  const text = (...costs) => textOf(totalOf(costs.map((cost) => day("2026-03-01", "m", cost))), "cost");
  assert.deepEqual([text(1, 2), text(1, null), text(null), text(0), text()], ["$3.00", "$1.00 and unpriced calls", "unpriced", "$0", "$0"]);
});

test("the axis ends at a round number that is not less", async () => {
  const { ceiling } = await load("pages/usage/chart");
  assert.deepEqual([0, 0.021, 1, 1.1, 2.9, 3, 7, 9.5, 101, 43_000].map(ceiling).map((number) => Number(number.toPrecision(3))), [1, 0.03, 1, 1.5, 3, 3, 8, 10, 150, 50_000]);
});

test("no cell of a CSV file is run as a formula", async () => {
  const { cell, csvOf } = await load("pages/usage/chart");
  for (const start of ["=", "+", "-", "@", "\t=", " =", "\r", "\n", "\u200b=", "＝", "－", "＋", "＠"]) {
    const text = cell(`${start}cmd|' /C calc'!A0`);
    assert.match(text, /^"?'/, JSON.stringify(start));
  }
  assert.deepEqual([cell("m-large"), cell('a"b'), cell("a,b"), cell("a\nb"), cell(-3), cell("a=b")], ["m-large", '"a""b"', '"a,b"', '"a\nb"', "-3", "a=b"]);
  const text = csvOf([day("2026-03-01", "=1+1", null), day("2026-03-02", 'a "b", c', 0.5)], "day");
  assert.equal(text, 'Day (UTC),Model,Calls,Input,Output,Cache read,Cache written,Cost\r\n2026-03-01,"\'=1+1",2,10,5,1,2,unpriced\r\n2026-03-02,"a ""b"", c",2,10,5,1,2,0.5\r\n');
  assert.match(csvOf([line({ model: "m" }, 1)], "model"), /^Model,Calls/);
});

test("the URL names what is shown, and what it names wrongly is the default", async () => {
  const { viewOf } = await load("pages/usage");
  const view = (text) => viewOf(new URLSearchParams(text));
  assert.deepEqual(view(""), { by: "day", range: 30, measure: null, user: "", isTable: false });
  assert.deepEqual(view("by=routine&range=7&values=calls&as=table&user=ada"), { by: "routine", range: 7, measure: "calls", user: "ada", isTable: true });
  assert.deepEqual(view("by=x&range=31&values=y&as=z"), view(""));
});

// --- memory

test("documents are a tree, and a document and a directory may have one name", async () => {
  const { countOf, treeOf, urlOf } = await load("pages/memory/tree");
  const tree = treeOf(["a/b/c.md", "a/d.md", "a.md", "e", "e/f", "__proto__/x"].map((path) => ({ path })));
  const names = ({ directories, entries }) => [[...directories].map(([name, one]) => [name, one.path, names(one)]), entries.map(({ path }) => path)];
  assert.deepEqual(names(tree), [[["a", "a/", [[["b", "a/b/", [[], ["a/b/c.md"]]]], ["a/d.md"]]], ["e", "e/", [[], ["e/f"]]], ["__proto__", "__proto__/", [[], ["__proto__/x"]]]], ["a.md", "e"]]);
  assert.equal(countOf(tree), 6);
  assert.equal(urlOf("a b/ü#?.md", { show: "edit", q: null }), "/memory/a%20b/%C3%BC%23%3F.md?show=edit");
});

test("a version names who wrote it", async () => {
  const { authorOf } = await load("pages/memory/document");
  const id = "01a2181d-0c2b-7f00-8000-0123456789ab";
  assert.deepEqual(authorOf("user:ada"), { text: "ada", href: null });
  assert.deepEqual(authorOf(`job:${id}`), { text: "job …456789ab", href: `/jobs/${id}` });
  assert.deepEqual([authorOf(`run:${id}`).href, authorOf(`thread:${id}`).href], [`/runs/${id}`, `/chat/${id}`]);
  assert.equal(authorOf("constructor:x").href, null);
});

// --- settings

const stored = { timezone: "Europe/Oslo", model: null, temperature: 0.5, quiet_hours: { from: "22:00", to: "07:00" }, heartbeat_every_seconds: 0, added_later: 1 };

test("settings become a form that makes the same settings", async () => {
  const { formOf, settingsOf } = await load("pages/settings/general");
  assert.deepEqual(settingsOf(formOf(stored), stored), stored);
  assert.deepEqual(settingsOf({ ...formOf(stored), effort: "high", temperature: "0", quietFrom: "", quietTo: "", heartbeat: "", timezone: " " }, { ...stored, effort: "low" }),
    { ...stored, effort: "high", temperature: 0, quiet_hours: null, heartbeat_every_seconds: null, timezone: null });
  assert.equal("effort" in settingsOf({ ...formOf(stored), effort: "" }, { ...stored, effort: "low" }), false, "the default has no value");
  assert.deepEqual(settingsOf({ ...formOf(stored), quietTo: "" }, stored).quiet_hours, { from: "22:00", to: "" }, "the server refuses a half");
});

test("settings that were changed elsewhere keep what was changed here", async () => {
  const { formOf } = await load("pages/settings/general");
  const { rebase } = await load("pages/settings/general");
  const draft = { form: { ...formOf(stored), timezone: "UTC" }, base: stored, tag: '"1"' };
  const next = rebase(draft, { content: { ...stored, model: "m" }, tag: '"2"' });
  assert.deepEqual([next.draft.form.timezone, next.draft.form.model, next.draft.tag], ["UTC", "m", '"2"']);
  assert.deepEqual([next.clash.timezone, next.clash.model], ["Europe/Oslo", "m"]);
  assert.equal(rebase(draft, { content: stored, tag: '"1"' }).clash, null);
  assert.equal(rebase(draft, { content: { ...stored, timezone: "UTC" }, tag: '"2"' }).clash, null, "both changed the same");
});

test("a browser's name is short words", async () => {
  const { agentWords } = await load("pages/settings/sessions");
  const cases = [
    ["Mozilla/5.0 (X11; Linux x86_64; rv:128.0) Gecko/20100101 Firefox/128.0", "Firefox on Linux"],
    ["Mozilla/5.0 (Windows NT 10.0; Win64; x64) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Safari/537.36 Edg/126.0.0.0", "Edge on Windows"],
    ["Mozilla/5.0 (Macintosh; Intel Mac OS X 10_15_7) AppleWebKit/605.1.15 (KHTML, like Gecko) Version/17.5 Safari/605.1.15", "Safari on macOS"],
    ["Mozilla/5.0 (iPhone; CPU iPhone OS 17_5 like Mac OS X) AppleWebKit/605.1.15 (KHTML, like Gecko) CriOS/126.0 Mobile/15E148 Safari/604.1", "Chrome on iPhone"],
    ["Mozilla/5.0 (Linux; Android 14) AppleWebKit/537.36 (KHTML, like Gecko) Chrome/126.0.0.0 Mobile Safari/537.36", "Chrome on Android"],
    ["curl/8.5.0", "curl"], [null, "unknown browser"], ["x".repeat(100), `${"x".repeat(60)}…`],
  ];
  for (const [agent, words] of cases) assert.equal(agentWords(agent), words);
});

test("tools are found by all words of a text", async () => {
  const { matching } = await load("pages/settings/tools");
  const tools = [{ name: "shell", description: "Runs a command", source: "builtin" }, { name: "srv__run", description: "", source: "mcp:srv" }];
  assert.deepEqual(["", "run", "RUN command", "mcp", "nothing"].map((text) => matching(tools, text).map(({ name }) => name)), [["shell", "srv__run"], ["shell", "srv__run"], ["shell"], ["srv__run"], []]);
});
