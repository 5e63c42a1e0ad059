//! The formats of model providers, read and written without any code of the program under test.

use std::collections::BTreeMap;

use serde_json::{Value, json};

use crate::double::Turn;

/// A format.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Wire {
    Chat,
    Responses,
    Messages,
    Ollama,
}

/// How a model's reasoning is in its answers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Reasoning {
    None,
    /// As text under this name.
    Field(&'static str),
    /// As a list, of which the last part is encrypted.
    Details,
    /// As a signature of the first call.
    CallSignature,
    /// As signed or encrypted parts of the wire itself.
    Opaque,
}

/// A part of a conversation.
#[derive(Debug, Clone, PartialEq)]
pub(crate) enum Item {
    System(String),
    User(String),
    /// The text, and id and name of each call.
    Reply(Option<String>, Vec<(String, String)>),
    Result {
        id: String,
        text: String,
    },
}

impl Item {
    /// Whether it has the loop's notice after the third failure of a call.
    pub(crate) fn has_notice(&self) -> bool {
        matches!(self, Self::User(text) | Self::Result { text, .. } if text.contains("has now failed 3 times"))
    }
}

impl Wire {
    pub(crate) fn of(path: &str) -> Option<Self> {
        match path {
            "chat/completions" => Some(Self::Chat),
            "responses" => Some(Self::Responses),
            "messages" => Some(Self::Messages),
            "api/chat" => Some(Self::Ollama),
            _ => None,
        }
    }

    /// The events of an answer. What it signs is kept with the request that it was signed behind.
    pub(crate) fn events(
        self,
        turn: &Turn,
        reasoning: Reasoning,
        request: &Value,
        signed: &mut BTreeMap<String, Value>,
    ) -> String {
        match self {
            Self::Chat => chat(turn, reasoning, signed),
            Self::Responses => responses(turn, signed),
            Self::Messages => messages(turn, request, signed),
            Self::Ollama => lines(turn),
        }
    }
}

fn events(events: &[Value]) -> String {
    let lines = events.iter().map(|event| match event["type"].as_str() {
        Some(kind) => format!("event: {kind}\ndata: {event}\n\n"),
        None => format!("data: {event}\n\n"),
    });
    lines.collect()
}

/// A new signature, made behind a prefix.
fn sign(signed: &mut BTreeMap<String, Value>, prefix: Value) -> String {
    let signature = format!("c2lnbmF0dXJl{:04}", signed.len());
    signed.insert(signature.clone(), prefix);
    signature
}

fn chat(turn: &Turn, reasoning: Reasoning, signed: &mut BTreeMap<String, Value>) -> String {
    let chunk = |delta: Value, reason: Value| json!({"object": "chat.completion.chunk", "choices": [{"index": 0, "delta": delta, "finish_reason": reason}]});
    let mut chunks = Vec::new();
    match reasoning {
        Reasoning::Field(name) => chunks.push(chunk(json!({"role": "assistant", name: "Let me see."}), Value::Null)),
        Reasoning::Details => {
            let text = json!({"type": "reasoning.text", "index": 0, "text": "Let me see."});
            let data = sign(signed, Value::Null);
            let encrypted = json!({"type": "reasoning.encrypted", "index": 1, "data": data});
            chunks.push(chunk(json!({"reasoning": "Let me see.", "reasoning_details": [text]}), Value::Null));
            chunks.push(chunk(json!({"reasoning_details": [encrypted]}), Value::Null));
        }
        Reasoning::None | Reasoning::CallSignature | Reasoning::Opaque => {}
    }
    if !turn.text.is_empty() {
        chunks.push(chunk(json!({"content": turn.text}), Value::Null));
    }
    for (at, (id, name, arguments)) in turn.calls.iter().enumerate() {
        let mut call =
            json!({"id": id, "type": "function", "function": {"name": name, "arguments": arguments.to_string()}});
        if reasoning != Reasoning::CallSignature {
            call["index"] = json!(at);
        } else if at == 0 {
            call["extra_content"] = json!({"google": {"thought_signature": sign(signed, Value::Null)}});
        }
        chunks.push(chunk(json!({"tool_calls": [call]}), Value::Null));
    }
    // Gemini says "stop" with calls, too.
    let is_called = !turn.calls.is_empty() && reasoning != Reasoning::CallSignature;
    chunks.push(chunk(json!({}), json!(if is_called { "tool_calls" } else { "stop" })));
    chunks.push(json!({"choices": [], "usage": {"prompt_tokens": 50, "completion_tokens": 5, "total_tokens": 55}}));
    format!("{}data: [DONE]\n\n", events(&chunks))
}

