//! Answers in the shapes of several servers: each call once and in order, however the bytes come.

use std::{fs, path::Path};

use proptest::prelude::*;
use protocol::{Completion, FinishReason, TokenUsage};
use rstest::rstest;
use serde_json::{Value, json};

use crate::wire::{DecodeError, Delta, Wire};

const PROMPT_TOKENS: u64 = 99;
const OSLO: &str = r#"{"city":"Oslo"}"#;
const BERGEN: &str = r#"{"city":"Bergen"}"#;

fn fixture(name: &str) -> Vec<u8> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire/fixtures");
    fs::read(directory.join(name)).unwrap_or_else(|error| panic!("{name}: {error}"))
}

fn wire_of(name: &str) -> Wire {
    if name.starts_with("anthropic") {
        Wire::Anthropic
    } else if name.starts_with("responses") {
        Wire::OpenAiResponses
    } else if name.ends_with("ndjson") || name == "ollama.json" {
        Wire::Ollama
    } else {
        Wire::OpenAiChat
    }
}

/// The answer, and its deltas put together.
type Decoded = (Result<Completion, (DecodeError, TokenUsage)>, String);

fn decode(wire: Wire, parts: &[&[u8]]) -> Decoded {
    let mut text = String::new();
    let mut on_delta = |delta: Delta<'_>| match delta {
        Delta::Text(more) => text.push_str(more),
        Delta::Reasoning(_) => {}
    };
    let mut decoder = wire.decoder();
    for part in parts {
        if let Err(error) = decoder.push(part, &mut on_delta) {
            return (Err((error, decoder.usage(PROMPT_TOKENS))), text);
        }
    }
    let result = decoder.finish(PROMPT_TOKENS, &mut on_delta);
    (result, text)
}

fn decoded(name: &str) -> Completion {
    let (completion, deltas) = decode(wire_of(name), &[&fixture(name)]);
    let completion = completion.unwrap_or_else(|error| panic!("{name}: {error:?}"));
    assert_eq!(deltas, completion.content, "{name}: the deltas are the text");
    completion
}

/// Servers report what became of their connection, after an answer that is complete.
#[rstest]
fn an_error_after_the_end_is_ignored(#[values("openai.sse", "anthropic.sse", "responses.sse")] name: &str) {
    let error = b"\n\ndata: {\"type\":\"error\",\"error\":{\"type\":\"server_error\",\"message\":\"broken pipe\"}}\n\n";
    let (completion, _) = decode(wire_of(name), &[&fixture(name), error]);
    assert_eq!(completion.unwrap(), decoded(name));
}

#[test]
fn a_call_that_only_the_final_event_has_is_made() {
    let call = r#"{"type":"function_call","call_id":"b","name":"time","arguments":"{}"}"#;
    let done = r#"{"type":"function_call","call_id":"a","name":"echo","arguments":"{}"}"#;
    let body = format!(
        "data: {{\"type\":\"response.output_item.done\",\"output_index\":0,\"item\":{done}}}\n\n\
         data: {{\"type\":\"response.completed\",\"response\":{{\"output\":[{done},{call}]}}}}\n\n"
    );
    let completion = decode(Wire::OpenAiResponses, &[body.as_bytes()]).0.unwrap();
    let names: Vec<&str> = completion.tool_calls.iter().map(|call| call.name.as_str()).collect();
    assert_eq!(names, ["echo", "time"]);
}

fn tapped(name: &str, body: &[u8]) -> TokenUsage {
    let mut tap = wire_of(name).usage_tap(PROMPT_TOKENS);
    body.chunks(7).for_each(|part| tap.observe(part));
    tap.finish()
}

fn usage(input: u64, output: u64, cache_read: u64, cache_write: u64) -> TokenUsage {
    TokenUsage {
        input_tokens: input,
        output_tokens: output,
        cache_read_tokens: cache_read,
        cache_write_tokens: cache_write,
    }
}

