//! From Gantry's words to the client library's: messages, tools, options. Owns the ways around what the library does
//! to names.

use std::time::Duration;

use genai::chat::{
    CacheControl, ChatMessage, ChatOptions, ContentPart, MessageContent, ReasoningEffort, Tool, ToolChoice,
    ToolResponse,
};
use protocol::{CompletionRequest, Message, ToolCall};
use secrecy::{ExposeSecret, SecretString};
use serde_json::{Value, json};

use super::RemoteKind;
use crate::llm::arguments;

/// The library cuts an effort (`-high`, `-none`) off a model's name and asks for reasoning instead. It gets the name
/// without; the body of the request gets the name as it is ([`options`]). For Ollama it leaves the end of the name
/// alone and the body cannot be changed, but a namespace is cut off: it gets one to cut.
pub(super) fn safe_model_name(kind: RemoteKind, model: &str) -> String {
    if kind == RemoteKind::Ollama {
        return format!("ollama::{model}");
    }
    let mut name = model;
    while let (Some(_), shorter) = ReasoningEffort::from_model_name(name) {
        name = shorter;
    }
    name.to_owned()
}

pub(super) fn messages(kind: RemoteKind, messages: &[Message]) -> Vec<ChatMessage> {
    let mut out = Vec::with_capacity(messages.len());
    let mut results: Vec<ToolResponse> = Vec::new();
    for message in messages {
        if let Message::Tool { tool_call_id, name, content } = message {
            results.push(ToolResponse::new(tool_call_id, content).with_fn_name(name));
            continue;
        }
        flush_results(kind, &mut results, &mut out);
        match message {
            Message::System { content } => out.push(ChatMessage::system(content)),
            Message::User { content } => out.push(ChatMessage::user(content)),
            Message::Assistant { content, tool_calls, reasoning } => {
                let parts = assistant(kind, content, tool_calls, reasoning.as_deref());
                // An empty message says nothing, and some providers refuse it.
                if !parts.is_empty() {
                    out.push(ChatMessage::assistant(MessageContent::from_parts(parts)));
                }
            }
            Message::Tool { .. } => {}
        }
    }
    flush_results(kind, &mut results, &mut out);
    // Each call of a conversation repeats the one before it: what is marked here is read from the cache by the next.
    // The other wires cache by themselves.
    if kind == RemoteKind::Anthropic
        && let Some(last) = out.pop()
    {
        out.push(last.with_options(CacheControl::Ephemeral));
    }
    out
}

/// Results of one reply belong into one message, but for Ollama, where the library would keep only the last.
fn flush_results(kind: RemoteKind, results: &mut Vec<ToolResponse>, out: &mut Vec<ChatMessage>) {
    let results = std::mem::take(results);
    if kind == RemoteKind::Ollama {
        out.extend(results.into_iter().map(ChatMessage::from));
    } else if !results.is_empty() {
        out.push(ChatMessage::from(results));
    }
}

fn assistant(kind: RemoteKind, text: &str, calls: &[ToolCall], reasoning: Option<&str>) -> Vec<ContentPart> {
    let mut parts = match kind {
        RemoteKind::Anthropic => signed_thinking(calls, reasoning),
        // Who shows reasoning with a tool call here wants it back with the call's result.
        RemoteKind::OpenAi if !calls.is_empty() => {
            reasoning.map(|text| ContentPart::ReasoningContent(text.to_owned())).into_iter().collect()
        }
        RemoteKind::OpenAi | RemoteKind::Ollama => Vec::new(),
    };
    if !text.trim().is_empty() {
        parts.push(ContentPart::from_text(text));
    }
    parts.extend(calls.iter().map(|call| {
        ContentPart::ToolCall(genai::chat::ToolCall {
            call_id: call.id.clone(),
            fn_name: call.name.clone(),
            fn_arguments: arguments::as_object(&call.arguments),
            thought_signatures: None,
        })
    }));
    parts
}

/// The counterpart of [`super::reply`]: one plain signature signs the reasoning, else each is a whole block.
fn signed_thinking(calls: &[ToolCall], reasoning: Option<&str>) -> Vec<ContentPart> {
    let mut parts = Vec::new();
    for signature in calls.iter().flat_map(|call| &call.thought_signatures) {
        match serde_json::from_str::<Value>(signature) {
            Ok(block) if block["type"].is_string() => parts.push(ContentPart::from_custom(block, None)),
            _ => {
                parts.push(ContentPart::ThoughtSignature(signature.clone()));
                parts.push(ContentPart::ReasoningContent(reasoning.unwrap_or_default().to_owned()));
            }
        }
    }
    parts
}

pub(super) fn tools(kind: RemoteKind, request: &CompletionRequest) -> Vec<Tool> {
    // This wire has no way to say that the tools may not be called.
    if kind == RemoteKind::Ollama && request.tool_choice == protocol::ToolChoice::None {
        return Vec::new();
    }
    let allowed = request.tools.iter().filter(|tool| {
        // The library would turn a tool of this name into the provider's own, which runs there and is paid there.
        !(kind == RemoteKind::Anthropic && tool.name == "web_search")
    });
    allowed
        .map(|tool| {
            Tool::new(tool.name.as_str())
                .with_description(tool.description.as_str())
                .with_schema(tool.parameters.clone())
        })
        .collect()
}

pub(super) fn options(
    kind: RemoteKind,
    model: &str,
    request: &CompletionRequest,
    silence: Duration,
    api_key: Option<&SecretString>,
) -> ChatOptions {
    let mut options = ChatOptions::default()
        .with_capture_usage(true)
        .with_capture_content(true)
        .with_capture_reasoning_content(true)
        .with_capture_tool_calls(true)
        .with_stream_header_timeout(silence)
        .with_stream_read_timeout(silence)
        .with_extra_body(json!({ "model": model }));
    if let Some(limit) = request.max_tokens {
        options = options.with_max_tokens(u32::try_from(limit).unwrap_or(u32::MAX));
    }
    if let Some(temperature) = temperature(kind, model, request.temperature) {
        options = options.with_temperature(temperature);
    }
    if !request.tools.is_empty() && request.tool_choice == protocol::ToolChoice::None {
        options = options.with_tool_choice(ToolChoice::None);
    }
    // On this wire the library sends no key by itself.
    if kind == RemoteKind::Ollama
        && let Some(key) = api_key
    {
        options = options.with_extra_headers([("Authorization", format!("Bearer {}", key.expose_secret()))]);
    }
    options
}

/// Anthropic's scale ends at 1; OpenAI's reasoning models take none at all.
fn temperature(kind: RemoteKind, model: &str, temperature: Option<f64>) -> Option<f64> {
    let reasons = ["o1", "o3", "o4", "gpt-5"].iter().any(|family| model.starts_with(family));
    match kind {
        RemoteKind::OpenAi if reasons => None,
        RemoteKind::Anthropic => temperature.map(|told| told.min(1.0)),
        RemoteKind::OpenAi | RemoteKind::Ollama => temperature,
    }
}