fn responses(turn: &Turn, signed: &mut BTreeMap<String, Value>) -> String {
    let number = signed.len();
    let encrypted = sign(signed, Value::Null);
    let mut output =
        vec![json!({"id": format!("rs_{number}"), "type": "reasoning", "summary": [], "encrypted_content": encrypted})];
    if !turn.text.is_empty() {
        let text = json!({"type": "output_text", "text": turn.text, "annotations": []});
        output
            .push(json!({"id": format!("msg_{number}"), "type": "message", "role": "assistant", "status": "completed",
            "phase": "final_answer", "content": [text]}));
    }
    for (at, (id, name, arguments)) in turn.calls.iter().enumerate() {
        output.push(json!({"id": format!("fc_{number}_{at}"), "type": "function_call", "status": "completed",
            "call_id": id, "name": name, "arguments": arguments.to_string()}));
    }
    let mut all =
        vec![json!({"type": "response.created", "response": {"object": "response", "status": "in_progress"}})];
    for (index, item) in output.iter().enumerate() {
        all.push(json!({"type": "response.output_item.added", "output_index": index, "item": {"id": item["id"], "type": item["type"]}}));
        if item["type"] == "message" {
            all.push(json!({"type": "response.output_text.delta", "output_index": index, "item_id": item["id"], "delta": turn.text}));
        }
        all.push(json!({"type": "response.output_item.done", "output_index": index, "item": item}));
    }
    let usage = json!({"input_tokens": 50, "input_tokens_details": {"cached_tokens": 0}, "output_tokens": 5, "total_tokens": 55,
        "output_tokens_details": {"reasoning_tokens": 3}});
    all.push(
        json!({"type": "response.completed", "response": {"object": "response", "status": "completed", "error": null,
        "incomplete_details": null, "output": output, "usage": usage}}),
    );
    events(&all)
}

fn messages(turn: &Turn, request: &Value, signed: &mut BTreeMap<String, Value>) -> String {
    let signature = sign(signed, without_marks(request));
    let mut blocks = vec![json!({"type": "thinking", "thinking": "", "signature": signature})];
    if !turn.text.is_empty() {
        blocks.push(json!({"type": "text", "text": turn.text}));
    }
    blocks.extend(
        turn.calls
            .iter()
            .map(|(id, name, arguments)| json!({"type": "tool_use", "id": id, "name": name, "input": arguments})),
    );
    let mut all =
        vec![json!({"type": "message_start", "message": {"type": "message", "role": "assistant", "content": [],
        "usage": {"input_tokens": 50, "output_tokens": 1}}})];
    for (index, block) in blocks.iter().enumerate() {
        let (begun, delta) = match block["type"].as_str() {
            Some("thinking") => (
                json!({"type": "thinking", "thinking": "", "signature": ""}),
                json!({"type": "signature_delta", "signature": block["signature"]}),
            ),
            Some("text") => (json!({"type": "text", "text": ""}), json!({"type": "text_delta", "text": block["text"]})),
            _ => (
                json!({"type": "tool_use", "id": block["id"], "name": block["name"], "input": {}}),
                json!({"type": "input_json_delta", "partial_json": block["input"].to_string()}),
            ),
        };
        all.push(json!({"type": "content_block_start", "index": index, "content_block": begun}));
        all.push(json!({"type": "content_block_delta", "index": index, "delta": delta}));
        all.push(json!({"type": "content_block_stop", "index": index}));
    }
    let reason = if turn.calls.is_empty() { "end_turn" } else { "tool_use" };
    all.push(json!({"type": "message_delta", "delta": {"stop_reason": reason}, "usage": {"output_tokens": 5}}));
    all.push(json!({"type": "message_stop"}));
    events(&all)
}

