//! The Anthropic format: `POST /v1/messages`, `count_tokens` and `GET /v1/models`. Owns its shapes; decides nothing.

use std::collections::HashMap;

use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use protocol::{FinishReason, Message, TokenUsage, ToolCall};
use serde_json::{Value, json};

use super::{
    Question, ScriptedReply, ServedResponse, ServerState, job_title, model_of,
    sending::{self, Ending, ErrorResponse, Piece},
    text_of,
};
use crate::arguments;

pub(super) async fn messages(State(state): State<ServerState>, headers: HeaderMap, body: Bytes) -> Response {
    let (request, conversation) = match read(&body) {
        Ok(read) => read,
        Err(refusal) => return refuse(&refusal),
    };
    if request["max_tokens"].as_u64().is_none_or(|limit| limit == 0) {
        return refuse(&ErrorResponse::bad_request("max_tokens: must be a number above 0"));
    }
    let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty())
        && request["tool_choice"]["type"].as_str() != Some("none");
    let streams = request["stream"].as_bool() == Some(true);
    let content_type = if streams { "text/event-stream" } else { "application/json" };
    match state.respond(Question { messages: &conversation, has_tools, job_title: job_title(&headers) }).await {
        ServedResponse::Error(refusal) => refuse(&refusal),
        ServedResponse::InvalidResponse => sending::invalid_named_event(content_type),
        ServedResponse::Answer(reply) => {
            let envelope = envelope(&reply, &state.next_id("msg_"), model_of(&request, &state));
            if streams {
                let (frames, ending) = frames(&reply, envelope);
                sending::streamed(content_type, sending::stream_frames(&state, &reply, frames, ending))
            } else {
                sending::at_once(&state, &reply, &response_body(&reply, envelope))
            }
        }
    }
}

pub(super) async fn count_tokens(body: Bytes) -> Response {
    match read(&body) {
        Ok(_) => sending::json(200, json!({"input_tokens": arguments::tokens_of_bytes(body.len())}).to_string()),
        Err(refusal) => refuse(&refusal),
    }
}

pub(super) fn models(state: &ServerState) -> Response {
    let id = state.engine.model();
    let model = json!({"type": "model", "id": id, "display_name": id, "created_at": "2025-01-01T00:00:00Z"});
    sending::json(200, json!({"data": [model], "has_more": false, "first_id": id, "last_id": id}).to_string())
}

fn refuse(refusal: &ErrorResponse) -> Response {
    let kind = match refusal.status {
        401 => "authentication_error",
        402 => "billing_error",
        403 => "permission_error",
        404 => "not_found_error",
        413 => "request_too_large",
        429 => "rate_limit_error",
        529 => "overloaded_error",
        status if status < 500 => "invalid_request_error",
        _ => "api_error",
    };
    refusal.response(&json!({"type": "error", "error": {"type": kind, "message": refusal.message}}))
}

