// Tests of the dashboard's modules and files that need no browser.
//
//     node --test unit.test.mjs

import assert from "node:assert/strict";
import { readFileSync, readdirSync } from "node:fs";
import { register } from "node:module";
import { test } from "node:test";
import { gzipSync } from "node:zlib";

register("./import_map.mjs", import.meta.url);
// What modules ask a browser for when they are loaded.
const nowhere = { addEventListener() {}, removeEventListener() {}, hidden: false };
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
/** Run when the browser is online again. */
const onlineListeners = new Set();
globalThis.addEventListener = (name, listener) => name === "online" && onlineListeners.add(listener);
globalThis.removeEventListener = (name, listener) => onlineListeners.delete(listener);
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage, document: nowhere });
globalThis.navigator ??= {};
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
const realInterval = globalThis.setInterval;
globalThis.setInterval = (...of) => realInterval(...of).unref();

const root = new URL("../../orchestrator/dashboard/", import.meta.url);
const load = (name) => import(new URL(`app/${name}.js`, root));
const text = (path) => readFileSync(new URL(path, root), "utf8");
const gzipped = (path) => gzipSync(readFileSync(new URL(path, root))).length;
/** The scripts in a directory of the dashboard. */
const scriptsOf = (directory) => readdirSync(new URL(directory, root), { recursive: true })
  .filter((name) => name.endsWith(".js")).map((name) => `${directory}/${name}`);

const format = await load("format");
const { ApiError, address, get, newIntent, read } = await load("api");
const { match, resolve } = await load("router");
const { createParser, nextStep, openStream } = await load("stream");
const { createFetcher, createQueue, createTable } = await load("store");

test("a path matches a pattern", () => {
  const cases = [
    ["/", "/", {}],
    ["/jobs", "/jobs/", {}],
    ["/jobs/:id", "/jobs/01a2", { id: "01a2" }],
    ["/jobs/:id", "/jobs/a%20b%2Fc", { id: "a b/c" }],
    ["/jobs/:id", "/jobs/%FF", { id: "%FF" }],
    ["/jobs/:id/files/*path", "/jobs/1/files/src/a%23.py", { id: "1", path: "src/a#.py" }],
    ["/jobs/:id", "/jobs/", null],
    ["/jobs/:id", "/jobs", null],
    ["/jobs/:id", "/jobs/1/files", null],
    ["/", "/jobs", null],
    ["/memory/*path", "/memory", null],
  ];
  for (const [pattern, path, expected] of cases) assert.deepEqual(match(pattern, path), expected, `${pattern} ${path}`);
});

test("a URL has a page, its names and its parameters", () => {
  const table = [{ path: "/jobs/new", name: "form" }, { path: "/jobs/:id", name: "job" }];
  const { route, params, query } = resolve(new URL("http://a/jobs/7?e=412"), table);
  assert.deepEqual([route.name, params, query.get("e")], ["job", { id: "7" }, "412"]);
  assert.equal(resolve(new URL("http://a/jobs/new"), table).route.name, "form");
  assert.equal(resolve(new URL("http://a/nothing"), table).route, null);
});

test("an address has its values encoded", () => {
  assert.equal(address("/api/jobs/{id}/prompt", { path: { id: "a/b?" } }), "/api/jobs/a%2Fb%3F/prompt");
  assert.equal(address("/api/jobs", { query: { q: "a&b", cursor: undefined, limit: 5 } }), "/api/jobs?q=a%26b&limit=5");
});

const MESSAGES = "retry: 2000\n\nid: 7\n\n: comment\n\nid: 8\nevent: state\ndata: {\"a\":\ndata: 1}\n\nevent: resync\ndata:{}\r\n\r\nid: 9\ndata: cut";
const PARSED = [
  { id: "7", event: "message", data: null },
  { id: "8", event: "state", data: "{\"a\":\n1}" },
  { id: null, event: "resync", data: "{}" },
];

test("messages are parsed wherever the stream is cut", () => {
  for (let size = 1; size <= MESSAGES.length; size += 1) {
    const seen = [];
    const take = createParser((message) => seen.push(message));
    for (let at = 0; at < MESSAGES.length; at += size) take(MESSAGES.slice(at, at + size));
    assert.deepEqual(seen, PARSED, `pieces of ${size}`);
  }
});

test("the status says what follows", () => {
  assert.deepEqual(nextStep(204, null, 0, 1), { state: "ended" });
  assert.deepEqual(nextStep(401, null, 0, 1), { state: "login" });
  assert.deepEqual(nextStep(404, null, 0, 1), { state: "gone" });
  assert.deepEqual(nextStep(429, 7, 3, 1), { state: "reconnecting", waitMs: 7_000 });
  assert.deepEqual(nextStep(503, 2, 0, 0), { state: "reconnecting", waitMs: 2_000 });
  const waits = [0, 1, 2, 3, 4, 5, 50].map((failures) => nextStep(0, null, failures, 1).waitMs / 1_000);
  assert.deepEqual(waits, [1, 2, 4, 8, 16, 30, 30]);
  assert.equal(nextStep(500, null, 1, 0).waitMs, 1_500);
});

