//! Requests of each wire.

use protocol::{CallId, CompletionRequest, Message, NativeReply, ToolCall, ToolChoice, ToolDefinition, ToolDomain};
use rstest::rstest;
use serde_json::{Value, json};

use config::{Dialect, EmptyContent, Field, OpaqueBack, OutputLimit, ReasoningBack};

use crate::wire::{ForcedTool, RequestOptions, Wire};

fn user(content: &str) -> Message {
    Message::User { content: content.to_owned() }
}

fn call(id: &str) -> ToolCall {
    ToolCall { id: id.to_owned(), name: "weather".to_owned(), arguments: json!({"city": id}) }
}

fn assistant(content: &str, tool_calls: Vec<ToolCall>) -> Message {
    Message::Assistant { content: content.to_owned(), tool_calls, native: None }
}

/// A reply that the provider of the test's requests made.
fn made(content: &str, tool_calls: Vec<ToolCall>, value: Value) -> Message {
    let native = Some(NativeReply { maker: "me".to_owned(), value, prefix: None });
    Message::Assistant { content: content.to_owned(), tool_calls, native }
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

fn options(dialect: &Dialect) -> RequestOptions<'_> {
    RequestOptions { maker: "me", ..RequestOptions::new("house-high", 1_000, 32_768, dialect) }
}

fn body(wire: Wire, messages: Vec<Message>) -> Value {
    body_in(wire, messages, &Dialect::default())
}

fn body_in(wire: Wire, messages: Vec<Message>, dialect: &Dialect) -> Value {
    wire.request(&request(messages), &options(dialect))
}

