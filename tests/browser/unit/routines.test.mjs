// Tests of the pages of routines, runs and the schedule that need no browser.

import assert from "node:assert/strict";
import { register } from "node:module";
import { test } from "node:test";

register("../import_map.mjs", import.meta.url);
const nowhere = { addEventListener() {}, removeEventListener() {}, hidden: false };
const storage = { getItem: () => null, setItem() {}, removeItem() {} };
Object.assign(globalThis, { localStorage: storage, sessionStorage: storage, document: nowhere });
globalThis.addEventListener = () => {};
globalThis.removeEventListener = () => {};
globalThis.navigator ??= {};
globalThis.BroadcastChannel = class { postMessage() {} close() {} };
const realInterval = globalThis.setInterval;
globalThis.setInterval = (...of) => realInterval(...of).unref();

const load = (name) => import(new URL(`../../../orchestrator/dashboard/app/pages/${name}.js`, import.meta.url));
const HOUR = 3_600_000;

// --- definitions

const ROUTINE = {
  id: "r1", rev: 3, name: "news", description: null, enabled: true, trigger: { type: "webhook", path: "p", has_secret: true }, action: { type: "lightweight", prompt: "look" },
  guardrails: { cooldown_seconds: 300, budget: { max_cost_usd: 1, max_tokens: 9, per: "day" } }, notify: { on_failure: true, has_webhook_secret: true }, session: "isolated",
};

test("a definition has neither secrets nor what the server computes", async () => {
  const { definitionOf } = await load("routine/definition");
  const { id, rev, description, ...rest } = ROUTINE;
  assert.deepEqual(definitionOf(ROUTINE), { ...rest, trigger: { type: "webhook", path: "p" }, notify: { on_failure: true } });
});

test("a patch has only what has changed, and sets to its default what was removed", async () => {
  const { definitionOf, patchOf, withValue } = await load("routine/definition");
  const base = definitionOf(ROUTINE);
  assert.deepEqual(patchOf(base, structuredClone(base)), {});
  let next = withValue(base, "guardrails.budget.max_tokens", undefined);
  next = withValue(next, "guardrails.retry.max_attempts", 3);
  next = withValue(next, "trigger.where", "true");
  next = withValue(next, "description", "what");
  const { notify, ...left } = next;
  assert.deepEqual(patchOf(base, left), {
    notify: null, description: "what", trigger: { type: "webhook", path: "p", where: "true" }, guardrails: { budget: { max_tokens: null }, retry: { max_attempts: 3 } },
  });
  assert.deepEqual(Object.keys(withValue(base, "name", "other")), Object.keys(base));
});

test("the differences of two definitions are their single values", async () => {
  const { differences } = await load("routine/definition");
  const mine = { name: "a", guardrails: { budget: null, retry: { max_attempts: 2 } }, tools: ["x"] };
  const theirs = { name: "a", guardrails: { budget: { per: "day" } }, tools: ["x"], description: "d" };
  assert.deepEqual(differences(theirs, mine).map(({ field, one, other }) => [field, one, other]), [
    ["description", "d", undefined], ["guardrails.budget.per", "day", undefined], ["guardrails.retry.max_attempts", undefined, 2],
  ]);
});

test("what was changed is a field, or a part that is replaced as a whole", async () => {
  const { isChanged } = await load("routine/definition");
  const base = { action: { prompt: "a", model: "m" }, guardrails: { cooldown_seconds: 1, max_runs: null } };
  const mine = { action: { prompt: "b", model: "m" }, guardrails: { cooldown_seconds: 2 } };
  assert.deepEqual(["action.model", "guardrails.cooldown_seconds", "guardrails.max_runs", "description"].map((field) => isChanged(base, mine, field)), [true, true, false, false]);
});

test("another type of trigger or action keeps what was written for both", async () => {
  const { withType } = await load("routine/fields");
  const kept = new Map();
  const start = { name: "n", session: "isolated", persist_payload: false, trigger: { type: "cron", schedule: "@daily" }, action: { type: "lightweight", prompt: "look", use_tools: true } };
  const job = withType(start, "action", "full_job", kept);
  assert.deepEqual(job, { name: "n", trigger: start.trigger, action: { type: "full_job", description: "look" } });
  assert.deepEqual(withType(job, "action", "lightweight", kept).action, start.action);
  const manual = withType(start, "trigger", "manual", kept);
  assert.deepEqual(manual.trigger, { type: "manual" });
  assert.deepEqual(withType(manual, "trigger", "cron", kept).trigger, start.trigger);
});

// --- words

