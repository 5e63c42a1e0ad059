// Checks the public API with a TypeScript client that is generated from its OpenAPI document: a job from its creation to its
// cancellation. That this file compiles with `tsc --strict` is a part of the check: every answer and every event is typed.
//
//     openapi-typescript openapi.json -o gantry.d.ts && tsc
//     GANTRY_URL=http://127.0.0.1:PORT GANTRY_TOKEN=… node check_api.js
//
// Must stand beside the generated `gantry.d.ts`. The server's model must be the built-in script.

import assert from "node:assert/strict";
import createClient from "openapi-fetch";
import type { components, paths } from "./gantry.js";

type Event = components["schemas"]["Event"];
type InstanceEvent = components["schemas"]["InstanceEvent"];

const baseUrl = process.env["GANTRY_URL"] ?? assert.fail("GANTRY_URL is not set");
const headers = { Authorization: `Bearer ${process.env["GANTRY_TOKEN"]}` };
// Without the second argument the type of an answer that is a page or a stream would also be `string`.
const api = createClient<paths, "application/json" | "application/problem+json">({ baseUrl, headers });

/** One line about an event. The compiler checks that each kind is handled. */
function line(event: Event): string {
  switch (event.kind) {
    case "state":
      return `${event.data.from ?? "none"} -> ${event.data.to}`;
    case "message":
      return `${event.data.role}: ${event.data.content}`;
    case "reasoning":
      return event.data.content;
    case "plan":
      return event.data.steps.map((step) => step.tool).join();
    case "tool_use":
      return `${event.data.tool} ${JSON.stringify(event.data.input)}`;
    case "tool_result":
      return event.data.success ? event.data.output : `failed: ${event.data.output}`;
    case "llm_call":
      return `${event.data.model}: ${event.data.input_tokens + event.data.output_tokens} tokens`;
    case "status":
      return event.data.message;
    case "log":
      return `${event.data.stream}: ${event.data.text}`;
    case "egress":
      return `${event.data.decision} ${event.data.host}:${event.data.port}`;
    case "limit":
      return `${event.data.limit}`;
    case "result":
      return event.data.outcome;
    default:
      return event satisfies never;
  }
}

/** The events of a job, from its stream, until it has finished. */
async function* follow(id: string): AsyncGenerator<Event> {
  const { data, response } = await api.GET("/api/jobs/{id}/events", {
    params: { path: { id } },
    headers: { Accept: "text/event-stream" },
    parseAs: "stream",
  });
  assert.equal(response.status, 200);
  let text = "";
  const decoder = new TextDecoder();
  for await (const chunk of data as ReadableStream<Uint8Array>) {
    text += decoder.decode(chunk, { stream: true });
    for (let end = text.indexOf("\n\n"); end >= 0; end = text.indexOf("\n\n")) {
      const fields = new Map(text.slice(0, end).split("\n").map((field) => field.split(/: (.*)/s, 2) as [string, string]));
      text = text.slice(end + 2);
      if (fields.get("event") === "end") return;
      const content = fields.get("data");
      if (content) yield JSON.parse(content) as Event;
    }
  }
  assert.fail("the stream has ended before the job");
}

const refused = await api.POST("/api/jobs", { body: { prompt: "" } });
assert.equal(refused.error?.code, "invalid");
assert.equal(refused.error?.errors?.[0]?.field, "prompt");

const created = await api.POST("/api/jobs", {
  params: { header: { "Idempotency-Key": crypto.randomUUID() } },
  body: { prompt: "count slowly", labels: { client: "typescript" }, files: [{ path: "notes/a.txt", content: "from a client" }] },
});
assert(created.data, JSON.stringify(created.error));
const path = { id: created.data.id };
const seen: string[] = [];
const lines: string[] = [];
let isPrompted = false;
let isCancelled = false;
let end: Event | undefined;
for await (const event of follow(path.id)) {
  seen.push(event.kind);
  lines.push(line(event));
  end = event;
  if (event.kind === "tool_result" && event.data.output.includes("of 40]") && !isPrompted) {
    isPrompted = true;
    const prompted = await api.POST("/api/jobs/{id}/prompt", { params: { path }, body: { content: "count by ten" } });
    assert(prompted.data?.prompt_id, JSON.stringify(prompted.error));
  }
  if (event.kind === "message" && event.data.content.includes("by ten from here") && event.data.role === "assistant" && !isCancelled) {
    isCancelled = true;
    const archive = await api.GET("/api/jobs/{id}/archive", { params: { path }, parseAs: "arrayBuffer" });
    const tar = Buffer.from(archive.data ?? assert.fail(JSON.stringify(archive.error)));
    assert(tar.includes("notes/a.txt") && tar.includes("from a client"), "the archive has the file");
    const cancelled = await api.POST("/api/jobs/{id}/cancel", { params: { path } });
    assert(cancelled.data?.cancel_requested_at, JSON.stringify(cancelled.error));
  }
}
assert(isPrompted && isCancelled, lines.join("\n"));
assert(end?.kind === "state" && end.data.to === "cancelled" && end.data.reason === "cancelled_by_user", lines.at(-1));
for (const kind of ["state", "message", "tool_use", "tool_result", "llm_call", "result"]) assert(seen.includes(kind), kind);

const page = await api.GET("/api/jobs/{id}/events", { params: { path, query: { limit: 5, kind: "tool_use" } } });
const tools: string[] = page.data?.items.map((event) => (event.kind === "tool_use" ? event.data.tool : "")) ?? [];
assert(tools.includes("shell"), JSON.stringify(page.data));
const jobs = await api.GET("/api/jobs", { params: { query: { label: ["client:typescript"] } } });
assert.deepEqual(jobs.data?.items.map((job) => [job.id, job.state]), [[path.id, "cancelled"]]);

// Without this header the answer is a stream.
const accept = { Accept: "application/json" };
const instance = await api.GET("/api/events", { params: { query: { kind: "state,notification" } }, headers: accept });
const states = instance.data?.items.flatMap((event: InstanceEvent) => (event.kind === "state" ? [`${event.job_id} ${event.data.to}`] : []));
assert(states?.includes(`${path.id} cancelled`), JSON.stringify(instance.data));

const settings = await api.PUT("/api/settings", { body: { timezone: "Europe/Oslo" } });
assert.equal(settings.data?.timezone, "Europe/Oslo", JSON.stringify(settings.error));
console.log(`ok    a job with the TypeScript client (${seen.length} events)`);