#[test]
fn a_conversation_on_the_openai_wire() {
    let messages = vec![
        Message::System { content: "be brief".to_owned() },
        user("hello"),
        made("", vec![call("a"), call("b")], json!({"reasoning_content": "Two."})),
        result("a", "sun"),
        result("b", "rain"),
        made("Fine.", vec![], json!({"reasoning_content": "not sent back"})),
        assistant(" ", vec![]),
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
    let other = Dialect {
        output_limit: Some(OutputLimit::MaxCompletionTokens),
        stream_options: Some(Field::Omit),
        empty_content: Some(EmptyContent::Text),
        ..Dialect::default()
    };
    let sent = body_in(Wire::OpenAiChat, vec![user("x"), assistant("", vec![call("a")])], &other);
    assert_eq!((&sent["max_tokens"], &sent["max_completion_tokens"]), (&Value::Null, &json!(1_000)));
    assert_eq!((&sent["stream_options"], &sent["messages"][1]["content"]), (&Value::Null, &json!("")));
}

#[test]
fn a_conversation_on_the_anthropic_wire() {
    let thinking = json!({"type": "thinking", "thinking": "Two.", "signature": "czI="});
    let one = json!({"type": "thinking", "thinking": "One.", "signature": "czE="});
    let redacted = json!({"type": "redacted_thinking", "data": "xyz"});
    let messages = vec![
        Message::System { content: "be brief".to_owned() },
        user("hello"),
        made(
            "Both.",
            vec![call("a"), call("b")],
            json!([one, {"type": "text", "text": "Both. "}, {"type": "tool_use"}, {"type": "tool_use"}, thinking]),
        ),
        result("a", "sun"),
        result("b", "rain"),
        made(
            "",
            vec![call("c"), call("d")],
            json!([redacted, {"type": "tool_use"}, thinking, {"type": "tool_use"}, {"type": "image"}]),
        ),
        result("c", ""),
        result("d", "snow"),
        user(""),
    ];
    let sent = body(Wire::Anthropic, messages);
    let mark = json!({"type": "ephemeral"});
    let tool_use = |id: &str| json!({"type": "tool_use", "id": id, "name": "weather", "input": {"city": id}});
    let result = |id: &str, text: &str| json!({"type": "tool_result", "tool_use_id": id, "content": text});
    let mut last_of_request = result("b", "rain");
    last_of_request["cache_control"] = mark.clone();
    let expected = json!([
        {"role": "user", "content": [{"type": "text", "text": "hello"}]},
        {"role": "assistant", "content": [
            one, {"type": "text", "text": "Both. "}, tool_use("a"), tool_use("b"),
        ]},
        {"role": "user", "content": [result("a", "sun"), last_of_request]},
        {"role": "assistant", "content": [redacted, tool_use("c"), thinking, tool_use("d")]},
        {"role": "user", "content": [result("c", ""), result("d", "snow")]},
        {"role": "user", "content": [{"type": "text", "text": "(empty)", "cache_control": mark}]},
    ]);
    assert_eq!(sent["messages"], expected);
    assert_eq!(sent["system"], json!([{"type": "text", "text": "be brief", "cache_control": mark}]));
    assert_eq!(sent["tools"][1]["cache_control"], mark);
    assert_eq!((&sent["tools"][1]["name"], &sent["tools"][1]["type"]), (&json!("web_search"), &Value::Null));
    assert_eq!(sent.to_string().matches("cache_control").count(), 4, "system, tools, this request and the one before");
    assert_eq!(sent["max_tokens"], 1_000);
}

#[test]
fn a_system_prompt_is_marked_for_the_cache_without_tools() {
    let messages = vec![Message::System { content: "be brief".to_owned() }, user("hello")];
    let without_tools = CompletionRequest { tools: vec![], ..request(messages) };
    let sent = Wire::Anthropic.request(&without_tools, &options(&Dialect::default()));
    assert_eq!(sent["system"][0]["cache_control"], json!({"type": "ephemeral"}));
    assert_eq!(sent["tools"], Value::Null);
}

#[test]
fn a_conversation_on_ollamas_wire() {
    let messages =
        vec![user("hello"), made("", vec![call("a"), call("b")], json!({"thinking": "Two."})), result("a", "sun")];
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
    let spoken = json!({"type": "message", "id": "msg_1", "role": "assistant", "phase": "commentary",
        "content": [{"type": "output_text", "text": "Both."}]});
    let called = json!({"type": "function_call", "id": "fc_1"});
    let parts = json!([reasoning, spoken, called, called, {"type": "computer_call"}, reasoning, called]);
    let messages = vec![user("hello"), made("Both.", vec![call("a"), call("b")], parts), result("a", "sun")];
    let sent = body(Wire::OpenAiResponses, messages);
    let kinds: Vec<_> = sent["input"].as_array().unwrap().iter().map(|item| item["type"].as_str().unwrap()).collect();
    assert_eq!(kinds, ["message", "reasoning", "message", "function_call", "function_call", "function_call_output"]);
    assert_eq!((&sent["input"][1], &sent["input"][2]), (&reasoning, &spoken));
    assert_eq!((&sent["input"][3]["id"], &sent["include"]), (&json!("fc_1"), &json!(["reasoning.encrypted_content"])));
    assert_eq!(sent["input"][3]["arguments"], "{\"city\":\"a\"}");
    assert_eq!((&sent["store"], &sent["max_output_tokens"]), (&json!(false), &json!(1_000)));
}

#[rstest]
fn parts_of_another_provider_are_not_sent(
    #[values(Wire::OpenAiChat, Wire::OpenAiResponses, Wire::Anthropic, Wire::Ollama)] wire: Wire,
) {
    let value = json!([{"type": "thinking", "thinking": "hm", "signature": "xyz"}, {"type": "tool_use"}]);
    let native = Some(NativeReply { maker: "another".to_owned(), value, prefix: None });
    let reply = Message::Assistant { content: "So.".to_owned(), tool_calls: vec![call("a")], native };
    let sent = body(wire, vec![user("x"), reply, result("a", "")]).to_string();
    assert!(!sent.contains("xyz") && sent.contains("So.") && sent.contains("weather"), "{sent}");
}

/// Gemini refuses the first call of a reply without a signature; `skip_thought_signature_validator` is Google's for calls of
/// other models.
#[test]
fn signatures_of_calls_on_the_openai_wire() {
    let signature = json!({"google": {"thought_signature": "c2ln"}});
    let details = json!([{"type": "reasoning.encrypted", "data": "gAAA"}]);
    let own = json!({"calls": [signature, null], "reasoning_details": details, "reasoning": "Hm."});
    let messages = vec![
        user("x"),
        made("", vec![call("a"), call("b")], own),
        result("a", ""),
        result("b", ""),
        assistant("", vec![call("c"), call("d")]),
    ];
    let placeholder = Dialect { opaque_back: Some(OpaqueBack::Placeholder), ..Dialect::default() };
    let sent = body_in(Wire::OpenAiChat, messages.clone(), &placeholder);
    let extra = |message: usize, call: usize| &sent["messages"][message]["tool_calls"][call]["extra_content"];
    assert_eq!((extra(1, 0), extra(1, 1)), (&signature, &Value::Null));
    let skipped = json!({"google": {"thought_signature": "skip_thought_signature_validator"}});
    assert_eq!((extra(4, 0), extra(4, 1)), (&skipped, &Value::Null));
    assert_eq!(
        (&sent["messages"][1]["reasoning_details"], &sent["messages"][1]["reasoning"]),
        (&details, &json!("Hm."))
    );
    let never = Dialect { opaque_back: Some(OpaqueBack::Never), ..Dialect::default() };
    let sent = body_in(Wire::OpenAiChat, messages, &never).to_string();
    assert!(!sent.contains("c2ln") && !sent.contains("gAAA"), "{sent}");
}

#[rstest]
#[case(ReasoningBack::AsReceived, json!({"reasoning": "Hm."}), json!({}))]
#[case(ReasoningBack::Always, json!({"reasoning": "Hm."}), json!({"reasoning_content": ""}))]
#[case(ReasoningBack::Never, json!({}), json!({}))]
#[case(ReasoningBack::ThinkText, json!({"content": "<think>Hm.</think>So."}), json!({}))]
fn plain_reasoning_goes_back_with_calls(#[case] back: ReasoningBack, #[case] with: Value, #[case] without: Value) {
    let dialect = Dialect { reasoning_back: Some(back), ..Dialect::default() };
    let reasoned = made("So.", vec![call("a")], json!({"reasoning": "Hm."}));
    let sent =
        body_in(Wire::OpenAiChat, vec![user("x"), reasoned, result("a", ""), assistant("", vec![call("b")])], &dialect);
    for (message, expected) in [(1, with), (3, without)] {
        let message = &sent["messages"][message];
        for name in ["reasoning", "reasoning_content"] {
            assert_eq!(message.get(name), expected.get(name), "{message}");
        }
        assert!(expected.get("content").is_none_or(|content| message["content"] == *content), "{message}");
    }
}

#[rstest]
fn arguments_that_are_not_json_go_back_as_an_object(
    #[values(Wire::OpenAiChat, Wire::OpenAiResponses, Wire::Anthropic, Wire::Ollama)] wire: Wire,
) {
    let broken = ToolCall { arguments: json!("{\"city\": \"Os"), ..call("a") };
    let sent = body(wire, vec![user("x"), assistant("", vec![broken])]).to_string();
    assert!(sent.contains("invalid_arguments"), "{sent}");
}

#[rstest]
#[case(Wire::OpenAiChat, 2.0)]
#[case(Wire::OpenAiResponses, 2.0)]
#[case(Wire::Anthropic, 1.0)]
#[case(Wire::Ollama, 2.0)]
fn a_temperature_is_sent_only_when_one_is_named(#[case] wire: Wire, #[case] highest: f64) {
    let dialect = Dialect::default();
    let sent =
        |temperature| wire.request(&CompletionRequest { temperature, ..request(vec![user("x")]) }, &options(&dialect));
    assert!(!sent(None).to_string().contains("temperature"));
    assert!(!sent(Some(f64::NAN)).to_string().contains("temperature"));
    let of = |body: Value| {
        if wire == Wire::Ollama { body["options"]["temperature"].clone() } else { body["temperature"].clone() }
    };
    assert_eq!((of(sent(Some(9.0))), of(sent(Some(0.3)))), (json!(highest), json!(0.3)));
}

#[rstest]
#[case(Wire::OpenAiChat, "reasoning_effort", json!("high"))]
#[case(Wire::OpenAiResponses, "reasoning", json!({"effort": "high"}))]
#[case(Wire::Anthropic, "output_config", json!({"effort": "high"}))]
#[case(Wire::Ollama, "think", json!("high"))]
fn an_effort_is_sent_in_the_field_of_the_format(#[case] wire: Wire, #[case] field: &str, #[case] expected: Value) {
    let dialect = Dialect::default();
    let sent = |effort| wire.request(&request(vec![user("x")]), &RequestOptions { effort, ..options(&dialect) });
    assert_eq!((&sent(Some("high"))[field], &sent(None)[field]), (&expected, &Value::Null));
}

#[test]
fn tools_may_be_forbidden_forced_or_called_one_at_a_time() {
    let sent = |wire: Wire, choice, forced_tool, parallel_tool_calls| {
        let request = CompletionRequest { tool_choice: choice, ..request(vec![user("x")]) };
        wire.request(&request, &RequestOptions { parallel_tool_calls, forced_tool, ..options(&Dialect::default()) })
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