test("triggers, times and reasons have words", async () => {
  const { interval, localTime, short, triggerWords, whyOf } = await load("routine/words");
  assert.deepEqual([90, 600, 7_200, 86_400].map(interval), ["90 s", "10 min", "2 h", "1 d"]);
  assert.equal(triggerWords({ type: "every", every_seconds: 600 }), "every 10 min");
  const cron = (schedule) => triggerWords({ type: "cron", schedule });
  assert.deepEqual(["30 7 * * *", "0 9 * * MON-FRI", "5 18 * * 0,3-7"].map(cron), ["every day at 07:30", "Mon-Fri at 09:00", "Sun, Wed-Sun at 18:05"]);
  for (const other of ["*/5 * * * *", "0 9 1 * *", "0 9,17 * * *", "0 9 * 6 *", "0 9 * * 5L", "0 9 * * MON#2", "0 0 9 * * *"]) assert.equal(cron(other), `cron ${other}`);
  assert.equal(triggerWords({ type: "event", pattern: "(?i)refund", channel: "support" }), "event support /(?i)refund/");
  assert.equal(triggerWords(undefined), "undefined");
  assert.deepEqual(localTime("2026-12-03T08:30:00+01:00"), { text: "Thu 3 Dec, 08:30", offset: "+01:00" });
  assert.deepEqual(localTime("2026-12-03T08:30:10Z"), { text: "Thu 3 Dec, 08:30:10", offset: "UTC" });
  assert.deepEqual(localTime("soon"), { text: "soon", offset: "" });
  assert.deepEqual([null, 240, 1_240, 64_000].map(short), ["–", "240 ms", "1.2 s", "01:04"]);
  assert.equal(whyOf({ reason: "overlap", message: "a run was in progress", skipped_count: 3 }), "×3 overlap: a run was in progress");
  assert.equal(whyOf({ missed_count: 1 }), "");
});

test("bars are as high as runs took long, and those that did not start are low", async () => {
  const { heightOf } = await load("routine/words");
  assert.equal(heightOf(10, 10), 1);
  assert.ok(heightOf(0, 10) === heightOf(null, 10) && heightOf(5, 10) > heightOf(1, 10));
  assert.equal(heightOf(0, 0), heightOf(null, 10));
});

// --- weeks

test("weeks are those of ISO 8601", async () => {
  const { mondayOf, shifted, weekOf } = await load("schedule/week");
  const cases = [["2026-11-29", "2026-W48"], ["2026-11-30", "2026-W49"], ["2027-01-03", "2026-W53"], ["2027-01-04", "2027-W01"], ["2024-12-30", "2025-W01"]];
  for (const [day, week] of cases) assert.equal(weekOf(Date.parse(day) + HOUR), week, day);
  assert.equal(new Date(mondayOf("2026-W48")).toISOString(), "2026-11-23T00:00:00.000Z");
  assert.deepEqual(["2026-W54", "2025-W53", "2026-W00", "48", null].map(mondayOf), [null, null, null, null, null]);
  assert.deepEqual([shifted("2026-W53", 1), shifted("2027-W01", -1)], ["2027-W01", "2026-W53"]);
});

test("hours of UTC stand where they begin in the zone, also when its clock changes", async () => {
  const { gridOf } = await load("schedule/week");
  const counts = (week, zone, day) => gridOf(week, zone).days[day].hours.map((hours) => hours.length);
  const whole = gridOf("2026-W48", "Europe/Oslo");
  assert.deepEqual([whole.from, whole.to], [Date.parse("2026-11-22T23:00Z"), Date.parse("2026-11-29T23:00Z")]);
  assert.deepEqual(whole.days[6].hours[14], [Date.parse("2026-11-29T13:00Z")]);
  // Summer time begins: there is no hour at 2. It ends: there are two.
  assert.deepEqual(counts("2026-W13", "Europe/Oslo", 6), [1, 1, 0, ...Array(21).fill(1)]);
  assert.deepEqual(counts("2026-W43", "Europe/Oslo", 6), [1, 1, 2, ...Array(21).fill(1)]);
  // No hour of a week is left out or stands twice.
  for (const zone of ["Pacific/Kiritimati", "Etc/GMT+12", "Asia/Kolkata", "America/New_York"]) {
    const all = gridOf("2026-W48", zone).days.flatMap(({ hours }) => hours.flat());
    assert.deepEqual([all.length, new Set(all).size, all.at(-1) - all[0]], [168, 168, 167 * HOUR], zone);
  }
});