/// Ollama's own format has no events, and calls without ids in older versions.
fn lines(turn: &Turn) -> String {
    let line = |message: Value| json!({"model": "house", "message": message, "done": false});
    let mut all = vec![line(json!({"role": "assistant", "content": "", "thinking": "Let me see."}))];
    if !turn.text.is_empty() {
        all.push(line(json!({"role": "assistant", "content": turn.text})));
    }
    all.extend(turn.calls.iter().map(|(_, name, arguments)| {
        let call = json!({"function": {"name": name, "arguments": arguments}});
        line(json!({"role": "assistant", "content": "", "tool_calls": [call]}))
    }));
    all.push(
        json!({"model": "house", "message": {"role": "assistant", "content": ""}, "done": true, "done_reason": "stop",
        "prompt_eval_count": 50, "eval_count": 5}),
    );
    all.iter().fold(String::new(), |text, line| text + &line.to_string() + "\n")
}

/// What thinking is bound to: the instructions, the tools and the messages, without the marks of the cache.
pub(crate) fn without_marks(request: &Value) -> Value {
    let mut prefix = json!({"system": request["system"], "tools": request["tools"], "messages": request["messages"]});
    remove_marks(&mut prefix);
    prefix
}

fn remove_marks(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            fields.shift_remove("cache_control");
            fields.values_mut().for_each(remove_marks);
        }
        Value::Array(values) => values.iter_mut().for_each(remove_marks),
        _ => {}
    }
}

fn text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(parts) => parts.iter().filter_map(|part| part["text"].as_str()).collect(),
        _ => String::new(),
    }
}

fn list(value: &Value) -> &[Value] {
    value.as_array().map(Vec::as_slice).unwrap_or_default()
}

fn string(value: &Value) -> String {
    value.as_str().unwrap_or_default().to_owned()
}

/// The conversation of a request.
pub(crate) fn items(wire: Wire, body: &Value) -> Vec<Item> {
    match wire {
        Wire::Chat | Wire::Ollama => list(&body["messages"]).iter().map(of_chat).collect(),
        Wire::Responses => list(&body["input"]).iter().filter_map(of_responses).collect(),
        Wire::Messages => {
            let system = list(&body["system"]).iter().map(|block| Item::System(string(&block["text"])));
            system.chain(list(&body["messages"]).iter().flat_map(of_messages)).collect()
        }
    }
}

fn of_chat(message: &Value) -> Item {
    let content = text(&message["content"]);
    match message["role"].as_str() {
        Some("system") => Item::System(content),
        Some("assistant") => {
            let calls = list(&message["tool_calls"]).iter();
            let calls = calls.map(|call| (string(&call["id"]), string(&call["function"]["name"]))).collect();
            Item::Reply(message["content"].as_str().map(str::to_owned), calls)
        }
        Some("tool") => Item::Result { id: string(&message["tool_call_id"]), text: content },
        _ => Item::User(content),
    }
}

fn of_responses(item: &Value) -> Option<Item> {
    Some(match item["type"].as_str() {
        Some("function_call") => Item::Reply(None, vec![(string(&item["call_id"]), string(&item["name"]))]),
        Some("function_call_output") => Item::Result { id: string(&item["call_id"]), text: text(&item["output"]) },
        Some("message") => match item["role"].as_str() {
            Some("system" | "developer") => Item::System(text(&item["content"])),
            Some("assistant") => Item::Reply(Some(text(&item["content"])), vec![]),
            _ => Item::User(text(&item["content"])),
        },
        _ => return None,
    })
}

fn of_messages(message: &Value) -> Vec<Item> {
    let blocks = list(&message["content"]);
    if message["role"] == "assistant" {
        let calls = blocks.iter().filter(|block| block["type"] == "tool_use");
        let calls = calls.map(|block| (string(&block["id"]), string(&block["name"]))).collect();
        return vec![Item::Reply(Some(text(&message["content"])), calls)];
    }
    let item = |block: &Value| match block["type"].as_str() {
        Some("tool_result") => Item::Result { id: string(&block["tool_use_id"]), text: text(&block["content"]) },
        _ => Item::User(string(&block["text"])),
    };
    blocks.iter().map(item).collect()
}
