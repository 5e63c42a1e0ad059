//! The format of OpenAI's responses: `POST /v1/responses`. Owns its shapes; decides nothing and keeps no response.

use std::collections::HashMap;

use axum::{body::Bytes, extract::State, http::HeaderMap, response::Response};
use protocol::{FinishReason, Message, TokenUsage, ToolCall};
use serde_json::{Value, json};

use super::{
    Question, ScriptedReply, ServedResponse, ServerState, job_title, model_of,
    openai::{CREATED, refuse},
    sending::{self, Ending, ErrorResponse, Piece},
    text_of,
};
use crate::arguments;

pub(super) async fn responses(State(state): State<ServerState>, headers: HeaderMap, body: Bytes) -> Response {
    let (request, conversation) = match read(&body) {
        Ok(read) => read,
        Err(refusal) => return refuse(&refusal),
    };
    let has_tools = request["tools"].as_array().is_some_and(|tools| !tools.is_empty())
        && request["tool_choice"].as_str() != Some("none");
    let streams = request["stream"].as_bool() == Some(true);
    let content_type = if streams { "text/event-stream" } else { "application/json" };
    match state.respond(Question { messages: &conversation, has_tools, job_title: job_title(&headers) }).await {
        ServedResponse::Error(refusal) => refuse(&refusal),
        ServedResponse::InvalidResponse => sending::invalid_response(content_type),
        ServedResponse::Answer(reply) => {
            let response_body = response_body(&reply, &state.next_id("resp_"), model_of(&request, &state));
            if streams {
                let (frames, ending) = frames(&reply, &response_body);
                sending::streamed(content_type, sending::stream_frames(&state, &reply, frames, ending))
            } else {
                sending::at_once(&state, &reply, &response_body)
            }
        }
    }
}

fn read(body: &[u8]) -> Result<(Value, Vec<Message>), ErrorResponse> {
    let request: Value = serde_json::from_slice(body)
        .map_err(|error| ErrorResponse::bad_request(format!("the body is not JSON: {error}")))?;
    if request["previous_response_id"].is_string() {
        return Err(ErrorResponse::bad_request("previous_response_id: responses are not kept here"));
    }
    let mut conversation = Vec::new();
    if let Some(instructions) = request["instructions"].as_str() {
        conversation.push(Message::System { content: instructions.to_owned() });
    }
    match &request["input"] {
        Value::String(text) => conversation.push(Message::User { content: text.clone() }),
        Value::Array(items) if !items.is_empty() => read_items(items, &mut conversation)?,
        _ => return Err(ErrorResponse::bad_request("input: must be a string, or a list that is not empty")),
    }
    Ok((request, conversation))
}

fn read_items(items: &[Value], into: &mut Vec<Message>) -> Result<(), ErrorResponse> {
    let mut names: HashMap<String, String> = HashMap::new();
    for item in items {
        match item["type"].as_str().unwrap_or("message") {
            "message" => into.push(read_message(item)?),
            "function_call" => {
                let call = read_call(item);
                names.insert(call.id.clone(), call.name.clone());
                if let Some(Message::Assistant { tool_calls, .. }) = into.last_mut() {
                    tool_calls.push(call);
                } else {
                    into.push(Message::Assistant { content: String::new(), tool_calls: vec![call], native: None });
                }
            }
            "function_call_output" => {
                let tool_call_id = item["call_id"].as_str().unwrap_or_default().to_owned();
                let Some(name) = names.get(&tool_call_id).cloned() else {
                    let message = format!("input: no earlier function_call has the call_id '{tool_call_id}'");
                    return Err(ErrorResponse::bad_request(message));
                };
                into.push(Message::Tool { tool_call_id, name, content: text_of(&item["output"]) });
            }
            // Reasoning goes back to models only.
            _ => {}
        }
    }
    Ok(())
}

fn read_message(item: &Value) -> Result<Message, ErrorResponse> {
    let content = text_of(&item["content"]);
    match item["role"].as_str().unwrap_or_default() {
        "system" | "developer" => Ok(Message::System { content }),
        "user" => Ok(Message::User { content }),
        "assistant" => Ok(Message::Assistant { content, tool_calls: Vec::new(), native: None }),
        role => Err(ErrorResponse::bad_request(format!("input: '{role}' is not a role"))),
    }
}

fn read_call(item: &Value) -> ToolCall {
    let text = |field: &str| item[field].as_str().unwrap_or_default().to_owned();
    let arguments = arguments::read(item["arguments"].as_str().unwrap_or_default());
    ToolCall { id: text("call_id"), name: text("name"), arguments }
}

/// The output items, in the order in which [`sending::pieces`] has them.
fn items(reply: &ScriptedReply, id: &str) -> Vec<Value> {
    let mut items = Vec::new();
    if let Some(reasoning) = reply.reasoning.as_deref().filter(|text| !text.is_empty()) {
        let summary = json!([{"type": "summary_text", "text": reasoning}]);
        items.push(json!({"id": format!("rs_{id}"), "type": "reasoning", "summary": summary}));
    }
    if !reply.text.is_empty() || reply.calls.is_empty() {
        items.push(json!({
            "id": format!("msg_{id}"), "type": "message", "role": "assistant", "status": "completed",
            "content": [text_part(&reply.text)],
        }));
    }
    items.extend(reply.calls.iter().enumerate().map(|(index, call)| {
        json!({
            "id": format!("fc_{id}_{index}"), "type": "function_call", "status": "completed", "call_id": call.id,
            "name": call.name, "arguments": call.arguments,
        })
    }));
    items
}

fn text_part(text: &str) -> Value {
    json!({"type": "output_text", "text": text, "annotations": [], "logprobs": []})
}