test("a time is written and read in a zone", async () => {
  const { fromLocal, toLocal } = await load("schedule/week");
  for (const zone of ["Europe/Oslo", "America/New_York", "Asia/Kolkata", "UTC"]) {
    for (const at of ["2026-03-29T00:30Z", "2026-07-01T12:00Z", "2026-10-25T05:30Z"].map((text) => Date.parse(text))) assert.equal(fromLocal(toLocal(at, zone), zone), at, zone);
  }
  assert.equal(fromLocal("2026-12-01T07:00", "America/Los_Angeles"), Date.parse("2026-12-01T15:00Z"));
  assert.ok(Number.isNaN(fromLocal("", "UTC")));
});

// --- the store

test("events of runs and routines change rows, which hold no long texts", async () => {
  const { KINDS, push, putRoutine, routines, runs } = await import(new URL("../../../orchestrator/dashboard/app/store.js", import.meta.url));
  assert.ok(KINDS.includes("run") && KINDS.includes("routine"));
  globalThis.fetch = () => new Promise(() => {});
  globalThis.location ??= { origin: "http://a" };
  globalThis.requestAnimationFrame = (run) => setTimeout(run, 0);
  globalThis.cancelAnimationFrame = clearTimeout;
  const long = "x".repeat(5_000);
  putRoutine({ ...ROUTINE, status: "unverified", state: long, description: long }, 1);
  assert.deepEqual([routines.get("r1").action, routines.get("r1").state, routines.get("r1").description.length], [undefined, undefined, 200]);
  const run = { id: "u1", routine_id: "r1", status: "running", result_summary: long, result: long, trigger_detail: { payload: long } };
  push({ kind: "run", cursor: 5, data: run });
  push({ kind: "routine", cursor: 6, data: { change: "updated", ...ROUTINE, rev: 4, status: "running" } });
  push({ kind: "run", cursor: 7, data: { ...run, status: "failed" } });
  await new Promise((end) => setTimeout(end, 20));
  assert.deepEqual([runs.get("u1").status, runs.get("u1").result_summary.length, runs.get("u1").result], ["failed", 200, undefined]);
  assert.deepEqual([routines.get("r1").rev, routines.get("r1").status], [4, "failing"]);
  push({ kind: "routine", cursor: 8, data: { change: "deleted", ...ROUTINE } });
  await new Promise((end) => setTimeout(end, 20));
  assert.equal(routines.get("r1"), undefined);
  for (let number = 0; number < 600; number += 1) push({ kind: "run", cursor: 10 + number, data: { ...run, id: `n${number}` } });
  await new Promise((end) => setTimeout(end, 20));
  assert.equal(runs.all().length, 500);
});

test("a notification of a run leads to the run", async () => {
  const { subjectOf } = await load("inbox");
  assert.deepEqual([{ run_id: "u", job_id: "j", routine_id: "r" }, { routine_id: "r" }].map(subjectOf), ["/runs/u", "/routines/r"]);
});

// --- runs

test("new runs are those that the filters let through", async () => {
  const { countNew, filters } = await load("runs");
  assert.deepEqual(filters(new URLSearchParams("status=ok,failed&routine=r1&x=1")), { status: "ok,failed", routine_id: "r1" });
  const run = (id, status, created_at = "2026-11-29T10:00:00Z") => ({ id, status, created_at, routine_id: "r1", trigger_type: "cron", user_id: "ada" });
  const heard = [run("1", "ok"), run("2", "failed"), run("3", "running"), run("4", "ok", "2026-11-29T08:00:00Z")];
  assert.equal(countNew(heard, {}, new Set(["1"])), 3);
  assert.equal(countNew(heard, { status: "ok,failed" }, new Set()), 3);
  assert.equal(countNew(heard, { status: "ok", since: "2026-11-29T09:00:00Z" }, new Set()), 1);
  assert.equal(countNew(heard, { until: "2026-11-29T09:00:00Z" }, new Set()), 1);
  assert.equal(countNew(heard, { routine_id: "r2" }, new Set()), 0);
});

test("a call and its result are one entry of a transcript", async () => {
  const { joined } = await load("run");
  const call = (seq, kind, attempt = 1) => ({ seq, attempt, kind, data: { call_id: "c" } });
  const rows = joined([call(1, "tool_result", 2), call(2, "tool_use"), { seq: 3, attempt: 1, kind: "message", data: { content: "x" } }, call(4, "tool_result")]);
  assert.deepEqual(rows.map(({ message, result }) => [message.seq, result?.seq ?? null]), [[1, null], [2, 4], [3, null]]);
});

test("a JSON text is an object, or there is a reason", async () => {
  const { parse } = await load("edit_routine");
  assert.deepEqual(parse('{"name":"a"}').value, { name: "a" });
  for (const text of ["[]", "null", "{", "7"]) assert.ok(parse(text).value === null && parse(text).why, text);
});
