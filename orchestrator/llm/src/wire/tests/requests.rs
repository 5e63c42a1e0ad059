//! Requests of each wire.

use protocol::{CallId, CompletionRequest, Message, ToolCall, ToolChoice, ToolDefinition, ToolDomain};
use rstest::rstest;
use serde_json::{Value, json};

use crate::wire::{ForcedTool, OutputLimitField, RequestOptions, Wire};

const ALL: [Wire; 4] = [Wire::OpenAiChat, Wire::OpenAiResponses, Wire::Anthropic, Wire::Ollama];

fn user(content: &str) -> Message {
    Message::User { content: content.to_owned() }
}

fn call(id: &str, thought_signatures: &[&str]) -> ToolCall {
    ToolCall {
        id: id.to_owned(),
        name: "weather".to_owned(),
        arguments: json!({"city": id}),
        thought_signatures: thought_signatures.iter().map(|text| (*text).to_owned()).collect(),
    }
}

fn assistant(content: &str, tool_calls: Vec<ToolCall>, reasoning: Option<&str>) -> Message {
    Message::Assistant { content: content.to_owned(), tool_calls, reasoning: reasoning.map(str::to_owned) }
}

fn result(id: &str, content: &str) -> Message {
    Message::Tool { tool_call_id: id.to_owned(), name: "weather".to_owned(), content: content.to_owned() }
}

fn request(messages: Vec<Message>) -> CompletionRequest {
    let tool = |name: &str| ToolDefinition::new(name, "a tool", json!({"type": "object"}), ToolDomain::Orchestrator);
    CompletionRequest {
        call_id: CallId::generate(),
        messages,
        tools: vec![tool("weather"), tool("web_search")],
        tool_choice: ToolChoice::Auto,
        max_tokens: None,
        temperature: None,
    }
}

fn options() -> RequestOptions<'static> {
    RequestOptions::new("house-high", 1_000, 32_768)
}

fn body(wire: Wire, messages: Vec<Message>) -> Value {
    wire.request(&request(messages), &options())
}

#[test]
fn a_conversation_on_the_openai_wire() {
    let messages = vec![
        Message::System { content: "be brief".to_owned() },
        user("hello"),
        assistant("", vec![call("a", &[]), call("b", &[])], Some("Two.")),
        result("a", "sun"),
        result("b", "rain"),
        assistant("Fine.", vec![], Some("not sent back")),
        assistant(" ", vec![], None),
    ];
    let sent = body(Wire::OpenAiChat, messages);
    let sent_call = |id: &str| {
        json!({"id": id, "type": "function", "function": {
            "name": "weather", "arguments": format!("{{\"city\":\"{id}\"}}"),
        }})
    };
    let expected = json!([
        {"role": "system", "content": "be brief"},
        {"role": "user", "content": "hello"},
        {"role": "assistant", "content": null, "tool_calls": [sent_call("a"), sent_call("b")], "reasoning_content": "Two."},
        {"role": "tool", "tool_call_id": "a", "content": "sun"},
        {"role": "tool", "tool_call_id": "b", "content": "rain"},
        {"role": "assistant", "content": "Fine."},
    ]);
    assert_eq!(sent["messages"], expected);
    assert_eq!((&sent["model"], &sent["stream"]), (&json!("house-high"), &json!(true)));
    assert_eq!(sent["stream_options"], json!({"include_usage": true}));
    assert_eq!((&sent["max_tokens"], &sent["max_completion_tokens"]), (&json!(1_000), &Value::Null));
    let newer = RequestOptions { output_limit_field: OutputLimitField::MaxCompletionTokens, ..options() };
    let sent = Wire::OpenAiChat.request(&request(vec![user("x")]), &newer);
    assert_eq!((&sent["max_tokens"], &sent["max_completion_tokens"]), (&Value::Null, &json!(1_000)));
}