fn read(body: &[u8]) -> Result<(Value, Vec<Message>), ErrorResponse> {
    let request: Value = serde_json::from_slice(body)
        .map_err(|error| ErrorResponse::bad_request(format!("the body is not JSON: {error}")))?;
    let Some(messages) = request["messages"].as_array().filter(|messages| !messages.is_empty()) else {
        return Err(ErrorResponse::bad_request("messages: must be a list that is not empty"));
    };
    let mut conversation = Vec::new();
    let system = text_of(&request["system"]);
    if !system.is_empty() {
        conversation.push(Message::System { content: system });
    }
    let mut names: HashMap<String, String> = HashMap::new();
    for message in messages {
        match message["role"].as_str().unwrap_or_default() {
            "user" => read_user(&message["content"], &names, &mut conversation)?,
            "assistant" => {
                let tool_calls = read_calls(&message["content"]);
                names.extend(tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
                let content = text_of(&message["content"]);
                conversation.push(Message::Assistant { content, tool_calls, native: None });
            }
            role => return Err(ErrorResponse::bad_request(format!("messages: '{role}' is not a role"))),
        }
    }
    Ok((request, conversation))
}

/// One user message holds tool results, text, or both.
fn read_user(content: &Value, names: &HashMap<String, String>, into: &mut Vec<Message>) -> Result<(), ErrorResponse> {
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let mut results = 0;
    for part in parts.iter().filter(|part| part["type"] == "tool_result") {
        let tool_call_id = part["tool_use_id"].as_str().unwrap_or_default().to_owned();
        let Some(name) = names.get(&tool_call_id).cloned() else {
            return Err(ErrorResponse::bad_request(format!(
                "messages: no earlier tool_use has the id '{tool_call_id}'"
            )));
        };
        into.push(Message::Tool { tool_call_id, name, content: text_of(&part["content"]) });
        results += 1;
    }
    let text = text_of(content);
    if results == 0 || !text.is_empty() {
        into.push(Message::User { content: text });
    }
    Ok(())
}

fn read_calls(content: &Value) -> Vec<ToolCall> {
    let parts = content.as_array().map(Vec::as_slice).unwrap_or_default();
    let calls = parts.iter().filter(|part| part["type"] == "tool_use");
    calls
        .map(|part| ToolCall {
            id: part["id"].as_str().unwrap_or_default().to_owned(),
            name: part["name"].as_str().unwrap_or_default().to_owned(),
            arguments: part["input"].clone(),
        })
        .collect()
}

fn envelope(reply: &ScriptedReply, id: &str, model: &str) -> Value {
    json!({
        "id": id, "type": "message", "role": "assistant", "model": model, "content": [],
        "stop_reason": stop(reply.finish_reason), "stop_sequence": null, "usage": usage(&reply.usage),
    })
}

/// The thinking blocks: the reasoning under the first signature, what other signatures there are each with nothing.
fn thinking(reply: &ScriptedReply) -> Vec<(String, String)> {
    let mut signatures = reply.calls.iter().flat_map(|call| call.thought_signatures.clone());
    let mut blocks = Vec::new();
    let first = signatures.next();
    if reply.reasoning.is_some() || first.is_some() {
        blocks.push((reply.reasoning.clone().unwrap_or_default(), first.unwrap_or_default()));
    }
    blocks.extend(signatures.map(|signature| (String::new(), signature)));
    blocks
}

fn response_body(reply: &ScriptedReply, mut envelope: Value) -> Value {
    let mut content: Vec<Value> = thinking(reply)
        .into_iter()
        .map(|(thinking, signature)| json!({"type": "thinking", "thinking": thinking, "signature": signature}))
        .collect();
    if !reply.text.is_empty() {
        content.push(json!({"type": "text", "text": reply.text}));
    }
    content.extend(reply.calls.iter().map(|call| {
        let input = arguments::as_object(&arguments::read(&call.arguments));
        json!({"type": "tool_use", "id": call.id, "name": call.name, "input": input})
    }));
    envelope["content"] = Value::Array(content);
    envelope
}

/// Writes events, one block open at a time.
struct Events {
    frames: Vec<String>,
    block: usize,
    open: Option<Open>,
}

#[derive(Clone, Copy, PartialEq, Eq)]
enum Open {
    Thinking,
    Text,
    Call(usize),
}

impl Events {
    fn event(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        self.frames.push(format!("event: {name}\ndata: {data}\n\n"));
    }

    fn begin(&mut self, kind: Open, block: &Value) {
        if self.open == Some(kind) {
            return;
        }
        self.end();
        self.open = Some(kind);
        self.event("content_block_start", json!({"index": self.block, "content_block": block}));
    }

    fn delta(&mut self, delta: &Value) {
        self.event("content_block_delta", json!({"index": self.block, "delta": delta}));
    }

    fn end(&mut self) {
        if self.open.take().is_some() {
            self.event("content_block_stop", json!({"index": self.block}));
            self.block += 1;
        }
    }

    /// Ends the thinking that is open with its signature, and adds the blocks that are signatures alone.
    fn sign(&mut self, signatures: &mut std::vec::IntoIter<String>) {
        if self.open != Some(Open::Thinking) && signatures.len() == 0 {
            return;
        }
        loop {
            self.begin(Open::Thinking, &json!({"type": "thinking", "thinking": "", "signature": ""}));
            let signature = signatures.next().unwrap_or_default();
            self.delta(&json!({"type": "signature_delta", "signature": signature}));
            self.end();
            if signatures.len() == 0 {
                break;
            }
        }
    }
}

fn frames(reply: &ScriptedReply, mut envelope: Value) -> (Vec<String>, Ending) {
    let (pieces, ending) = sending::pieces(reply);
    let mut events = Events { frames: Vec::new(), block: 0, open: None };
    let last = json!({
        "delta": {"stop_reason": envelope["stop_reason"].take(), "stop_sequence": null},
        "usage": envelope["usage"].clone(),
    });
    envelope["usage"]["output_tokens"] = json!(1);
    events.event("message_start", json!({"message": envelope}));
    events.event("ping", json!({}));
    let signatures: Vec<_> = thinking(reply).into_iter().map(|(_, signature)| signature).collect();
    let mut signatures = signatures.into_iter();
    for piece in pieces {
        if !matches!(piece, Piece::Reasoning(_)) {
            events.sign(&mut signatures);
        }
        match piece {
            Piece::Reasoning(text) => {
                events.begin(Open::Thinking, &json!({"type": "thinking", "thinking": "", "signature": ""}));
                events.delta(&json!({"type": "thinking_delta", "thinking": text}));
            }
            Piece::Text(text) => {
                events.begin(Open::Text, &json!({"type": "text", "text": ""}));
                events.delta(&json!({"type": "text_delta", "text": text}));
            }
            Piece::Call(index) => {
                let (id, name) = (&reply.calls[index].id, &reply.calls[index].name);
                events.begin(Open::Call(index), &json!({"type": "tool_use", "id": id, "name": name, "input": {}}));
            }
            Piece::Arguments(_, part) => events.delta(&json!({"type": "input_json_delta", "partial_json": part})),
        }
    }
    if ending == Ending::Whole {
        events.sign(&mut signatures);
        events.end();
        events.event("message_delta", last);
        events.event("message_stop", json!({}));
    }
    (events.frames, ending)
}

fn stop(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Stop | FinishReason::Other => "end_turn",
        FinishReason::Length => "max_tokens",
        FinishReason::ToolCalls => "tool_use",
        FinishReason::ContentFilter => "refusal",
    }
}

/// In this format the input excludes cached tokens.
fn usage(usage: &TokenUsage) -> Value {
    let fresh = usage.input_tokens.saturating_sub(usage.cache_read_tokens).saturating_sub(usage.cache_write_tokens);
    json!({
        "input_tokens": fresh,
        "cache_creation_input_tokens": usage.cache_write_tokens,
        "cache_read_input_tokens": usage.cache_read_tokens,
        "output_tokens": usage.output_tokens,
    })
}