#[rstest]
#[case("openai.sse", &[("call_a", OSLO), ("call_b", BERGEN)])]
#[case("openai.json", &[("call_a", OSLO), ("call_b", BERGEN)])]
#[case("vllm.sse", &[("chatcmpl-tool-1", OSLO), ("chatcmpl-tool-4", BERGEN)])]
#[case("llama_cpp.sse", &[("ABC", OSLO)])]
#[case("ollama_v1.sse", &[("call_x1", OSLO), ("call_x2", BERGEN)])]
#[case("ollama_v1_old.sse", &[("", OSLO), ("", BERGEN), ("", "{}")])]
#[case("gemini.sse", &[("function-call-1", OSLO), ("function-call-2", BERGEN)])]
#[case("litellm.sse", &[("toolu_1", OSLO), ("toolu_2", BERGEN)])]
#[case("openrouter.sse", &[("call_a", OSLO)])]
#[case("huge_indexes.sse", &[("call_a", OSLO), ("call_b", BERGEN)])]
#[case("repeated_ids.sse", &[("call", OSLO), ("call", BERGEN)])]
#[case("function_call.sse", &[("", OSLO)])]
#[case("anthropic.sse", &[("toolu_1", OSLO), ("toolu_2", BERGEN)])]
#[case("anthropic.json", &[("toolu_1", OSLO), ("toolu_2", BERGEN)])]
#[case("anthropic_interleaved.sse", &[("toolu_1", OSLO), ("toolu_2", BERGEN)])]
#[case("ollama.ndjson", &[("", OSLO), ("call_2", BERGEN)])]
#[case("responses.sse", &[("call_a", OSLO), ("call_b", BERGEN)])]
#[case("responses_unmarked.sse", &[("call_a", OSLO), ("call_b", BERGEN)])]
fn every_call_once_and_in_order(#[case] name: &str, #[case] expected: &[(&str, &str)]) {
    let completion = decoded(name);
    let found: Vec<_> =
        completion.tool_calls.iter().map(|call| (call.id.as_str(), call.arguments.to_string())).collect();
    let expected: Vec<_> = expected.iter().map(|(id, arguments)| (*id, (*arguments).to_owned())).collect();
    assert_eq!(found, expected);
    assert!(completion.tool_calls.iter().all(|call| call.name == "weather" || call.name == "list"));
    assert_eq!(completion.finish_reason, FinishReason::ToolCalls);
}

#[rstest]
#[case("openai.sse", "Two cities.", None, FinishReason::ToolCalls)]
#[case("openai.json", "Two cities.", None, FinishReason::ToolCalls)]
#[case("azure.sse", "Grüße", None, FinishReason::Stop)]
#[case("vllm.sse", "", Some("Ask both."), FinishReason::ToolCalls)]
#[case("openrouter.sse", "", Some("Ask."), FinishReason::ToolCalls)]
#[case("mistral.sse", "Fine.", Some("Hm."), FinishReason::Stop)]
#[case("anthropic.sse", "Two cities.", Some("Ask both."), FinishReason::ToolCalls)]
#[case("anthropic.json", "Two cities.", Some("Ask both."), FinishReason::ToolCalls)]
#[case("anthropic_paused.sse", "Fine.", None, FinishReason::Length)]
#[case("anthropic_nameless.sse", "Fine.", None, FinishReason::Stop)]
#[case("ollama.ndjson", "Two cities.", Some("Ask both."), FinishReason::ToolCalls)]
#[case("ollama.json", "Two cities.", None, FinishReason::Length)]
#[case("responses.sse", "Two cities.", Some("Ask both."), FinishReason::ToolCalls)]
#[case("responses.json", "Two cities.", None, FinishReason::Length)]
fn text_reasoning_and_end(
    #[case] name: &str,
    #[case] text: &str,
    #[case] reasoning: Option<&str>,
    #[case] finish: FinishReason,
) {
    let completion = decoded(name);
    assert_eq!((completion.content.as_str(), completion.reasoning.as_deref()), (text, reasoning));
    assert_eq!(completion.finish_reason, finish);
}

#[rstest]
#[case("openai.sse", usage(120, 30, 64, 0))]
#[case("openai.json", usage(120, 30, 64, 0))]
#[case::cumulative("vllm.sse", usage(120, 30, 0, 0))]
#[case::with_the_finish("llama_cpp.sse", usage(120, 30, 0, 0))]
#[case::in_each_chunk_and_reasoning_in_the_total("gemini.sse", usage(120, 90, 0, 0))]
#[case("litellm.sse", usage(120, 30, 64, 16))]
#[case::input_excludes_the_cache("anthropic.sse", usage(120, 30, 64, 16))]
#[case("anthropic.json", usage(120, 30, 64, 16))]
#[case::only_the_output_in_the_last_event("anthropic_interleaved.sse", usage(120, 30, 64, 16))]
#[case("ollama.ndjson", usage(120, 30, 0, 0))]
#[case("responses.sse", usage(120, 30, 64, 0))]
#[case("responses.json", usage(120, 30, 64, 0))]
#[case::input_is_not_reported("ollama_cached.ndjson", usage(PROMPT_TOKENS, 30, 0, 0))]
#[case::nothing_is_reported("ollama_v1_old.sse", usage(PROMPT_TOKENS, 13, 0, 0))]
fn usage_is_read_by_decoder_and_tap(#[case] name: &str, #[case] expected: TokenUsage) {
    assert_eq!(decoded(name).usage, expected);
    assert_eq!(tapped(name, &fixture(name)), expected, "the tap reads the same");
}