#[test]
fn a_conversation_on_the_anthropic_wire() {
    let thinking = json!({"type": "thinking", "thinking": "Two.", "signature": "czI="});
    let redacted = json!({"type": "redacted_thinking", "data": "xyz"});
    let messages = vec![
        Message::System { content: "be brief".to_owned() },
        user("hello"),
        assistant("Both.", vec![call("a", &["czE="]), call("b", &[])], Some("One.")),
        result("a", "sun"),
        result("b", "rain"),
        assistant("", vec![call("c", &[&redacted.to_string()]), call("d", &[&thinking.to_string()])], None),
        result("c", ""),
        result("d", "snow"),
        user(""),
    ];
    let sent = body(Wire::Anthropic, messages);
    let mark = json!({"type": "ephemeral"});
    let tool_use = |id: &str| json!({"type": "tool_use", "id": id, "name": "weather", "input": {"city": id}});
    let result = |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": text});
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "One.", "signature": "czE="}, {"type": "text", "text": "Both."},
            tool_use("a"), tool_use("b"),
        ]},
        {"role": "user", "content": [result("a", "sun"), result("b", "rain")]},
        {"role": "assistant", "content": [redacted, tool_use("c"), thinking, tool_use("d")]},
        {"role": "user", "content": [result("c", ""), result("d", "snow")]},
        {"role": "user", "content": [{"type": "text", "text": "(empty)", "cache_control": mark}]},
    ]);
    assert_eq!(sent["messages"], expected);
    assert_eq!(sent["system"], json!([{"type": "text", "text": "be brief", "cache_control": mark}]));
    assert_eq!(sent["tools"][1]["cache_control"], mark);
    assert_eq!((&sent["tools"][1]["name"], &sent["tools"][1]["type"]), (&json!("web_search"), &Value::Null));
    assert_eq!(sent.to_string().matches("cache_control").count(), 3, "system, tools and conversation");
    assert_eq!(sent["max_tokens"], 1_000);
}

#[test]
fn a_system_prompt_is_marked_for_the_cache_without_tools() {
    let messages = vec![Message::System { content: "be brief".to_owned() }, user("hello")];
    let sent = Wire::Anthropic.request(&CompletionRequest { tools: vec![], ..request(messages) }, &options());
    assert_eq!(sent["system"][0]["cache_control"], json!({"type": "ephemeral"}));
    assert_eq!(sent["tools"], Value::Null);
}

#[test]
fn a_conversation_on_ollamas_wire() {
    let messages =
        vec![user("hello"), assistant("", vec![call("a", &[]), call("b", &[])], Some("Two.")), result("a", "sun")];
    let sent = body(Wire::Ollama, messages);
    assert_eq!(sent["options"], json!({"num_predict": 1_000, "num_ctx": 32_768}));
    assert_eq!(sent["messages"][1]["tool_calls"][1]["function"]["arguments"], json!({"city": "b"}));
    assert_eq!(sent["messages"][1]["thinking"], "Two.");
    assert_eq!(
        (&sent["messages"][2]["tool_name"], &sent["messages"][2]["content"]),
        (&json!("weather"), &json!("sun"))
    );
}

#[test]
fn a_conversation_on_the_responses_wire() {
    let reasoning = json!({"type": "reasoning", "id": "rs_1", "summary": [], "encrypted_content": "gAAA"});
    let unkept = json!({"type": "reasoning", "id": "rs_2", "summary": []});
    let first = call("a", &[&reasoning.to_string(), &unkept.to_string()]);
    let messages = vec![user("hello"), assistant("Both.", vec![first, call("b", &[])], None), result("a", "sun")];
    let sent = body(Wire::OpenAiResponses, messages);
    let kinds: Vec<_> = sent["input"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "reasoning", "message", "function_call", "function_call", "function_call_output"]);
    assert_eq!(sent["input"][1], reasoning);
    assert_eq!(sent["input"][3]["arguments"], "{\"city\":\"a\"}");
    assert_eq!((&sent["store"], &sent["max_output_tokens"]), (&json!(false), &json!(1_000)));
}

