// Checks that the official `openai` and `@anthropic-ai/sdk` clients for Node work against `gantry llm serve`.
//
//     gantry llm serve --script tests/clients/clients.yaml
//     node check_clients.mjs BASE_URL        (where it listens, as in http://127.0.0.1:PORT)
//
// Exits 1 when anything differs from what the script says. Must stand beside a `node_modules` with both packages.

import assert from "node:assert/strict";
import Anthropic from "@anthropic-ai/sdk";
import OpenAI from "openai";

const base = process.argv[2];
assert(base, "usage: node check_clients.mjs BASE_URL");
const QUESTION = "What is the weather in Oslo and Bergen?";
const SCHEMA = { type: "object", properties: { city: { type: "string" } }, required: ["city"] };
const OPENAI_TOOL = { type: "function", function: { name: "weather", description: "The weather of a city.", parameters: SCHEMA } };
const RESPONSES_TOOL = { type: "function", name: "weather", description: "The weather of a city.", parameters: SCHEMA, strict: false };
const ANTHROPIC_TOOL = { name: "weather", description: "The weather of a city.", input_schema: SCHEMA };
const CALLS = [
  ["call_oslo", { city: "Oslo", days: 2 }],
  ["call_bergen", { city: "Bergen", note: `said ${QUESTION}` }],
];
const RESULTS = { call_oslo: "sun", call_bergen: "rain, as ever" };

const options = { maxRetries: 0, timeout: 20_000, apiKey: "none" };
const openai = new OpenAI({ ...options, baseURL: `${base}/v1` });
const anthropic = new Anthropic({ ...options, baseURL: base });
const user = (content) => ({ role: "user", content });

async function collect(stream) {
  const items = [];
  for await (const item of stream) items.push(item);
  return items;
}

const checks = {
  async openai_text() {
    const answer = await openai.chat.completions.create({ model: "m-1", messages: [user("hello")] });
    assert.equal(answer.choices[0].message.content, "You said: hello");
    assert.deepEqual([answer.model, answer.usage.total_tokens], ["m-1", 18]);
    const stream = await openai.chat.completions.create({
      model: "m", messages: [user("hello")], stream: true, stream_options: { include_usage: true },
    });
    const chunks = await collect(stream);
    assert.equal(chunks.map((chunk) => chunk.choices[0]?.delta.content ?? "").join(""), "You said: hello");
    assert.equal(chunks.at(-1).usage.total_tokens, 18);
  },

  async openai_tools() {
    const request = { model: "m", messages: [user(QUESTION)], tools: [OPENAI_TOOL] };
    const calls = (message) => message.tool_calls.map((call) => [call.id, JSON.parse(call.function.arguments)]);
    const whole = (await openai.chat.completions.create(request)).choices[0];
    assert.deepEqual([whole.finish_reason, calls(whole.message)], ["tool_calls", CALLS]);
    const streamed = (await openai.chat.completions.stream(request).finalChatCompletion()).choices[0];
    assert.deepEqual([streamed.finish_reason, calls(streamed.message)], ["tool_calls", CALLS]);
    assert.equal(streamed.message.content, "I ask for both.");
    const results = Object.entries(RESULTS).map(([id, content]) => ({ role: "tool", tool_call_id: id, content }));
    const next = await openai.chat.completions.create({ ...request, messages: [user(QUESTION), whole.message, ...results] });
    assert.equal(next.choices[0].message.content, "Bergen: rain, as ever.");
  },

  async openai_responses() {
    const request = { model: "m", input: [user(QUESTION)], tools: [RESPONSES_TOOL], store: false };
    const calls = (response) =>
      response.output.filter((item) => item.type === "function_call").map((item) => [item.call_id, JSON.parse(item.arguments)]);
    const whole = await openai.responses.create(request);
    assert.deepEqual([whole.output_text, calls(whole)], ["I ask for both.", CALLS]);
    const stream = openai.responses.stream(request);
    const events = await collect(stream);
    const streamed = await stream.finalResponse();
    assert.deepEqual([streamed.output_text, calls(streamed)], ["I ask for both.", CALLS]);
    const kinds = new Set(events.map((event) => event.type));
    for (const kind of ["response.reasoning_summary_text.delta", "response.output_text.delta", "response.completed"]) {
      assert(kinds.has(kind), kind);
    }
    const results = Object.entries(RESULTS).map(([id, output]) => ({ type: "function_call_output", call_id: id, output }));
    const next = await openai.responses.create({ ...request, input: [user(QUESTION), ...whole.output, ...results] });
    assert.equal(next.output_text, "Bergen: rain, as ever.");
  },

  async openai_errors() {
    const ask = (text) => openai.chat.completions.create({ model: "m", messages: [user(text)] });
    await assert.rejects(ask("too busy"), OpenAI.RateLimitError);
    await assert.rejects(ask("wrong key"), OpenAI.AuthenticationError);
    await assert.rejects(ask("broken"), OpenAI.InternalServerError);
  },

  async anthropic_text() {
    const request = { model: "m-1", max_tokens: 100, messages: [user("hello")] };
    const answer = await anthropic.messages.create(request);
    assert.deepEqual([answer.content[0].text, answer.stop_reason], ["You said: hello", "end_turn"]);
    const streamed = await anthropic.messages.stream(request).finalMessage();
    assert.deepEqual([streamed.content[0].text, streamed.usage.output_tokens], ["You said: hello", 7]);
  },

  async anthropic_tools() {
    const request = { model: "m", max_tokens: 100, messages: [user(QUESTION)], tools: [ANTHROPIC_TOOL] };
    const calls = (message) =>
      message.content.filter((block) => block.type === "tool_use").map((block) => [block.id, block.input]);
    const whole = await anthropic.messages.create(request);
    const streamed = await anthropic.messages.stream(request).finalMessage();
    for (const message of [whole, streamed]) {
      assert.deepEqual([message.stop_reason, calls(message)], ["tool_use", CALLS]);
      const thinking = message.content.find((block) => block.type === "thinking");
      assert.deepEqual([thinking.thinking, thinking.signature], ["Two places, two calls.", "c2lnbmVk"]);
    }
    const results = Object.entries(RESULTS).map(([id, content]) => ({ type: "tool_result", tool_use_id: id, content }));
    const messages = [user(QUESTION), { role: "assistant", content: streamed.content }, user(results)];
    const next = await anthropic.messages.create({ ...request, messages });
    assert.equal(next.content[0].text, "Bergen: rain, as ever.");
  },

  async anthropic_errors() {
    const ask = (text) => anthropic.messages.create({ model: "m", max_tokens: 10, messages: [user(text)] });
    await assert.rejects(ask("too busy"), Anthropic.RateLimitError);
    await assert.rejects(ask("wrong key"), Anthropic.AuthenticationError);
    await assert.rejects(ask("broken"), Anthropic.InternalServerError);
  },
};

let failed = 0;
for (const [name, check] of Object.entries(checks)) {
  try {
    await check();
    console.log(`ok    ${name} (node)`);
  } catch (error) {
    failed += 1;
    console.log(`FAILED ${name} (node)`);
    console.log(error);
  }
}
process.exit(failed ? 1 : 0);
