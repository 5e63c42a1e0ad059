//! The Ollama wire: `POST /api/chat` in lines of JSON and `GET /api/tags`. Owns its shapes; decides nothing.

use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use protocol::{FinishReason, Message, ToolCall};
use serde_json::{Value, json};

use super::{
    Question, ScriptedReply, ServedResponse, ServerState, job_title, model_of,
    sending::{self, Ending, ErrorResponse, Piece},
    text_of,
};
use crate::arguments;

const CREATED: &str = "2025-01-01T00:00:00Z";
const LINES: &str = "application/x-ndjson";

pub(super) async fn chat(State(state): State<ServerState>, headers: HeaderMap, body: Bytes) -> Response {
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return refuse(&ErrorResponse::bad_request(format!("the body is not JSON: {error}"))),
    };
    let Some(messages) = request["messages"].as_array() else {
        return refuse(&ErrorResponse::bad_request("messages: give a list"));
    };
    let messages = read_messages(messages);
    let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty());
    // Streaming is the default of this wire.
    let streams = request["stream"].as_bool() != Some(false);
    match state.respond(Question { messages: &messages, has_tools, job_title: job_title(&headers) }).await {
        ServedResponse::Error(refusal) => refuse(&refusal),
        ServedResponse::InvalidResponse => sending::invalid_response(if streams { LINES } else { "application/json" }),
        ServedResponse::Answer(reply) if streams => {
            let (lines, ending) = lines(&reply, model_of(&request, &state));
            sending::streamed(LINES, sending::stream_frames(&state, &reply, lines, ending))
        }
        ServedResponse::Answer(reply) => {
            let calls: Vec<_> = (0..reply.calls.len()).map(|index| call(&reply, index)).collect();
            let mut message = json!({"role": "assistant", "content": reply.text});
            if let Some(reasoning) = &reply.reasoning {
                message["thinking"] = json!(reasoning);
            }
            if !calls.is_empty() {
                message["tool_calls"] = Value::Array(calls);
            }
            sending::at_once(&state, &reply, &last(&reply, model_of(&request, &state), &message))
        }
    }
}

pub(super) async fn tags(State(state): State<ServerState>) -> Response {
    let name = state.engine.model();
    let model = json!({"name": name, "model": name, "modified_at": CREATED, "size": 0, "digest": "", "details": {}});
    sending::json(200, json!({"models": [model]}).to_string())
}

fn refuse(refusal: &ErrorResponse) -> Response {
    refusal.response(&json!({"error": refusal.message}))
}

/// Results name no call on this wire; they come back in the order of the calls.
fn read_messages(messages: &[Value]) -> Vec<Message> {
    let mut waiting = std::collections::VecDeque::new();
    let mut read = Vec::new();
    for message in messages {
        let content = text_of(&message["content"]);
        read.push(match message["role"].as_str().unwrap_or_default() {
            "system" => Message::System { content },
            "assistant" => {
                let calls = message["tool_calls"].as_array().map(Vec::as_slice).unwrap_or_default();
                let tool_calls: Vec<_> = calls
                    .iter()
                    .map(|call| ToolCall {
                        id: call["id"].as_str().unwrap_or_default().to_owned(),
                        name: call["function"]["name"].as_str().unwrap_or_default().to_owned(),
                        arguments: call["function"]["arguments"].clone(),
                    })
                    .collect();
                waiting = tool_calls.iter().map(|call| call.name.clone()).collect();
                Message::Assistant { content, tool_calls, native: None }
            }
            "tool" => {
                let named = message["tool_name"].as_str().map(str::to_owned);
                let in_order = waiting.pop_front().unwrap_or_default();
                Message::Tool { tool_call_id: String::new(), name: named.unwrap_or(in_order), content }
            }
            _ => Message::User { content },
        });
    }
    read
}

fn call(reply: &ScriptedReply, index: usize) -> Value {
    let call = &reply.calls[index];
    json!({"id": call.id, "function": {"index": index, "name": call.name, "arguments": arguments::read(&call.arguments)}})
}

fn last(reply: &ScriptedReply, model: &str, message: &Value) -> Value {
    let reason = if reply.finish_reason == FinishReason::Length { "length" } else { "stop" };
    json!({
        "model": model, "created_at": CREATED, "message": message, "done": true, "done_reason": reason,
        "total_duration": 1, "load_duration": 0, "prompt_eval_duration": 0, "eval_duration": 0,
        "prompt_eval_count": reply.usage.input_tokens, "prompt_eval_cached_count": reply.usage.cache_read_tokens,
        "eval_count": reply.usage.output_tokens,
    })
}

/// Calls are never split on this wire.
fn lines(reply: &ScriptedReply, model: &str) -> (Vec<String>, Ending) {
    let (pieces, ending) = sending::pieces(reply);
    let messages = pieces.into_iter().filter_map(|piece| match piece {
        Piece::Reasoning(text) => Some(json!({"role": "assistant", "content": "", "thinking": text})),
        Piece::Text(text) => Some(json!({"role": "assistant", "content": text})),
        Piece::Call(index) => Some(json!({"role": "assistant", "content": "", "tool_calls": [call(reply, index)]})),
        Piece::Arguments(..) => None,
    });
    let mut lines: Vec<_> = messages
        .map(|message| {
            format!("{}\n", json!({"model": model, "created_at": CREATED, "message": message, "done": false}))
        })
        .collect();
    if ending == Ending::Whole {
        lines.push(format!("{}\n", last(reply, model, &json!({"role": "assistant", "content": ""}))));
    }
    (lines, ending)
}