test("a stream goes on after its last message and stops at the end", async () => {
  const asked = [];
  const answers = ["id: 4\n\nid: 5\nevent: state\ndata: {}\n\n", null];
  globalThis.fetch = async (url) => {
    asked.push(url);
    const body = answers.shift();
    return body ? new Response(body) : new Response(null, { status: 204 });
  };
  const states = [];
  const seen = [];
  await new Promise((done) => {
    const stream = openStream({
      url: (after) => `/events?after=${after}`,
      onMessage: (message) => seen.push(message.id),
      onConnection({ state }) {
        states.push(state);
        if (state === "reconnecting") setTimeout(stream.retry);
        if (state === "ended") done();
      },
    });
  });
  assert.deepEqual([asked, seen], [["/events?after=null", "/events?after=5"], ["4", "5"]]);
  assert.deepEqual(states, ["live", "reconnecting", "ended"]);
});

test("a table keeps the newest rows and what is known of them", () => {
  const table = createTable(3);
  for (const id of ["a", "b", "c"]) table.put({ id, state: "queued" }, 10);
  table.put({ id: "a", state: "running" }, 12);
  table.put({ id: "d", state: "queued" }, 12);
  assert.deepEqual(table.all().map(({ id }) => id), ["c", "a", "d"], "the one not heard of for longest is left out");
  table.put({ id: "a", state: "queued" }, 11);
  assert.equal(table.get("a").state, "running", "what was read earlier arrives late");
  assert.equal(table.merge("a", 12, { state: "queued" }), true);
  assert.equal(table.get("a").state, "running", "an event that the row has");
  table.merge("a", 13, { state: "done" });
  assert.equal(table.get("a").state, "done");
  assert.equal(table.merge("b", 14, { state: "done" }), false, "an unknown row");
  table.drop("a");
  assert.equal(table.get("a"), undefined);
});

test("what comes quickly is applied together", () => {
  const applied = [];
  let run;
  let scheduled = 0;
  const push = createQueue((items) => applied.push(items), (given) => ((run = given), (scheduled += 1)));
  [1, 2, 3].forEach(push);
  run();
  push(4);
  run();
  assert.deepEqual([applied, scheduled], [[[1, 2, 3], [4]], 2]);
});

test("objects are read a few at once, each once", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const asked = [];
  const ends = new Map();
  let isPaused = false;
  const read = (id) => (asked.push(id), new Promise((end) => ends.set(id, end)));
  const end = async (id) => (ends.get(id)(), await new Promise(setImmediate));
  const fetcher = createFetcher(read, { gapMs: 5_000, atOnce: 2, most: 3, isPaused: () => isPaused });
  for (const id of ["a", "b", "c", "c", "d", "e", "f"]) fetcher.want(id);
  assert.deepEqual(asked, ["a", "b"], "the others wait, and of too many the oldest are forgotten");
  await end("a");
  fetcher.want("a");
  await end("b");
  assert.deepEqual(asked, ["a", "b", "d", "e"], "the first one rests");
  await end("d");
  await end("e");
  context.mock.timers.tick(5_000);
  assert.deepEqual(asked.slice(4), ["f", "a"]);
  isPaused = true;
  fetcher.want("x");
  await end("f");
  assert.equal(asked.length, 6, "a hidden tab reads nothing");
  isPaused = false;
  fetcher.pump();
  assert.equal(asked.at(-1), "x");
});

test("numbers, times and ids", () => {
  const at = Date.parse("2026-11-28T13:02:11Z");
  assert.equal(format.time(at, "Europe/Oslo", at + 60_000), "14:02:11");
  assert.equal(format.time(at, "UTC", at + 86_400_000), "28 Nov 2026, 13:02:11");
  // The hour that comes twice when summer time ends.
  const [first, second] = ["2026-10-25T00:30:00Z", "2026-10-25T01:30:00Z"].map(Date.parse);
  assert.deepEqual([format.clock(first, "Europe/Oslo"), format.clock(second, "Europe/Oslo")], ["02:30:00", "02:30:00"]);
  assert.deepEqual([format.zoneName("Europe/Oslo", first), format.zoneName("Europe/Oslo", second)], ["Europe/Oslo (GMT+2)", "Europe/Oslo (GMT+1)"]);
  assert.equal(format.zoneName("UTC", at), "UTC");
  assert.deepEqual([format.isZone("Asia/Kolkata"), format.isZone("Mars/Base"), format.isZone(null)], [true, false, false]);
  assert.deepEqual([0, 59_999, 252_000, 3_852_000, 180_000_000].map(format.duration), ["00:00", "00:59", "04:12", "1:04:12", "2 d 02:00"]);
  assert.deepEqual([-180_000, 0, 7_200_000].map((ms) => format.relative(at + ms, at)), ["3 min ago", "just now", "in 2 h"]);
  assert.deepEqual([0, 999, 12_400, 410_000, 999_990, 1_200_000].map(format.tokens), ["0", "999", "12.4k", "410k", "1M", "1.2M"]);
  assert.deepEqual([null, 0, 0.00001, 0.0012, 0.21, 3].map(format.cost), ["unpriced", "$0", "<$0.0001", "$0.0012", "$0.21", "$3.00"]);
  assert.equal(format.shortId("019aa000-0000-7000-8000-00009f3a11c2"), "…9f3a11c2");
});

// --- files

