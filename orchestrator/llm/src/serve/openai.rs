//! The OpenAI format: `POST /v1/chat/completions` and `GET /v1/models`. Owns its shapes; decides nothing.

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

/// A fixed time of creation: the same requests get the same bytes.
pub(super) const CREATED: u64 = 1_735_689_600;

pub(super) async fn chat(State(state): State<ServerState>, headers: HeaderMap, body: Bytes) -> Response {
    let request: Value = match serde_json::from_slice(&body) {
        Ok(request) => request,
        Err(error) => return refuse(&ErrorResponse::bad_request(format!("the body is not JSON: {error}"))),
    };
    let messages = match read_messages(&request["messages"]) {
        Ok(messages) => messages,
        Err(refusal) => return refuse(&refusal),
    };
    let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty())
        && request["tool_choice"].as_str() != Some("none");
    let streams = request["stream"].as_bool() == Some(true);
    let content_type = if streams { "text/event-stream" } else { "application/json" };
    match state.respond(Question { messages: &messages, has_tools, job_title: job_title(&headers) }).await {
        ServedResponse::Error(refusal) => refuse(&refusal),
        ServedResponse::InvalidResponse => sending::invalid_response(content_type),
        ServedResponse::Answer(reply) if streams => {
            let with_usage = request["stream_options"]["include_usage"].as_bool() == Some(true);
            let envelope = Envelope { id: state.next_id("chatcmpl-"), model: model_of(&request, &state), with_usage };
            let (frames, ending) = frames(&reply, &envelope);
            sending::streamed(content_type, sending::stream_frames(&state, &reply, frames, ending))
        }
        ServedResponse::Answer(reply) => {
            let id = state.next_id("chatcmpl-");
            sending::at_once(&state, &reply, &response_body(&reply, &id, model_of(&request, &state)))
        }
    }
}

pub(super) fn models(state: &ServerState) -> Response {
    let model = json!({"id": state.engine.model(), "object": "model", "created": CREATED, "owned_by": "gantry"});
    sending::json(200, json!({"object": "list", "data": [model]}).to_string())
}

pub(super) fn refuse(refusal: &ErrorResponse) -> Response {
    let (kind, code) = match refusal.status {
        401 => ("authentication_error", json!("invalid_api_key")),
        404 => ("invalid_request_error", json!("model_not_found")),
        429 => ("rate_limit_error", json!("rate_limit_exceeded")),
        status if status < 500 => ("invalid_request_error", Value::Null),
        _ => ("server_error", Value::Null),
    };
    refusal.response(&json!({"error": {"message": refusal.message, "type": kind, "param": null, "code": code}}))
}

fn read_messages(messages: &Value) -> Result<Vec<Message>, ErrorResponse> {
    let Some(messages) = messages.as_array().filter(|messages| !messages.is_empty()) else {
        return Err(ErrorResponse::bad_request("'messages' must be a list that is not empty"));
    };
    let mut names: HashMap<String, String> = HashMap::new();
    let read = messages.iter().map(|message| {
        let content = text_of(&message["content"]);
        Ok(match message["role"].as_str().unwrap_or_default() {
            "system" | "developer" => Message::System { content },
            "user" => Message::User { content },
            "assistant" => {
                let tool_calls: Vec<_> =
                    message["tool_calls"].as_array().into_iter().flatten().map(read_call).collect();
                names.extend(tool_calls.iter().map(|call| (call.id.clone(), call.name.clone())));
                Message::Assistant { content, tool_calls, native: None }
            }
            "tool" => {
                let tool_call_id = message["tool_call_id"].as_str().unwrap_or_default().to_owned();
                let Some(name) = names.get(&tool_call_id).cloned() else {
                    return Err(ErrorResponse::bad_request(format!(
                        "no earlier tool call has the id '{tool_call_id}'"
                    )));
                };
                Message::Tool { tool_call_id, name, content }
            }
            role => return Err(ErrorResponse::bad_request(format!("'{role}' is not a role"))),
        })
    });
    read.collect()
}

