//! A relayed client's requests: patched and estimated. The clients' shapes are those of the official libraries and of
//! command line agents.

use rstest::rstest;
use serde_json::{Value, json};

use crate::wire::{Patched, RelayPolicy, Wire};

const POLICY: RelayPolicy<'_> = RelayPolicy { model: "allowed", max_output_tokens: 1_000, context_tokens: 32_768 };

fn patched(wire: Wire, mut body: Value) -> (Value, Patched) {
    let patched = wire.patch(&mut body, &POLICY);
    (body, patched)
}

#[test]
fn a_chat_completion() {
    let function = json!({"type": "function", "function": {"name": "f"}});
    let (body, flags) = patched(
        Wire::OpenAiChat,
        json!({
            "model": "expensive", "stream": true, "max_tokens": 9_999, "n": 4, "user": "ada@example.org",
            "metadata": {"user": "ada"}, "safety_identifier": "ada", "service_tier": "priority", "store": true,
            "web_search_options": {}, "tools": [function, {"type": "web_search"}],
            "tool_choice": "auto", "future_field": {"kept": [1, 2]}, "temperature": 0.1,
            "messages": [{"role": "user", "content": [
                {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
            ]}],
        }),
    );
    let expected = json!({
        "model": "allowed", "stream": true, "max_tokens": 1_000, "stream_options": {"include_usage": true},
        "tools": [function], "tool_choice": "auto", "future_field": {"kept": [1, 2]}, "temperature": 0.1,
        "messages": [{"role": "user", "content": [
            {"type": "text", "text": "see"}, {"type": "image_url", "image_url": {"url": "data:image/png;base64,AAAA"}},
        ]}],
    });
    assert_eq!(body, expected);
    assert_eq!(flags, Patched { is_stream: true, usage_was_added: true });
    let asks = json!({"stream": true, "stream_options": {"include_usage": true, "include_obfuscation": false}});
    let (body, flags) = patched(Wire::OpenAiChat, asks);
    assert_eq!(body["stream_options"]["include_obfuscation"], false);
    assert_eq!(flags, Patched { is_stream: true, usage_was_added: false });
    let (body, flags) =
        patched(Wire::OpenAiChat, json!({"tools": [{"type": "web_search"}], "tool_choice": "required"}));
    assert_eq!(body, json!({"model": "allowed", "max_completion_tokens": 1_000}));
    assert_eq!(flags, Patched { is_stream: false, usage_was_added: false });
}

/// As Claude Code asks.
#[test]
fn an_anthropic_message() {
    let own = json!({"name": "Bash", "description": "runs", "input_schema": {"type": "object"}});
    let system = json!([{"type": "text", "text": "You are", "cache_control": {"type": "ephemeral"}}]);
    let image = json!({"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "AAAA"}});
    let (body, flags) = patched(
        Wire::Anthropic,
        json!({
            "model": "claude-x", "max_tokens": 32_000, "stream": true, "system": system,
            "metadata": {"user_id": "user_1"}, "service_tier": "auto", "speed": "fast", "mcp_servers": [{"url": "http://x"}],
            "thinking": {"type": "enabled", "budget_tokens": 31_999}, "context_management": {"edits": []},
            "tools": [own, {"type": "bash_20250124", "name": "bash"}, {"type": "web_search_20250305", "name": "web_search"}],
            "messages": [{"role": "user", "content": [image]}],
        }),
    );
    let expected = json!({
        "model": "allowed", "max_tokens": 1_000, "stream": true, "system": system, "context_management": {"edits": []},
        "tools": [own, {"type": "bash_20250124", "name": "bash"}], "messages": [{"role": "user", "content": [image]}],
    });
    assert_eq!(body, expected);
    assert!(flags.is_stream);
    let roomy = RelayPolicy { max_output_tokens: 8_000, ..POLICY };
    let mut body = json!({"max_tokens": 32_000, "thinking": {"type": "enabled", "budget_tokens": 31_999}});
    Wire::Anthropic.patch(&mut body, &roomy);
    assert_eq!(body["thinking"]["budget_tokens"], 7_999);
}

/// As Codex asks.
#[test]
fn a_response() {
    let own = json!({"type": "function", "name": "shell", "parameters": {}, "strict": false});
    let (body, flags) = patched(
        Wire::OpenAiResponses,
        json!({
            "model": "gpt-x", "instructions": "be", "store": true, "stream": true, "prompt_cache_key": "k",
            "include": ["reasoning.encrypted_content"], "previous_response_id": "resp_1", "client_metadata": {"x": 1},
            "tools": [own, {"type": "web_search", "external_web_access": false}, {"type": "custom", "name": "apply"}],
            "tool_choice": {"type": "web_search"}, "parallel_tool_calls": false, "input": [{"type": "message"}],
        }),
    );
    let expected = json!({
        "model": "allowed", "instructions": "be", "store": false, "stream": true, "prompt_cache_key": "k",
        "include": ["reasoning.encrypted_content"], "max_output_tokens": 1_000,
        "tools": [own, {"type": "custom", "name": "apply"}], "parallel_tool_calls": false, "input": [{"type": "message"}],
    });
    assert_eq!(body, expected);
    assert!(flags.is_stream && !flags.usage_was_added);
}

#[test]
fn an_ollama_chat() {
    let (body, flags) = patched(
        Wire::Ollama,
        json!({"model": "x", "keep_alive": -1, "options": {"num_predict": -1, "num_ctx": 1_000_000, "top_k": 1}}),
    );
    let options = json!({"num_predict": 1_000, "num_ctx": 32_768, "top_k": 1});
    assert_eq!(body, json!({"model": "allowed", "options": options}));
    assert!(flags.is_stream, "this wire streams by default");
    assert!(!patched(Wire::Ollama, json!({"stream": false})).1.is_stream);
}

#[rstest]
#[case("500", 500)]
#[case("1000", 1_000)]
#[case("1001", 1_000)]
#[case("0", 1_000)]
#[case("-5", 1_000)]
#[case("\"9999\"", 1_000)]
#[case("null", 1_000)]
fn an_output_limit_is_clamped(#[case] asked: &str, #[case] expected: u64) {
    let asked: Value = serde_json::from_str(asked).unwrap();
    let limit = |wire, field: &str| patched(wire, json!({field: asked})).0[field].clone();
    assert_eq!(limit(Wire::Anthropic, "max_tokens"), expected);
    assert_eq!(limit(Wire::OpenAiResponses, "max_output_tokens"), expected);
    if !asked.is_null() {
        assert_eq!(limit(Wire::OpenAiChat, "max_tokens"), expected);
        assert_eq!(limit(Wire::OpenAiChat, "max_completion_tokens"), expected);
    }
}

#[rstest]
fn a_body_that_is_no_object_becomes_a_request(
    #[values(Wire::OpenAiChat, Wire::OpenAiResponses, Wire::Anthropic, Wire::Ollama)] wire: Wire,
    #[values(json!(null), json!([1]), json!({"tools": 7, "options": 7, "stream": true, "stream_options": 7}))]
    body: Value,
) {
    let (body, _) = patched(wire, body);
    assert_eq!(body["model"], "allowed");
    assert_eq!(body["tools"], if wire == Wire::Ollama { body["tools"].clone() } else { Value::Null });
}

#[test]
fn the_whole_request_is_estimated_and_an_image_is_not_its_bytes() {
    let text = "x".repeat(4_000);
    let plain = json!({"messages": [{"role": "user", "content": text}]});
    assert!((1_000..1_020).contains(&Wire::OpenAiChat.estimate(&plain)));
    let tools = json!({"tools": [{"function": {"description": text, "parameters": {"deep": [text]}}}]});
    assert!((2_000..2_030).contains(&Wire::OpenAiChat.estimate(&tools)));
    let chinese = json!({"messages": [{"content": "語".repeat(1_000)}]});
    assert!(Wire::Anthropic.estimate(&chinese) >= 1_000, "about a token a character");
    let picture = "A".repeat(4_000_000);
    for body in [
        json!([{"type": "image_url", "image_url": {"url": format!("data:image/png;base64,{picture}")}}]),
        json!([{"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": picture}}]),
        json!([{"role": "user", "content": "", "images": [picture]}]),
    ] {
        assert!((2_000..2_100).contains(&Wire::OpenAiChat.estimate(&body)));
    }
}

/// A provider's prompt cache and the model see the order of a tool's parameters.
#[rstest]
#[case(Wire::OpenAiChat)]
#[case(Wire::OpenAiResponses)]
#[case(Wire::Anthropic)]
#[case(Wire::Ollama)]
fn kept_fields_keep_their_order(#[case] wire: Wire) {
    let request = r#"{"zeta":1,"metadata":{},"model":"m","user":"ada","service_tier":"auto","eta":{"path":1,"content":2,"at":3},"beta":2}"#;
    let mut body: Value = serde_json::from_str(request).unwrap();
    wire.patch(&mut body, &POLICY);
    let kept: Vec<_> = body
        .as_object()
        .unwrap()
        .keys()
        .filter(|key| ["zeta", "model", "eta", "beta"].contains(&key.as_str()))
        .collect();
    assert_eq!(kept, ["zeta", "model", "eta", "beta"]);
    assert_eq!(body["eta"].to_string(), r#"{"path":1,"content":2,"at":3}"#);
}