/** The modules that a module loads at once, from the page's first one. */
function reached(path, seen = new Set()) {
  if (seen.has(path)) return seen;
  seen.add(path);
  for (const [, name] of text(path).matchAll(/^(?:import|export)\b[^"]*?"(\.[^"]+)";$/gm)) reached(new URL(name, `file:///${path}`).pathname.slice(1), seen);
  return seen;
}

test("a failed read is repeated if the failure may pass", async (context) => {
  context.mock.timers.enable({ apis: ["setTimeout"] });
  const settle = async () => { for (let turn = 0; turn < 10; turn += 1) await Promise.resolve(); };
  const answers = { busy: [new ApiError(503, {}, 9), null], gone: [new ApiError(404, {})] };
  const seen = [];
  const read = async (id) => {
    seen.push(id);
    const failure = answers[id]?.shift();
    if (failure) throw failure;
  };
  const fetcher = createFetcher(read, { gapMs: 5_000 });
  fetcher.want("gone");
  fetcher.want("busy");
  await settle();
  fetcher.want("other");
  context.mock.timers.tick(8_999);
  await settle();
  assert.deepEqual(seen, ["gone", "busy"], "after Retry-After only");
  context.mock.timers.tick(1);
  await settle();
  assert.deepEqual(seen.slice(2).toSorted(), ["busy", "other"]);
});

test("rows that a page shows stay, and what was heard since is known", () => {
  const table = createTable(2);
  table.put({ id: "a" }, 1);
  table.show(["a"]);
  for (const id of ["b", "c", "d"]) table.put({ id }, 5);
  assert.deepEqual(table.all().map(({ id }) => id), ["a", "d"]);
  assert.deepEqual(table.since(4).map(({ id }) => id), ["d"]);
});

test("after missed events the stream begins again from now", async () => {
  const { follow, position } = await load("live");
  const asked = [];
  const seen = [];
  const answers = ['id: 900\n\nevent: resync\ndata: {"cursor":1}\n\nid: 1\nevent: state\ndata: {"cursor":1}\n\n', "id: 5\n\n"];
  globalThis.fetch = async (url) => {
    asked.push(url);
    const body = answers.shift();
    return body ? new Response(body) : new Response(null, { status: 204 });
  };
  const live = follow({ kinds: ["state"], onEvent: () => seen.push("event"), onResync: () => seen.push("resync") });
  for (let turn = 0; turn < 100 && position() !== 5; turn += 1) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.equal(position(), 5);
  live.stop();
  assert.deepEqual([asked.slice(0, 2), seen], [["/api/events?kind=state", "/api/events?kind=state"], ["resync"]]);
});

test("what a job does now has no position, and a position is no event", async () => {
  const { follow, position } = await load("live");
  const seen = [];
  const now = '{"kind":"job","data":{"id":"j"}}';
  const answers = [`id: 5\n\nevent: job\ndata: ${now}\n\nevent: position\ndata: {"cursor":9,"now":""}\n\n`];
  globalThis.fetch = async () => {
    const body = answers.shift();
    return body ? new Response(body) : new Response(null, { status: 204 });
  };
  const live = follow({ kinds: ["job"], onEvent: (event) => seen.push(event), onResync: () => seen.push("resync") });
  for (let turn = 0; turn < 100 && seen.length === 0; turn += 1) await new Promise((resolve) => setTimeout(resolve, 10));
  assert.deepEqual([seen, position()], [[{ ...JSON.parse(now), cursor: 5 }], 5]);
  live.stop();
});

test("a job is known from its events until it is deleted", async () => {
  const { jobs, push } = await load("store");
  globalThis.fetch = async () => new Response("{}", { headers: { "Content-Type": "application/json" } });
  globalThis.requestAnimationFrame ??= (run) => setTimeout(run, 0);
  globalThis.cancelAnimationFrame ??= clearTimeout;
  const apply = async (...events) => {
    for (const event of events) push(event);
    await new Promise((resolve) => setTimeout(resolve, 300));
  };
  const job = (cursor, state) => ({ kind: "job", cursor, data: { id: "j1", title: "t", state } });
  await apply(job(3, "pending"), job(5, "in_progress"), job(4, "pending"));
  assert.deepEqual(jobs.get("j1"), { id: "j1", title: "t", state: "in_progress" });
  await apply({ kind: "job_deleted", cursor: 6, data: { id: "j1" } });
  assert.equal(jobs.get("j1"), undefined);
});

test("an answer that is cut is a failure", async () => {
  const headers = { "Content-Type": "application/json" };
  globalThis.fetch = async () => new Response('{"items": [', { headers });
  await assert.rejects(get("/api/jobs"), { status: 0 });
  globalThis.fetch = async () => new Response(new ReadableStream({ start: (body) => body.error(new TypeError("cut")) }));
  await assert.rejects(read("/file", 10, new AbortController().signal), { status: 0 });
  const isOver = new AbortController();
  globalThis.fetch = async () => (isOver.abort(), Promise.reject(isOver.signal.reason));
  await assert.rejects(get("/api/jobs", { signal: isOver.signal }), { name: "AbortError" });
});

test("an idempotency key needs no secure context", () => {
  assert.match(newIntent(), /^[0-9a-f]{32}$/);
  assert.notEqual(newIntent(), newIntent());
});

test("bytes of a stream reset its back-off, also comments", async () => {
  const answers = [null, null, ": alive\n\n", null];
  globalThis.fetch = async () => {
    if (answers.length === 0) return new Response(null, { status: 204 });
    const body = answers.shift();
    return body ? new Response(body) : Promise.reject(new TypeError("refused"));
  };
  const waits = [];
  await new Promise((done) => {
    const stream = openStream({
      url: () => "/events",
      onMessage() {},
      onConnection(connection) {
        if (connection.state === "ended") return done();
        if (connection.state !== "reconnecting") return;
        waits.push(Math.round((connection.retryAt - Date.now()) / 1_000));
        // Unlike `retry`, this does not forget the failures.
        setTimeout(() => onlineListeners.forEach((listener) => listener()));
      },
    });
    void stream;
  });
  assert.ok(waits[1] > waits[0] && waits[2] <= 1, waits.join());
});

test("new jobs are those that were heard of since the list was read", async () => {
  const { countNew } = await load("pages/jobs");
  const job = (id, state = "pending") => ({ id, state });
  const list = { ids: ["5", "3"], given: {}, hasMore: true, newest: "6" };
  assert.equal(countNew([job("7"), job("5"), job("4"), job("2")], list), 2);
  assert.equal(countNew([job("7"), job("4")], { ...list, given: { state: "failed,pending" } }), 2);
  assert.equal(countNew([job("7"), job("4", "failed")], { ...list, given: { state: "pending" } }), 1);
  // A search knows of none but those that did not exist.
  assert.equal(countNew([job("7"), job("6"), job("4")], { ...list, ids: [], given: { q: "x" } }), 1);
});

test("a job becomes a form that makes the same job", async () => {
  const { bodyOf, draftOf } = await load("pages/new_job");
  const limits = { timeout_seconds: 60, max_iterations: 5, max_tool_calls: 9, max_tokens: 0, max_cost_usd: 0, memory_mb: 512 };
  const job = {
    prompt: "do it\nnow", title: "do it", model: "m", image: "i", effort: "high", plan: false, tools: [], approve: ["http"], priority: 3,
    limits, labels: { note: "a b, c", "x=y": "1", long: "two\nlines" }, metadata: { a: 1 }, egress: { allow: ["a.example"] }, review: true, held: true,
  };
  const draft = draftOf(job, { limits: { ...limits, memory_mb: 256 } });
  assert.equal(draft.tokens, "");
  assert.deepEqual(bodyOf(draft, []), {
    prompt: "do it\nnow", model: "m", image: "i", effort: "high", plan: false, tools: [], approve: ["http"], priority: 3,
    limits: { timeout_seconds: 60, memory_mb: 512 }, labels: job.labels, metadata: { a: 1 }, egress: { allow: ["a.example"] }, review: true, hold: false,
  });
});

test("the page preloads what its first module needs", () => {
  const preloaded = [...text("index.html").matchAll(/modulepreload" href="\/assets\/@HASH@\/([^"]+)"/g)].map(([, path]) => path);
  const needed = [...reached("app/main.js")].filter((path) => path !== "app/main.js");
  const vendored = scriptsOf("vendor");
  assert.deepEqual(preloaded.toSorted(), [...needed, ...vendored].toSorted());
});

test("nothing makes HTML from a string, and nothing is loaded from elsewhere", () => {
  for (const path of [...scriptsOf("app"), "index.html", "app.css"]) {
    assert.doesNotMatch(text(path), /innerHTML|outerHTML|insertAdjacent|document\.write|\beval\(|new Function|\sstyle=(?!\$\{\{)/, path);
    assert.doesNotMatch(text(path).replaceAll("http://www.w3.org/2000/svg", ""), /https?:\/\//, path);
  }
  assert.doesNotMatch(text("app.css"), /url\(|@import/);
});

test("every text is used", async () => {
  const { T } = await load("texts");
  const sources = scriptsOf("app").filter((path) => path !== "app/texts.js").map(text).join("\n").replaceAll(/\/\*\*.*?\*\//gs, "");
  // A group that is named without one of its texts is used as a whole.
  const unused = (value, path) => {
    if (new RegExp(`\\b${path.replaceAll(".", "\\.")}\\b(?!\\.(?!map\\b)\\w)`).test(sources)) return [];
    return typeof value === "object" ? Object.entries(value).flatMap(([name, one]) => unused(one, `${path}.${name}`)) : [path];
  };
  assert.deepEqual(Object.entries(T).flatMap(([name, one]) => unused(one, `T.${name}`)), []);
});

test("sizes are within the budget", (context) => {
  const sum = (paths) => paths.reduce((total, path) => total + gzipped(path), 0);
  const vendored = scriptsOf("vendor");
  const first = ["index.html", "app.css", "icons.svg", ...new Set([...reached("app/pages/now.js"), ...reached("app/main.js")]), ...vendored];
  const all = ["index.html", "app.css", "icons.svg", ...scriptsOf("app"), ...vendored];
  context.diagnostic(`first visit: ${first.length} files, ${sum(first)} bytes; all: ${sum(all)}; vendored: ${sum(vendored)}`);
  assert.ok(first.length <= 24 && sum(first) <= 90_000);
  assert.ok(sum(all) <= 220_000 && sum(vendored) <= 40_000);
});

const { createTrace, isShown, MAX_ROWS } = await load("trace");

const event = (seq, kind, data) => ({ seq, at: "2026-01-01T00:00:00Z", kind, data });
const call = (seq, id, command) => event(seq, "tool_use", { call_id: id, tool: "shell", input: { command } });
const result = (seq, id, success) => event(seq, "tool_result", { call_id: id, tool: "shell", success, output: "out", truncated: false, duration_ms: 1_500 });

test("a call and its result are one row, into which output flows", () => {
  const trace = createTrace();
  trace.append([event(1, "state", { from: null, to: "pending" }), call(2, "a", "ls\n -la"), event(3, "log", { stream: "stdout", text: "one\n", call_id: "a" })]);
  assert.equal(trace.output(trace.rows()[1].call), "one\n");
  assert.deepEqual(trace.rows().map(({ word, text, isOpen }) => [word, text, isOpen]), [["queued", "", false], ["shell", "ls -la", true]]);
  trace.append([result(4, "a", false), event(5, "log", { stream: "stdout", text: "agent" })]);
  const row = trace.rows()[1];
  assert.deepEqual([row.isFailed, row.isOpen, row.note, row.last, trace.output(row.call)], [true, false, "1.5 s", 4, ""]);
  assert.deepEqual(trace.rows().filter((one) => isShown(one, "failed")).map(({ seq }) => seq), [2]);
  assert.deepEqual(trace.range(), [1, 5]);
});

test("an event that is read twice is one row", () => {
  const trace = createTrace();
  trace.append([event(4, "status", { message: "a", iteration: 1 })]);
  assert.equal(trace.append([event(4, "status", { message: "a", iteration: 1 }), event(5, "status", { message: "b", iteration: 1 })]), 1);
  assert.deepEqual(trace.rows().map(({ seq }) => seq), [4, 5]);
});

test("a page in front joins calls to the results that are there", () => {
  const trace = createTrace();
  trace.prepend([result(3, "a", true), event(4, "message", { role: "assistant", content: "Done." })], 4);
  assert.equal(trace.prepend([event(1, "state", { from: null, to: "pending" }), call(2, "a", "ls")], 4), true);
  assert.deepEqual(trace.rows().map(({ seq, word, text, note }) => [seq, word, text, note]),
    [[1, "queued", "", ""], [2, "shell", "ls", "1.5 s"], [4, "says", "Done.", ""]]);
  assert.deepEqual(trace.range(), [1, 4]);
});

test("a trace keeps a bounded number of rows, the newest", () => {
  const trace = createTrace();
  const many = Array.from({ length: MAX_ROWS + 10 }, (_, index) => event(index + 1, "status", { message: "x", iteration: 1 }));
  trace.append(many);
  assert.deepEqual([trace.rows().length, ...trace.range()], [MAX_ROWS, 11, MAX_ROWS + 10]);
  assert.equal(trace.prepend([event(10, "status", { message: "x", iteration: 1 })], 10), false);
});

const status = (seq) => event(seq, "status", { message: "a", iteration: 1 });
const seqs = (trace) => trace.rows().map(({ seq, last, kind }) => (kind === "status" ? seq : [kind, seq, last]));

test("the newest page that is read again adds nothing twice", () => {
  const trace = createTrace();
  trace.prepend([1, 2, 3, 4].map(status), 4);
  trace.prepend([1, 2, 3, 4].map(status), 4);
  trace.append([3, 4, 5].map(status), 5);
  assert.deepEqual([seqs(trace), trace.isComplete()], [[1, 2, 3, 4, 5], true]);
});

test("what is missing is a row, which is filled", () => {
  const trace = createTrace();
  trace.append([1, 2].map(status));
  trace.append([8, 9].map(status));
  assert.deepEqual([seqs(trace), trace.isComplete()], [[1, 2, ["gap", 3, 7], 8, 9], false]);
  trace.fill(trace.rows()[2], [3, 4].map(status), true);
  assert.deepEqual(seqs(trace), [1, 2, 3, 4, ["gap", 5, 7], 8, 9]);
  trace.fill(trace.rows()[4], [5, 6, 7, 8].map(status), true);
  assert.deepEqual([seqs(trace), trace.isComplete(), trace.range()], [[1, 2, 3, 4, 5, 6, 7, 8, 9], true, [1, 9]]);
});

test("events that the server no longer has are named", () => {
  const trace = createTrace();
  trace.append([status(1)]);
  trace.lose(4);
  trace.append([status(4), status(9)]);
  trace.fill(trace.rows()[3], [status(9)], false);
  assert.deepEqual([seqs(trace), trace.isComplete()], [[1, ["lost", 2, 3], 4, ["lost", 5, 8], 9], false]);
});

test("a page around an event and the newest page have a gap between them", () => {
  for (const show of ["all", "messages"]) {
    const trace = createTrace(show);
    const message = (seq) => event(seq, "message", { role: "assistant", content: "a" });
    trace.append([message(10), message(11)], 0, true);
    trace.append([message(50), message(51)], 60, true);
    assert.deepEqual(trace.rows().map(({ kind, seq, last }) => [kind, seq, last]),
      [["message", 10, 10], ["message", 11, 11], ["gap", 12, 49], ["message", 50, 50], ["message", 51, 51]], show);
    assert.deepEqual([trace.range(), trace.hasEarlier()], [[10, 60], true]);
  }
});

test("a filter keeps only what it shows", () => {
  const failed = createTrace("failed");
  failed.append([call(1, "a", "ls"), result(2, "a", true), call(3, "b", "ls"), result(4, "b", false), status(5)]);
  assert.deepEqual(failed.rows().map(({ seq }) => seq), [4]);
  const tools = createTrace("tools");
  tools.append([status(1), call(2, "a", "ls"), event(3, "log", { stream: "stdout", text: "x", call_id: "a" }), event(4, "log", { stream: "stdout", text: "y", call_id: null })]);
  assert.deepEqual([tools.rows().map(({ seq }) => seq), tools.output(tools.rows()[0].call)], [[2], "x"]);
});

test("calls of other attempts with the same id are other calls", () => {
  const trace = createTrace();
  trace.append([{ ...call(1, "a", "one"), attempt: 1 }, { ...call(2, "a", "two"), attempt: 2 }, { ...result(3, "a", true), attempt: 2 }]);
  assert.deepEqual(trace.rows().map(({ isOpen }) => isOpen), [true, false]);
});

test("characters that change the direction of code are named", async () => {
  const { codeOf, pieces } = await load("format");
  assert.deepEqual(pieces("a\u202eb\u2066"), ["a", "\u202e", "b", "\u2066", ""]);
  assert.deepEqual([codeOf("\u202e"), pieces("אב")], ["U+202E", ["אב"]]);
});

test("how long it took is a word", () => assert.deepEqual([null, 0, 999, 4_210].map(format.took), ["", "0 ms", "999 ms", "4.2 s"]));

test("a diff is lines with their numbers", async () => {
  const { counts, lines } = await load("diff");
  const found = lines("--- a/x\n+++ b/x\n@@ -1,2 +1,2 @@ fn\n a\n-b\n+c\n\\ No newline at end of file\n");
  assert.deepEqual(found.map(({ kind, text, before, after }) => [kind, text, before, after]), [
    ["hunk", "@@ -1,2 +1,2 @@ fn", null, null], ["same", "a", 1, 1], ["removed", "b", 2, null], ["added", "c", null, 2],
    ["note", "No newline at end of file", null, null],
  ]);
  assert.deepEqual(counts(found), { added: 1, removed: 1 });
});

test("only rows in view are drawn", async () => {
  const { visible } = await load("virtual");
  assert.deepEqual(visible(0, 300, 30, 1_000), { from: 0, to: 20 });
  assert.deepEqual(visible(3_000, 300, 30, 1_000), { from: 90, to: 120 });
  assert.deepEqual(visible(0, 300, 30, 3), { from: 0, to: 3 });
});

test("a form becomes the body of a job", async () => {
  const { bodyOf } = await load("pages/new_job");
  const draft = { prompt: "p", title: "", model: "", timeout: "60", tokens: "", cost: "0.5", tools: "shell, read_file", hosts: "a.example b.example", labels: "team=a b, c\n x=\n", rest: {}, review: true, hold: false };
  assert.deepEqual(bodyOf(draft, []), {
    prompt: "p", limits: { timeout_seconds: 60, max_cost_usd: 0.5 }, tools: ["shell", "read_file"],
    egress: { allow: ["a.example", "b.example"] }, labels: { team: "a b, c", x: "" }, review: true, hold: false,
  });
});

test("sizes are words", () => {
  assert.deepEqual([0, 999, 1_000, 12_345, 999_999, 5e9].map(format.bytes), ["0 B", "999 B", "1.0 KB", "12 KB", "1000 KB", "5.0 GB"]);
});

// --- inbox

test("what waits is counted once: the user's calls, and jobs", async () => {
  const { countWaiting, isUnread } = await load("store");
  const gate = (state, user) => ({ state, user_id: user });
  const all = [gate("pending", "ada"), gate("pending", "bob"), gate("approved", "ada")];
  assert.equal(countWaiting(all, { submitted: 2, stuck: 1, failed: 9 }, "ada"), 4);
  assert.equal(countWaiting(all, undefined, "ada"), 1, "before the counts are read");
  const known = { count: 2, ids: new Set(["9"]), last: "5" };
  assert.deepEqual(["9", "8", "5", "4"].map((id) => isUnread({ id }, known)), [true, false, false, true], "the older ones are not known");
  assert.deepEqual([isUnread({ id: "8" }, null), isUnread({ id: "9", read_at: "2026-01-01T00:00:00Z" }, known)], [true, false]);
});

test("a row that was deleted is forgotten, unless something newer is known", () => {
  const table = createTable(3);
  table.put({ id: "a" }, 5);
  table.drop("a", 4);
  assert.ok(table.get("a"));
  table.drop("a", 5);
  assert.equal(table.get("a"), undefined);
});

test("who can decide what about a gate", async () => {
  const { choicesOf, decisionOf } = await load("pages/gate/card");
  const gate = { state: "pending", user_id: "ada", expires_at: "2026-01-02T00:00:00Z", can_be_remembered: true, parameters_digest: "d" };
  const at = Date.parse("2026-01-01T00:00:00Z");
  const all = ["once", "thread", "user", "deny"];
  assert.deepEqual(choicesOf(gate, { user: "ada", role: "user" }, at), all);
  assert.deepEqual(choicesOf(gate, { user: "ada", role: "admin" }, at), all);
  assert.deepEqual(choicesOf({ ...gate, can_be_remembered: false }, { user: "ada", role: "user" }, at), ["once", "deny"]);
  assert.deepEqual(choicesOf(gate, { user: "root", role: "admin" }, at), ["deny"]);
  assert.deepEqual(choicesOf(gate, { user: "ada", role: "viewer" }, at), []);
  assert.deepEqual(choicesOf({ ...gate, state: "denied" }, { user: "ada", role: "user" }, at), []);
  assert.deepEqual(choicesOf(gate, { user: "ada", role: "user" }, Date.parse(gate.expires_at)), [], "it has expired");
  assert.deepEqual(all.map((choice) => decisionOf(choice, gate, " no ")), [
    { decision: "approve", parameters_digest: "d" }, { decision: "always", scope: "thread", parameters_digest: "d" },
    { decision: "always", scope: "user", parameters_digest: "d" }, { decision: "deny", reason: "no" },
  ]);
  assert.deepEqual(decisionOf("deny", gate, " "), { decision: "deny" });
});

test("a plain word answers a call", async () => {
  const { choiceOf } = await load("pages/gate/card");
  assert.deepEqual(["yes", " YES\n", "No", "always", "yes please", "y", "", "toString"].map(choiceOf), ["once", "once", "deny", "thread", null, null, null, null]);
});

test("parameters are shown one by one", async () => {
  const { partsOf } = await load("pages/gate/card");
  assert.deepEqual(partsOf({ path: "a.md", append: true, tags: ["x"] }), [{ name: "path", text: "a.md" }, { name: "append", text: "true" }, { name: "tags", text: '[\n  "x"\n]' }]);
  assert.deepEqual([partsOf("rm -rf"), partsOf({}), partsOf(null)], [[{ name: "", text: '"rm -rf"' }], [{ name: "", text: "{}" }], [{ name: "", text: "null" }]]);
});

test("a button counts once it has stayed in its place", async () => {
  const { createSteady } = await load("pages/gate/card");
  const { look } = createSteady(500);
  const seen = [["a", 0], ["a", 499], ["a", 500], ["b", 600], ["b", 1_000], ["b", 1_100], ["b", 9_000], ["b", 9_500]].map(([place, at]) => look(place, at));
  assert.deepEqual(seen, [false, false, true, false, false, true, false, true], "it appears, moves, and appears again after a hidden tab");
});

test("what came since the inbox was read, and what news is about", async () => {
  const { countAdded } = await load("pages/inbox");
  const { subjectOf } = await load("pages/inbox");
  const one = (id, state) => ({ id, state });
  const listed = { calls: ["1"], jobs: ["5"] };
  assert.equal(countAdded([one("1", "pending"), one("2", "pending"), one("3", "denied")], [one("5", "submitted"), one("6", "stuck"), one("7", "failed")], listed), 2);
  assert.deepEqual([{ gate_id: "g", thread_id: "t" }, { job_id: "j" }, { thread_id: "t" }, {}].map(subjectOf), ["/inbox/gates/g", "/jobs/j", "/chat/t", null]);
});

// --- chat

const entry = (seq, role, data = {}) => ({ id: `e${seq ?? data.id}`, seq, at: `2026-01-01T00:00:${String(seq ?? 59).padStart(2, "0")}Z`, role, ...data });
const keys = (talk) => talk.rows().map(({ key }) => key);

test("entries of a thread are in order, however they arrive", async () => {
  const { createConversation } = await load("pages/chat/conversation");
  const talk = createConversation();
  talk.take("message", entry(4, "assistant", { content: "b" }));
  talk.newest([entry(3, "user", { content: "a" }), entry(4, "assistant", { content: "b" }), { ...entry(null, "user", { content: "c" }), id: "e5" }], "page");
  assert.deepEqual([keys(talk), talk.cursor()], [["e3", "e4", "e5"], "page"], "an event may come before the first page");
  const late = createConversation();
  late.newest([entry(7, "user"), entry(8, "assistant")], "before 7");
  late.newest([entry(8, "assistant"), entry(9, "user")], "before 8");
  assert.deepEqual([keys(late), late.cursor()], [["e7", "e8", "e9"], "before 7"], "a later page does not hide what is before the first one");
  late.newest([entry(6, "user"), entry(7, "user"), entry(8, "assistant"), entry(9, "user")], "before 6");
  assert.equal(late.cursor(), "before 6");
  const whole = createConversation();
  whole.newest([entry(3, "user")], "page");
  whole.earlier([entry(1, "user"), entry(2, "assistant")], null);
  whole.take("message", { ...entry(null, "user"), id: "e9" });
  whole.take("message", entry(4, "assistant"));
  assert.deepEqual([keys(whole), whole.cursor()], [["e1", "e2", "e3", "e4", "e9"], null]);
  whole.newest([entry(4, "assistant"), { ...entry(5, "user"), id: "e9" }], "page");
  whole.take("message", { ...entry(null, "user"), id: "e9" });
  whole.take("message", entry(6, "assistant"));
  assert.deepEqual(keys(whole), ["e1", "e2", "e3", "e4", "e9", "e6"], "a queued message keeps the place that it got");
  whole.newest([entry(40, "user"), entry(41, "assistant")], "later");
  assert.deepEqual([keys(whole), whole.cursor()], [["e40", "e41"], "later"], "what is apart is not joined");
});

test("a thread keeps a bounded number of entries, the newest", async () => {
  const { createConversation, MAX_ENTRIES } = await load("pages/chat/conversation");
  const talk = createConversation();
  const at = "2026-01-01T00:00:00Z";
  for (let seq = 1; seq <= MAX_ENTRIES + 5; seq += 1) talk.take("message", { id: `e${seq}`, seq, at, role: "user", content: "x" });
  assert.deepEqual([talk.rows().length, keys(talk)[0], talk.isFull(), talk.cursor()], [MAX_ENTRIES, "e6", true, null]);
  talk.earlier([{ id: "e5", seq: 5, at, role: "user", content: "x" }], "page");
  assert.equal(keys(talk)[0], "e6");
  const large = createConversation();
  large.newest([entry(9, "assistant", { content: "x".repeat(3_000_000) })], "page");
  large.earlier([entry(8, "user", { content: "x".repeat(2_000_000) })], null);
  assert.deepEqual([keys(large), large.isFull(), large.cursor()], [["e9"], true, null], "an earlier page that is too large is not shown");
  talk.take("message", { id: "long", seq: 9_999, at, role: "assistant", content: "x".repeat(5_000_000) });
  assert.deepEqual(keys(talk), ["long"], "and a bounded size");
});

test("pieces of an answer count until its message or another start", async () => {
  const { createConversation } = await load("pages/chat/conversation");
  const talk = createConversation();
  const piece = (kind, text) => talk.take("delta", { kind, text });
  piece("text", "lo");
  assert.deepEqual(talk.live(), { text: "lo", reasoning: "", isCut: true }, "its beginning was not heard");
  piece("start");
  piece("reasoning", "hm");
  piece("text", "a");
  piece("text", "b");
  talk.take("message", entry(1, "user", { content: "while it writes" }));
  assert.deepEqual(talk.live(), { text: "ab", reasoning: "hm", isCut: false });
  piece("start");
  assert.deepEqual(talk.live(), { text: "", reasoning: "", isCut: false }, "the model was asked again");
  piece("text", "c");
  talk.take("message", entry(2, "assistant", { content: "c" }));
  assert.equal(talk.live(), null);
  talk.take("status", { message: "waits" });
  assert.equal(talk.progress(), "waits");
  piece("text", "x".repeat(70_000));
  assert.deepEqual([talk.progress(), talk.live().text.length, talk.live().isCut], ["", 65_536, true]);
  talk.take("thread_state", { state: "idle" });
  assert.equal(talk.live(), null);
});

test("a call, its result and its gate are in one place", async () => {
  const { placesOf, rowsOf } = await load("pages/chat/conversation");
  const use = (seq) => entry(seq, "tool_use", { call_id: "c1", tool: "http", input: {} });
  const end = (seq) => entry(seq, "tool_result", { call_id: "c1", tool: "http", success: true, output: "" });
  const rows = rowsOf([end(1), use(2), end(3), use(4)]);
  assert.deepEqual(rows.map(({ key, result }) => [key, result?.id ?? null]), [["e1", null], ["e2", "e3"], ["e4", null]], "other turns may use the same id");
  const again = rowsOf([end(1), use(2), end(3), use(4), end(5)].map((one) => rows.flatMap(({ entry, result }) => [entry, result]).find((known) => known?.id === one.id) ?? one), rows);
  assert.deepEqual(again.map((row, index) => row === rows[index]), [true, true, false], "a row that has not changed is the same");
  const gate = (id, call, second, state = "pending") => ({ id, call_id: call, state, created_at: `2026-01-01T00:00:0${second}Z` });
  const places = placesOf(rows, [gate("g1", "c1", 1, "denied"), gate("g2", "c1", 3, "approved"), gate("g3", null, 5), gate("g4", "c1", 0, "denied"), gate("g5", "c9", 5, "approved"), gate("g6", "c1", 5)]);
  assert.deepEqual([...places].map(([key, gates]) => [key, gates.map(({ id }) => id)]), [["e2", ["g1"]], ["e4", ["g2"]], [null, ["g3", "g6"]]], "without its call only one that waits has a place");
});

test("a gate that was resolved never waits again, and one thread of the user has a key", async () => {
  const { gates, putGate, putThread, threadOf, threads } = await load("store");
  const gate = (state) => ({ id: "g", state, parameters: {} });
  putGate(gate("denied"), 5);
  putGate(gate("pending"), 9);
  assert.equal(gates.get("g").state, "denied");
  const thread = (id, key) => ({ id, key, title: "", state: "idle" });
  putThread(thread("t1", "main"), 1, true);
  putThread(thread("t3", "main"), 1);
  assert.equal(threadOf("main").id, "t1", "another user's has the same key");
  putThread(thread("t2", "main"), 2, true);
  assert.deepEqual([threads.get("t1").key, threadOf("main").id, threadOf("t3").id], [null, "t2", "t3"]);
  [gates, threads].forEach((table) => table.clear());
});

test("all threads are one page", async () => {
  const { pageOf } = await load("router");
  const page = (path) => pageOf(resolve(new URL(`http://a${path}`)));
  assert.deepEqual(["/chat", "/chat/main", "/jobs/1/files/a", "/jobs"].map(page), ["chat", "chat", "job 1", "/jobs"]);
});

test("named threads come first", async () => {
  const { namedFirst } = await load("pages/chat");
  assert.deepEqual(namedFirst([{ id: "3" }, { id: "2", key: "main" }, { id: "1" }]).map(({ id }) => id), ["2", "3", "1"]);
});