fn read_call(call: &Value) -> ToolCall {
    let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
    ToolCall {
        id: text(&call["id"]),
        name: text(&call["function"]["name"]),
        arguments: arguments::read(call["function"]["arguments"].as_str().unwrap_or_default()),
    }
}

fn response_body(reply: &ScriptedReply, id: &str, model: &str) -> Value {
    let calls: Vec<_> = reply
        .calls
        .iter()
        .map(|call| {
            json!({"id": call.id, "type": "function", "function": {"name": call.name, "arguments": call.arguments}})
        })
        .collect();
    let content = if reply.text.is_empty() && !calls.is_empty() { Value::Null } else { json!(reply.text) };
    let mut message = json!({"role": "assistant", "content": content, "refusal": null});
    if let Some(reasoning) = &reply.reasoning {
        message["reasoning_content"] = json!(reasoning);
    }
    if !calls.is_empty() {
        message["tool_calls"] = Value::Array(calls);
    }
    json!({
        "id": id, "object": "chat.completion", "created": CREATED, "model": model,
        "choices": [{"index": 0, "message": message, "logprobs": null, "finish_reason": finish(reply.finish_reason)}],
        "usage": usage(&reply.usage),
    })
}

/// The fields of every chunk.
struct Envelope<'a> {
    id: String,
    model: &'a str,
    with_usage: bool,
}

impl Envelope<'_> {
    fn frame(&self, choices: &Value, usage: Option<Value>) -> String {
        let mut chunk = json!({
            "id": self.id, "object": "chat.completion.chunk", "created": CREATED, "model": self.model,
            "choices": choices,
        });
        if self.with_usage {
            chunk["usage"] = usage.unwrap_or_default();
        }
        format!("data: {chunk}\n\n")
    }

    fn delta(&self, delta: &Value, finish_reason: Option<&str>) -> String {
        let choice = json!({"index": 0, "delta": delta, "logprobs": null, "finish_reason": finish_reason});
        self.frame(&json!([choice]), None)
    }
}

fn frames(reply: &ScriptedReply, envelope: &Envelope<'_>) -> (Vec<String>, Ending) {
    let (pieces, ending) = sending::pieces(reply);
    let mut frames = vec![envelope.delta(&json!({"role": "assistant", "content": ""}), None)];
    frames.extend(pieces.into_iter().map(|piece| {
        let delta = match piece {
            Piece::Reasoning(text) => json!({"reasoning_content": text}),
            Piece::Text(text) => json!({"content": text}),
            Piece::Call(index) => {
                let (id, name) = (&reply.calls[index].id, &reply.calls[index].name);
                let function = json!({"name": name, "arguments": ""});
                json!({"tool_calls": [{"index": index, "id": id, "type": "function", "function": function}]})
            }
            Piece::Arguments(index, part) => {
                json!({"tool_calls": [{"index": index, "function": {"arguments": part}}]})
            }
        };
        envelope.delta(&delta, None)
    }));
    if ending == Ending::Whole {
        frames.push(envelope.delta(&json!({}), Some(finish(reply.finish_reason))));
        if envelope.with_usage {
            frames.push(envelope.frame(&json!([]), Some(usage(&reply.usage))));
        }
        frames.push("data: [DONE]\n\n".to_owned());
    }
    (frames, ending)
}

fn finish(reason: FinishReason) -> &'static str {
    match reason {
        FinishReason::Other => "stop",
        known => known.as_str(),
    }
}

fn usage(usage: &TokenUsage) -> Value {
    json!({
        "prompt_tokens": usage.input_tokens,
        "completion_tokens": usage.output_tokens,
        "total_tokens": usage.input_tokens + usage.output_tokens,
        "prompt_tokens_details": {
            "cached_tokens": usage.cache_read_tokens, "cache_write_tokens": usage.cache_write_tokens,
            "audio_tokens": 0,
        },
        "completion_tokens_details": {"reasoning_tokens": 0, "audio_tokens": 0},
    })
}
