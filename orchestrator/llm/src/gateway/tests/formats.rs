//! Each wire format against `llm::serve` over HTTP.

use protocol::{FinishReason, ToolCall};
use rstest::rstest;

use super::*;

const SCRIPT: &str = r#"
model: served-model
rules:
  - name: what came back is echoed
    when: { tool_name: weather, tool_result: rain, turn: 2 }
    reply: { text: "It is {{tool_result}}." }
  - name: two at once
    when: { last_message: both }
    reply:
      text: I ask for both.
      reasoning: Two places.
      tool_calls:
        - { name: weather, id: call_a, arguments: { city: Oslo, days: 2 }, thought_signatures: [c2lnbmVk] }
        - { name: weather, id: call_b, arguments: { city: Bergen } }
      usage: { input_tokens: 100, output_tokens: 20, cache_read_tokens: 30, cache_write_tokens: 10 }
      chunk_chars: 3
  - { when: { last_message: unfinished }, reply: { tool_calls: [{ name: weather, arguments: '{"city": "Os' }] } }
  - { when: { last_message: nothing }, reply: { tool_calls: [{ name: weather, arguments: '' }] } }
  - { when: { last_message: tools, has_tools: false }, reply: { text: none } }
  - { when: { last_message: tools }, reply: { text: some } }
  - { when: { last_message: long }, reply: { text: on and on, finish_reason: length } }
  - { when: { last_message: busy }, rate_limit: { retry_after_seconds: 7 } }
  - { when: { last_message: flaky }, times: 2, error: { status: 500, message: oh no } }
  - { when: { last_message: flaky }, reply: { text: well again } }
  - { when: { last_message: dead }, error: { status: 503, message: unavailable } }
  - { when: { last_message: key }, error: { status: 401, message: sk-test is not known } }
  - { when: { last_message: late }, error: { status: 401, message: "xxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxxx sk-test" } }
  - { when: { last_message: missing }, error: { status: 404, message: no such model } }
  - { when: { last_message: cut }, times: 1, reply: { text: This ends in the middle of it., cut_after_chars: 12, chunk_chars: 4 } }
  - { when: { last_message: cut }, reply: { text: whole, usage: { input_tokens: 9, output_tokens: 2 } } }
  - { when: { last_message: always half }, reply: { text: This ends in the middle of it., cut_after_chars: 12 } }
  - { when: { last_message: garbage }, times: 1, garbage: true }
  - { when: { last_message: garbage }, reply: { text: sense } }
  - { when: { last_message: noise }, garbage: true }
  - { when: { last_message: silent }, hang: true }
  - reply: { text: "You said: {{last_message}}", usage: { input_tokens: 11, output_tokens: 7 } }
"#;