fn response_body(reply: &ScriptedReply, id: &str, model: &str) -> Value {
    let reason = match reply.finish_reason {
        FinishReason::Length => Some("max_output_tokens"),
        FinishReason::ContentFilter => Some("content_filter"),
        FinishReason::Stop | FinishReason::ToolCalls | FinishReason::Other => None,
    };
    json!({
        "id": id, "object": "response", "created_at": CREATED, "model": model,
        "status": if reason.is_some() { "incomplete" } else { "completed" },
        "incomplete_details": reason.map(|reason| json!({"reason": reason})),
        "output": items(reply, id), "usage": usage(&reply.usage),
        "error": null, "instructions": null, "metadata": {}, "parallel_tool_calls": true, "previous_response_id": null,
        "store": false, "temperature": 1.0, "text": {"format": {"type": "text"}}, "tool_choice": "auto", "tools": [],
        "top_p": 1.0, "truncation": "disabled",
    })
}

fn usage(usage: &TokenUsage) -> Value {
    json!({
        "input_tokens": usage.input_tokens,
        "input_tokens_details": {"cached_tokens": usage.cache_read_tokens},
        "output_tokens": usage.output_tokens,
        "output_tokens_details": {"reasoning_tokens": 0},
        "total_tokens": usage.input_tokens + usage.output_tokens,
    })
}

/// Writes events, one output item open at a time.
struct Events<'a> {
    frames: Vec<String>,
    items: &'a [Value],
    /// The item that is open.
    open: Option<usize>,
    /// Items that were opened.
    begun: usize,
}

impl Events<'_> {
    fn event(&mut self, name: &str, mut data: Value) {
        data["type"] = json!(name);
        data["sequence_number"] = json!(self.frames.len());
        self.frames.push(format!("event: {name}\ndata: {data}\n\n"));
    }

    /// An event of the open item.
    fn about(&mut self, name: &str, mut data: Value) {
        let index = self.open.unwrap_or_default();
        data["item_id"] = self.items[index]["id"].clone();
        data["output_index"] = json!(index);
        self.event(name, data);
    }

    /// Opens the next item, which is of this type.
    fn begin(&mut self, kind: &str) {
        if self.open.is_some_and(|index| self.items[index]["type"] == kind) && kind != "function_call" {
            return;
        }
        self.end();
        let index = self.begun;
        let mut item = self.items[index].clone();
        let (field, empty) = match kind {
            "reasoning" => ("summary", json!([])),
            "message" => ("content", json!([])),
            _ => ("arguments", json!("")),
        };
        item[field] = empty;
        item["status"] = json!("in_progress");
        self.event("response.output_item.added", json!({"output_index": index, "item": item}));
        (self.open, self.begun) = (Some(index), index + 1);
        match kind {
            "reasoning" => {
                let part = json!({"type": "summary_text", "text": ""});
                self.about("response.reasoning_summary_part.added", json!({"summary_index": 0, "part": part}));
            }
            "message" => {
                self.about("response.content_part.added", json!({"content_index": 0, "part": text_part("")}));
            }
            _ => {}
        }
    }

    fn end(&mut self) {
        let Some(index) = self.open else { return };
        let item = self.items[index].clone();
        match item["type"].as_str() {
            Some("reasoning") => {
                let part = &item["summary"][0];
                let text = json!({"summary_index": 0, "text": part["text"]});
                self.about("response.reasoning_summary_text.done", text);
                self.about("response.reasoning_summary_part.done", json!({"summary_index": 0, "part": part}));
            }
            Some("message") => {
                let part = &item["content"][0];
                let text = json!({"content_index": 0, "text": part["text"], "logprobs": []});
                self.about("response.output_text.done", text);
                self.about("response.content_part.done", json!({"content_index": 0, "part": part}));
            }
            _ => {
                let arguments = json!({"arguments": item["arguments"], "name": item["name"]});
                self.about("response.function_call_arguments.done", arguments);
            }
        }
        self.event("response.output_item.done", json!({"output_index": index, "item": item}));
        self.open = None;
    }
}

fn frames(reply: &ScriptedReply, response_body: &Value) -> (Vec<String>, Ending) {
    let (pieces, ending) = sending::pieces(reply);
    let items = response_body["output"].as_array().map(Vec::as_slice).unwrap_or_default();
    let mut events = Events { frames: Vec::new(), items, open: None, begun: 0 };
    let mut begun = response_body.clone();
    (begun["status"], begun["output"]) = (json!("in_progress"), json!([]));
    (begun["usage"], begun["incomplete_details"]) = (Value::Null, Value::Null);
    events.event("response.created", json!({"response": begun}));
    events.event("response.in_progress", json!({"response": begun}));
    for piece in pieces {
        match piece {
            Piece::Reasoning(text) => {
                events.begin("reasoning");
                events.about("response.reasoning_summary_text.delta", json!({"summary_index": 0, "delta": text}));
            }
            Piece::Text(text) => {
                events.begin("message");
                let delta = json!({"content_index": 0, "delta": text, "logprobs": []});
                events.about("response.output_text.delta", delta);
            }
            Piece::Call(_) => events.begin("function_call"),
            Piece::Arguments(_, part) => {
                events.about("response.function_call_arguments.delta", json!({"delta": part}));
            }
        }
    }
    if ending == Ending::Whole {
        if events.begun < items.len() {
            // A text without any.
            events.begin("message");
        }
        events.end();
        let name = if response_body["status"] == "incomplete" { "response.incomplete" } else { "response.completed" };
        events.event(name, json!({"response": response_body}));
    }
    (events.frames, ending)
}
