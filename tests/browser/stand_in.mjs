// A source of events for budgets: a server in front of the real one, which passes everything on but the streams of events.
//
// It stands in for the part of the server between a stored event and the stream: so many events a second cannot be had from real jobs on
// a machine that also runs the browser. The events have the form and the numbers of real ones: those of the installation are about seeded
// jobs, those of a job follow its last one. One finished job is shown as running, so that its page follows it. Pages, lists, objects and
// sessions are the real server's. The real way from the store to the page is measured apart, at the rate of a real job.

import { createServer, request } from "node:http";

const TICK_MS = 10;
const HEARTBEAT_MS = 15_000;
/** Positions after those of the real server. */
const FIRST_CURSOR = 1_000_000_000;
const STREAM = { "Content-Type": "text/event-stream", "Cache-Control": "no-cache" };

/**
 * `job` is the one that is shown as running, with its last event; `others` are jobs that events are about.
 * @param {string} target @param {{ job: string, last: number, others: string[], user: string }} of
 */
export async function startStandIn(target, { job, last, others, user }) {
  const { host, hostname, port, origin } = new URL(target);
  let [cursor, seq, sent, owed, rate] = [FIRST_CURSOR, last, 0, 0, 0];
  /** The open streams of the installation, and of the job. */
  const [instances, details] = [new Set(), new Set()];

  const write = (streams, text) => {
    for (const stream of streams) stream.write(text);
  };
  const message = (id, kind, event) => `id: ${id}\nevent: ${kind}\ndata: ${JSON.stringify(event)}\n\n`;

  /** A change of a job in the list. */
  function sendOfInstance() {
    cursor += 1;
    const [kind, data] = cursor % 2 === 0 ? ["state", { from: "pending", to: "in_progress", reason: null, message: null }]
      : ["llm_call", { model: "m", input_tokens: 1, output_tokens: 1, duration_ms: 1, cost_usd: 0, finish_reason: "stop" }];
    write(instances, message(cursor, kind, { v: 1, cursor, at: new Date().toISOString(), user_id: user, job_id: others[cursor % others.length], kind, data }));
  }

  /** A message of the job, with the time when it is sent. */
  function messageOfJob(seq) {
    const data = { role: "assistant", content: `sent=${Date.now()} ${"x".repeat(300)}` };
    return { v: 1, seq, at: new Date().toISOString(), attempt: 1, kind: "message", data };
  }

  function sendOfJob() {
    [seq, cursor] = [seq + 1, cursor + 1];
    const event = messageOfJob(seq);
    write(details, message(seq, "message", event));
    // Where one stream has both.
    write([...instances].filter((stream) => stream.hasJob), message(cursor, "message", { ...event, cursor, user_id: user, job_id: job }));
  }

  let tickedAt = performance.now();
  const ticker = setInterval(() => {
    const now = performance.now();
    owed += (rate * (now - tickedAt)) / 1_000;
    for (tickedAt = now; owed >= 1; owed -= 1) {
      (sent += 1) % 4 === 0 ? sendOfInstance() : sendOfJob();
    }
  }, TICK_MS);
  const heart = setInterval(() => write([...instances, ...details], ": alive\n\n"), HEARTBEAT_MS);

  /** @param {URL} url */
  function follow(url, response) {
    const isInstance = url.pathname === "/api/events";
    const streams = isInstance ? instances : details;
    response.writeHead(200, STREAM);
    response.hasJob = url.searchParams.get("job") === job;
    if (isInstance) response.write(`id: ${cursor}\n\n`);
    // What was sent before the reader came.
    else for (let next = Number(url.searchParams.get("after")) + 1; next <= seq; next += 1) response.write(message(next, "message", messageOfJob(next)));
    streams.add(response);
    response.on("close", () => streams.delete(response));
  }

  /** Passes a request on. The job is running. */
  function pass(incoming, response, isJob) {
    const headers = { ...incoming.headers, host };
    if (headers.origin) headers.origin = origin;
    if (isJob) headers["accept-encoding"] = "identity";
    const outgoing = request({ hostname, port, path: incoming.url, method: incoming.method, headers }, (answer) => {
      if (!isJob || answer.statusCode !== 200) {
        response.writeHead(answer.statusCode, answer.headers);
        return answer.pipe(response);
      }
      const pieces = [];
      answer.on("data", (piece) => pieces.push(piece));
      answer.on("end", () => {
        const body = { ...JSON.parse(Buffer.concat(pieces).toString()), state: "in_progress", finished_at: null, result: null };
        response.writeHead(200, { "content-type": "application/json" });
        response.end(JSON.stringify(body));
      });
    });
    outgoing.on("error", () => response.destroy());
    incoming.pipe(outgoing);
    response.on("close", () => outgoing.destroy());
  }

  const server = createServer((incoming, response) => {
    const url = new URL(incoming.url, target);
    const isStream = incoming.headers.accept === "text/event-stream";
    const isOfJob = url.pathname === `/api/jobs/${job}/events`;
    if (isStream && (url.pathname === "/api/events" || isOfJob)) return follow(url, response);
    pass(incoming, response, incoming.method === "GET" && url.pathname === `/api/jobs/${job}`);
  });
  await new Promise((resolve) => server.listen(0, "127.0.0.1", resolve));
  return {
    url: `http://127.0.0.1:${server.address().port}`,
    /** Events a second from now on: one of four is of the installation, the others are of the job. */
    setRate: (perSecond) => void ([rate, owed] = [perSecond, 0]),
    /** The last event of the job. */
    lastSeq: () => seq,
    sent: () => sent,
    /** How many streams are open: of the installation, and of the job. */
    open: () => ({ instances: instances.size, details: details.size + [...instances].filter((stream) => stream.hasJob).length }),
    async stop() {
      clearInterval(ticker);
      clearInterval(heart);
      server.closeAllConnections();
      await new Promise((resolve) => server.close(resolve));
    },
  };
}