#[rstest]
#[tokio::test]
async fn text(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);

    let answer = ask(&gateway, "hällo, wörld").await.unwrap();
    assert_eq!(answer.completion.content, "You said: hällo, wörld");
    assert_eq!(answer.completion.finish_reason, FinishReason::Stop);
    assert_eq!(answer.completion.usage, TokenUsage { input_tokens: 11, output_tokens: 7, ..TokenUsage::default() });
    assert_eq!((answer.cost.provider.as_str(), answer.cost.model.as_str()), ("served", "model-a"));
    assert_eq!(answer.cost.usage, answer.completion.usage);
    assert_eq!(answer.cost.cost_micro_usd, (wire == Wire::Ollama).then_some(0));
    assert_eq!(ask(&gateway, "long").await.unwrap().completion.finish_reason, FinishReason::Length);
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn parallel_calls_there_and_back(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);

    let first = ask(&gateway, "both").await.unwrap().completion;
    let call = |id: &str, arguments| ToolCall { id: id.to_owned(), name: "weather".to_owned(), arguments };
    assert_eq!(
        first.tool_calls,
        [call("call_a", json!({"city": "Oslo", "days": 2})), call("call_b", json!({"city": "Bergen"}))]
    );
    let native = first.native.clone().expect("each wire returns the reasoning");
    assert!(native.maker.contains(" 127.0.0.1") && native.maker.ends_with(" model-a"), "{native:?}");
    assert!(native.value.to_string().contains("Two places."), "{native:?}");
    assert_eq!(first.content, "I ask for both.");
    assert_eq!(first.reasoning.as_deref(), Some("Two places."));
    assert_eq!(first.finish_reason, FinishReason::ToolCalls);
    // Ollama counts no writing to a cache.
    let cache_write_tokens = if wire == Wire::Ollama { 0 } else { 10 };
    let usage = TokenUsage { input_tokens: 100, output_tokens: 20, cache_read_tokens: 30, cache_write_tokens };
    assert_eq!(first.usage, usage);

    let result = |id: &str, content: &str| Message::Tool {
        tool_call_id: id.to_owned(),
        name: "weather".to_owned(),
        content: content.to_owned(),
    };
    let assistant = Message::Assistant { content: first.content, tool_calls: first.tool_calls, native: first.native };
    let messages = vec![user("both"), assistant, result("call_a", "sun"), result("call_b", "rain")];
    let second = gateway.ask(&conversation(messages), &CallContext::default(), std::future::pending()).await.unwrap();
    assert_eq!(second.completion.content, "It is rain.");
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn arguments_that_are_not_json_stay_text(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);
    let answer = ask(&gateway, "unfinished").await.unwrap().completion;
    assert_eq!(answer.tool_calls[0].arguments, json!("{\"city\": \"Os"));

    // And the conversation goes on, although each wire takes objects only.
    let assistant = Message::Assistant { content: String::new(), tool_calls: answer.tool_calls.clone(), native: None };
    let result = Message::Tool {
        tool_call_id: answer.tool_calls[0].id.clone(),
        name: "weather".to_owned(),
        content: "rain".to_owned(),
    };
    let messages = conversation(vec![user("unfinished"), assistant, result]);
    let next = gateway.ask(&messages, &CallContext::default(), std::future::pending()).await.unwrap();
    assert_eq!(next.completion.content, "It is rain.");

    assert_eq!(ask(&gateway, "nothing").await.unwrap().completion.tool_calls[0].arguments, json!({}));
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn tools_that_may_not_be_called(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);
    assert_eq!(ask(&gateway, "tools").await.unwrap().completion.content, "some");
    let request = CompletionRequest { tool_choice: ToolChoice::None, ..request_of("tools") };
    assert_eq!(
        gateway.ask(&request, &CallContext::default(), std::future::pending()).await.unwrap().completion.content,
        "none"
    );
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn transient_failures_are_retried(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);
    assert_eq!(ask(&gateway, "flaky").await.unwrap().completion.content, "well again");
    assert_eq!(ask(&gateway, "garbage").await.unwrap().completion.content, "sense");
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_cut_stream_is_tried_again_and_paid_for(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);

    let answer = ask(&gateway, "cut").await.unwrap();
    assert_eq!(answer.completion.content, "whole");
    assert_eq!(answer.completion.usage.output_tokens, 2);
    assert_eq!(answer.cost.usage.output_tokens, 5, "twelve characters that broke off, and the two tokens");
    assert!(answer.cost.usage.input_tokens > 9, "{:?}", answer.cost.usage);

    let error = failed(&gateway, "always half").await;
    assert_eq!(error.failure.kind(), ErrorKind::StreamInterrupted);
    assert_eq!(error.cost.usage.output_tokens, 9, "three tries, three tokens each");
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn a_rate_limit_is_returned_with_its_retry_after(
    #[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire,
) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);
    let error = failed(&gateway, "busy").await;
    let expected = Failure::RateLimited {
        kind: ErrorKind::RateLimited,
        origin: RateLimitOrigin::Provider,
        retry_after: Some(Duration::from_secs(7)),
        message: "served: status 429: rate limit reached, slow down".to_owned(),
    };
    assert_eq!(error.failure, expected);
    assert_eq!(gateway.health()[0].breaker, BreakerState::Closed);
    served.stop().await;
}

#[rstest]
#[case("dead", ErrorKind::Server, "status 503: unavailable")]
#[case("key", ErrorKind::Auth, "status 401: [key] is not known")]
#[case("late", ErrorKind::Auth, "xx [key]")]
#[case("missing", ErrorKind::NotFound, "status 404: no such model")]
#[case("noise", ErrorKind::InvalidResponse, "the answer is not JSON")]
#[tokio::test]
async fn a_failure_names_its_cause(
    #[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire,
    #[case] content: &str,
    #[case] kind: ErrorKind,
    #[case] words: &str,
) {
    let served = Served::start(SCRIPT).await;
    let gateway = impatient(vec![served.provider(wire)]);
    let error = failed(&gateway, content).await;
    assert_eq!(error.failure.kind(), kind);
    assert!(error.to_string().contains(words), "{error}");
    assert!(error.failure.to_string().chars().count() < 450, "{error}");
    assert_eq!((error.cost.provider.as_str(), error.cost.usage), ("served", TokenUsage::default()));
    served.stop().await;
}

#[rstest]
#[tokio::test]
async fn silence_ends_at_the_timeout(#[values(Wire::OpenAi, Wire::Anthropic, Wire::Ollama)] wire: Wire) {
    let served = Served::start(SCRIPT).await;
    let provider = ProviderSettings { timeout_seconds: 1, ..served.provider(wire) };
    let gateway = impatient(vec![provider]);
    let error = failed(&gateway, "silent").await;
    assert_eq!(error.failure.kind(), ErrorKind::Timeout);
    assert!(error.failure.to_string().contains("llm.timeout_seconds"), "{error}");
    served.stop().await;
}

#[tokio::test]
async fn connection_refused() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap();
    drop(listener);
    let base_url = format!("http://bob:hunter2@{address}/v1?api-key=abcdef");
    let provider = ProviderSettings { base_url, ..ProviderSettings::new("gone", ProviderKind::OpenAi, "m") };
    let error = failed(&impatient(vec![provider]), "hello").await;
    assert_eq!(error.failure.kind(), ErrorKind::Connect);
    let error_text = format!("{error:?}");
    for secret in ["hunter2", "abcdef", &address.to_string()] {
        assert!(!error_text.contains(secret), "{error_text}");
    }
}