#[rstest]
#[case("cut.sse", usage(PROMPT_TOKENS, 3, 0, 0))]
#[case("anthropic_cut.sse", usage(120, 3, 64, 16))]
#[case("ollama_cut.ndjson", usage(PROMPT_TOKENS, 3, 0, 0))]
#[case("responses_cut.sse", usage(PROMPT_TOKENS, 3, 0, 0))]
fn an_answer_without_its_end_is_interrupted_and_charged(#[case] name: &str, #[case] charged: TokenUsage) {
    let (decoded, _) = decode(wire_of(name), &[&fixture(name)]);
    assert_eq!(decoded, Err((DecodeError::Interrupted, charged)));
    assert_eq!(tapped(name, &fixture(name)), charged, "the tap charges the same");
}

#[rstest]
#[case("error.sse", Some("worn out"))]
#[case("error_in_choice.sse", Some("worn out"))]
#[case("anthropic_error.sse", Some("Overloaded"))]
#[case("ollama_error.ndjson", None)]
#[case("responses_failed.sse", Some("worn out"))]
fn an_error_inside_an_answer_is_the_providers(#[case] name: &str, #[case] message: Option<&str>) {
    match decode(wire_of(name), &[&fixture(name)]).0 {
        Err((DecodeError::Provider(body), _)) => assert_eq!(body["error"]["message"].as_str(), message),
        other => panic!("{other:?}"),
    }
}

/// No shape of a field that goes back to its provider stops the server.
#[test]
fn details_of_any_shape_are_read() {
    let delta = json!({"content": "x", "reasoning_details": ["x", 1, null, [], {"text": "y"}, {"text": 2}]});
    let chunk = json!({"choices": [{"index": 0, "delta": delta, "finish_reason": "stop"}]});
    let (completion, _) = decode(Wire::OpenAiChat, &[format!("data: {chunk}\n\n").as_bytes()]);
    assert_eq!(completion.unwrap().native.unwrap().value, json!({"reasoning_details": [{"text": 2}]}));
}

#[rstest]
#[case("refusal.sse", "refusal")]
#[case("anthropic_refusal.sse", "refusal")]
fn a_refusal_is_no_answer(#[case] name: &str, #[case] category: &str) {
    let (decoded, _) = decode(wire_of(name), &[&fixture(name)]);
    assert_eq!(decoded.map_err(|(error, _)| error), Err(DecodeError::Refused(category.to_owned())));
}

/// vercel/ai#12425: 97 of 98 tokens of xAI's answer are reasoning, which only the total has. envoyproxy/ai-gateway#1631: a
/// proxy ends Anthropic's stream with zeros.
#[rstest]
#[case::reasoning_beside_the_completion(
    Wire::OpenAiChat,
    &[json!({"choices": [{"index": 0, "delta": {"content": "x"}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 10_120, "completion_tokens": 1_499, "total_tokens": 14_428}})],
    usage(10_120, 4_308, 0, 0)
)]
#[case::zeros_at_the_end(
    Wire::Anthropic,
    &[
        json!({"type": "message_start", "message": {"usage": {
            "input_tokens": 50_000, "cache_read_input_tokens": 30_000, "output_tokens": 1}}}),
        json!({"type": "content_block_start", "index": 0, "content_block": {"type": "text", "text": "x"}}),
        json!({"type": "message_delta", "delta": {"stop_reason": "end_turn"}, "usage": {
            "input_tokens": 0, "cache_read_input_tokens": 0, "cache_creation_input_tokens": 0, "output_tokens": 20}}),
        json!({"type": "message_stop"}),
    ],
    usage(80_000, 20, 30_000, 0)
)]
fn a_count_never_shrinks(#[case] wire: Wire, #[case] events: &[Value], #[case] expected: TokenUsage) {
    let body = events.iter().map(|event| format!("data: {event}\n\n")).collect::<Vec<_>>().concat();
    assert_eq!(decode(wire, &[body.as_bytes()]).0.unwrap().usage, expected);
}