/// Signatures of one wire are never sent on another one: after a failover the conversation has both.
#[test]
fn signatures_of_other_wires_are_not_sent() {
    let google = json!({"extra_content": {"google": {"thought_signature": "c2ln"}}}).to_string();
    let redacted = json!({"type": "redacted_thinking", "data": "xyz"}).to_string();
    for wire in ALL {
        let conversation =
            vec![user("x"), assistant("", vec![call("a", &[&google, &redacted])], None), result("a", "")];
        let sent = body(wire, conversation).to_string();
        assert_eq!(sent.contains("c2ln"), wire == Wire::OpenAiChat, "{sent}");
        assert_eq!(sent.contains("xyz"), wire == Wire::Anthropic, "{sent}");
    }
}

#[rstest]
fn arguments_that_are_not_json_go_back_as_an_object(
    #[values(Wire::OpenAiChat, Wire::OpenAiResponses, Wire::Anthropic, Wire::Ollama)] wire: Wire,
) {
    let broken = ToolCall { arguments: json!("{\"city\": \"Os"), ..call("a", &[]) };
    let sent = body(wire, vec![user("x"), assistant("", vec![broken], None)]).to_string();
    assert!(sent.contains("invalid_arguments"), "{sent}");
}

#[rstest]
#[case(Wire::OpenAiChat, 2.0)]
#[case(Wire::OpenAiResponses, 2.0)]
#[case(Wire::Anthropic, 1.0)]
#[case(Wire::Ollama, 2.0)]
fn a_temperature_is_sent_only_when_one_is_named(#[case] wire: Wire, #[case] highest: f64) {
    let sent = |temperature| wire.request(&CompletionRequest { temperature, ..request(vec![user("x")]) }, &options());
    assert!(!sent(None).to_string().contains("temperature"));
    assert!(!sent(Some(f64::NAN)).to_string().contains("temperature"));
    let of = |body: Value| {
        if wire == Wire::Ollama { body["options"]["temperature"].clone() } else { body["temperature"].clone() }
    };
    assert_eq!((of(sent(Some(9.0))), of(sent(Some(0.3)))), (json!(highest), json!(0.3)));
}

#[test]
fn tools_may_be_forbidden_forced_or_called_one_at_a_time() {
    let sent = |wire: Wire, choice, forced_tool, parallel_tool_calls| {
        let request = CompletionRequest { tool_choice: choice, ..request(vec![user("x")]) };
        wire.request(&request, &RequestOptions { parallel_tool_calls, forced_tool, ..options() })
    };
    let (auto, none) = (ToolChoice::Auto, ToolChoice::None);
    for wire in [Wire::OpenAiChat, Wire::OpenAiResponses] {
        assert_eq!(sent(wire, auto, None, None)["tool_choice"], Value::Null);
        assert_eq!(sent(wire, none, None, None)["tool_choice"], "none");
        assert_eq!(sent(wire, auto, Some(ForcedTool::Any), None)["tool_choice"], "required");
        assert_eq!(sent(wire, auto, None, Some(false))["parallel_tool_calls"], false);
        assert_eq!(sent(wire, auto, None, None)["parallel_tool_calls"], Value::Null);
    }
    let named = Some(ForcedTool::Named("weather"));
    let function = json!({"type": "function", "function": {"name": "weather"}});
    assert_eq!(sent(Wire::OpenAiChat, auto, named, None)["tool_choice"], function);
    assert_eq!(
        sent(Wire::OpenAiResponses, auto, named, None)["tool_choice"],
        json!({"type": "function", "name": "weather"})
    );
    let anthropic = |choice, forced, parallel| sent(Wire::Anthropic, choice, forced, parallel)["tool_choice"].clone();
    assert_eq!(anthropic(auto, None, None), Value::Null);
    assert_eq!(anthropic(none, None, Some(false)), json!({"type": "none"}));
    assert_eq!(anthropic(auto, Some(ForcedTool::Any), None), json!({"type": "any"}));
    let one = json!({"type": "tool", "name": "weather", "disable_parallel_tool_use": true});
    assert_eq!(anthropic(auto, named, Some(false)), one);
    assert_eq!(anthropic(auto, None, Some(false)), json!({"type": "auto", "disable_parallel_tool_use": true}));
    assert_eq!(sent(Wire::Ollama, none, None, None)["tools"], Value::Null, "this wire has no other way to say so");
    assert!(sent(Wire::Ollama, auto, None, None)["tools"].is_array());
}