/// openclaw/openclaw#115536: gateways in JavaScript cut texts at UTF-16 units.
#[test]
fn halves_of_characters_meet_again_in_every_field() {
    let chunk = |delta: &str| format!("data: {{\"choices\": [{{\"index\": 0, \"delta\": {delta}}}]}}\n\n");
    let call = |arguments: &str| {
        chunk(&format!(
            "{{\"tool_calls\": [{{\"index\": 0, \"id\": \"a\", \"function\": {{\"name\": \"f\", \"arguments\": \"{arguments}\"}}}}]}}"
        ))
    };
    let body = [
        chunk(r#"{"reasoning": "Go \ud83d"}"#),
        chunk(r#"{"reasoning": "\ude80"}"#),
        chunk(r#"{"content": "Ship it \ud83d"}"#),
        chunk(r#"{"content": "\ude80 now \ud83d"}"#),
        call(r#"{\"x\": \"\ud83d"#),
        call(r#"\ude80\"}"#),
        "data: {\"choices\": [{\"index\": 0, \"delta\": {}, \"finish_reason\": \"tool_calls\"}]}\n\n".to_owned(),
    ];
    let (completion, deltas) = decode(Wire::OpenAiChat, &[body.concat().as_bytes()]);
    let completion = completion.unwrap();
    assert_eq!((completion.content.as_str(), deltas.as_str()), ("Ship it 🚀 now \u{fffd}", "Ship it 🚀 now \u{fffd}"));
    assert_eq!(completion.reasoning.as_deref(), Some("Go 🚀"));
    assert_eq!(completion.tool_calls[0].arguments, json!({"x": "🚀"}));
}

/// NousResearch/hermes-agent#92161 and CherryHQ/cherry-studio#16079; PowerShell/AIShell#350 for the last one.
#[rstest]
#[case("error", false)]
#[case("network_error", false)]
#[case("MALFORMED_FUNCTION_CALL", false)]
#[case("null", true)]
fn a_generation_that_broke_is_no_answer(#[case] reason: &str, #[case] is_cut: bool) {
    let chunk = json!({"choices": [{"index": 0, "delta": {"content": "Half of"}, "finish_reason": reason}]});
    let (decoded, _) = decode(Wire::OpenAiChat, &[format!("data: {chunk}\n\ndata: [DONE]\n\n").as_bytes()]);
    match decoded.map_err(|(error, _)| error) {
        Err(DecodeError::Invalid(message)) => assert!(!is_cut && message.contains(reason), "{message}"),
        other => assert_eq!((other, is_cut), (Err(DecodeError::Interrupted), true)),
    }
}

/// A server that loses its upstream after `finish_reason` has said everything.
#[test]
fn the_end_mark_may_be_missing_after_the_finish_reason() {
    let whole = String::from_utf8(fixture("openai.sse")).unwrap();
    let (without, _) = whole.split_once("data: [DONE]").unwrap();
    let (completion, _) = decode(Wire::OpenAiChat, &[without.as_bytes()]);
    assert_eq!(completion.unwrap(), decoded("openai.sse"));
    let message_stop = String::from_utf8(fixture("anthropic.sse")).unwrap();
    let (without, _) = message_stop.split_once("event: message_stop").unwrap();
    assert_eq!(decode(Wire::Anthropic, &[without.as_bytes()]).0.unwrap(), decoded("anthropic.sse"));
}

#[rstest]
#[case::only_an_end_mark(Wire::OpenAiChat, "data: [DONE]\n\n")]
#[case::a_page(Wire::OpenAiChat, "<html>welcome</html>")]
#[case::not_json(Wire::Anthropic, "event: message_start\ndata: }{\n\n")]
fn an_unusable_answer_is_invalid(#[case] wire: Wire, #[case] body: &str) {
    assert!(matches!(decode(wire, &[body.as_bytes()]).0, Err((DecodeError::Invalid(_), _))));
}

#[test]
fn an_image_in_an_answer_is_refused() {
    let part = json!({"type": "image_url", "image_url": {"url": "data:image/png;base64,aaaa"}});
    for delta in [json!({"content": [part]}), json!({"content": "", "images": [part]})] {
        let chunk = json!({"choices": [{"index": 0, "delta": delta}]});
        let body = format!("data: {chunk}\n\n");
        assert_eq!(decode(Wire::OpenAiChat, &[body.as_bytes()]).0.map_err(|(error, _)| error), Err(DecodeError::Image));
    }
}

/// The longer name arrives shortened, so that the call is known and fails as one of an unknown tool.
#[test]
fn the_name_of_a_tool_has_a_limit() {
    let call = json!({"index": 0, "id": "a", "function": {"name": "é".repeat(100_000), "arguments": "{}"}});
    let chunk = json!({"choices": [{"index": 0, "delta": {"tool_calls": [call]}, "finish_reason": "tool_calls"}]});
    let completion = decode(Wire::OpenAiChat, &[format!("data: {chunk}\n\n").as_bytes()]).0.unwrap();
    assert_eq!(completion.tool_calls[0].name, "é".repeat(128));
}

#[test]
fn signed_parts_are_kept_in_their_order() {
    let native = |name: &str| decoded(name).native.map(|native| native.value);
    let (text, call) = (json!({"type": "text", "text": "Two cities."}), json!({"type": "tool_use"}));
    let thinking = |text, signature| json!({"type": "thinking", "thinking": text, "signature": signature});
    assert_eq!(native("anthropic.sse"), Some(json!([thinking("Ask both.", "c2ln"), text, call, call])));
    let redacted = json!({"type": "redacted_thinking", "data": "xyz"});
    let interleaved = json!([thinking("One.", "czE="), redacted, call, thinking("Two.", "czI="), call]);
    assert_eq!(native("anthropic_interleaved.sse"), Some(interleaved));
    let google = json!({"google": {"thought_signature": "c2ln"}});
    assert_eq!(native("gemini.sse"), Some(json!({"calls": [google, null]})));
    assert_eq!(native("openrouter.sse"), Some(json!({"reasoning": "Ask."})));
    assert_eq!(native("responses.sse").unwrap()[0]["encrypted_content"], "gAAA");
    for name in ["openai.sse", "mistral.sse", "anthropic_nameless.sse", "responses.json"] {
        assert_eq!(native(name), None, "{name}");
    }
}

fn all_fixtures() -> Vec<String> {
    let directory = Path::new(env!("CARGO_MANIFEST_DIR")).join("src/wire/fixtures");
    let names = fs::read_dir(directory).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<_> = names.collect();
    names.sort();
    assert!(names.len() > 30, "{names:?}");
    names
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]

    /// However the bytes come, the answer is the same, and so is what the tap reads.
    #[test]
    fn any_split_gives_the_same_answer(cuts in proptest::collection::vec(0.0..1.0_f64, 0..40)) {
        for name in all_fixtures() {
            let body = fixture(&name);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short file")]
            let mut cuts: Vec<usize> = cuts.iter().map(|cut| (cut * body.len() as f64) as usize).collect();
            cuts.push(0);
            cuts.push(body.len());
            cuts.sort_unstable();
            let parts: Vec<&[u8]> = cuts.windows(2).map(|ends| &body[ends[0]..ends[1]]).collect();
            let (whole, split) = (decode(wire_of(&name), &[&body]), decode(wire_of(&name), &parts));
            prop_assert_eq!(whole, split, "{}", name);
            prop_assert_eq!(tapped(&name, &body), {
                let mut tap = wire_of(&name).usage_tap(PROMPT_TOKENS);
                for part in &parts {
                    tap.observe(part);
                }
                tap.finish()
            });
        }
    }

    /// An answer that ends anywhere is whole, interrupted or an error of the provider's, and never charged for more
    /// than the whole one.
    #[test]
    fn any_cut_is_noticed(at in 0.0..1.0_f64) {
        for name in all_fixtures() {
            let body = fixture(&name);
            #[expect(clippy::cast_possible_truncation, clippy::cast_sign_loss, clippy::cast_precision_loss, reason = "a place in a short file")]
            let cut = &body[..(at * body.len() as f64) as usize];
            if let (Err((DecodeError::Invalid(message), _)), _) = decode(wire_of(&name), &[cut]) {
                prop_assert!(message.contains("event stream"), "{}: {}", name, message);
            }
            tapped(&name, cut);
        }
    }
}
