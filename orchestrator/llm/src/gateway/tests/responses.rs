//! The responses format: what `llm::serve` sends is what the codec reads. No kind of provider speaks it yet, so it is
//! asked directly.

use protocol::{FinishReason, Message, ToolCall};
use rstest::rstest;

use super::*;
use crate::wire::{RequestOptions, Wire};

const SCRIPT: &str = r#"
rules:
  - when: { last_message: rain, tool_name: weather, turn: 2 }
    reply: { text: "It is {{tool_result}}." }
  - when: { last_message: both }
    reply:
      text: I ask for both.
      reasoning: Two places.
      tool_calls:
        - { name: weather, id: call_a, arguments: { city: Oslo } }
        - { name: weather, id: call_b, arguments: { city: Bergen } }
      usage: { input_tokens: 100, output_tokens: 20, cache_read_tokens: 30 }
      chunk_chars: 3
  - { when: { last_message: long }, reply: { text: on and on, finish_reason: length } }
  - { when: { last_message: nothing }, reply: { text: "", finish_reason: stop } }
  - { when: { last_message: cut }, reply: { text: This ends in the middle of it., cut_after_chars: 12 } }
  - reply: { text: "You said: {{last_message}}" }
"#;

/// Sends a request as the codec writes it, as a stream or not, and decodes the answer.
async fn ask(served: &Served, messages: Vec<Message>, streams: bool) -> Result<Completion, String> {
    let wire = Wire::OpenAiResponses;
    let mut body =
        wire.request(&conversation(messages), &RequestOptions::new("m", 100, 1_000, &config::Dialect::default()));
    body["stream"] = json!(streams);
    let client = reqwest::Client::builder().no_proxy().build().unwrap();
    let url = format!("{}/v1/{}", served.address, wire.path());
    let mut response = client.post(url).json(&body).send().await.unwrap();
    assert_eq!(response.status(), 200);
    let mut decoder = wire.decoder();
    while let Ok(Some(chunk)) = response.chunk().await {
        decoder.push(&chunk, &mut |_| {}).map_err(|error| error.to_string())?;
    }
    decoder.finish(7, &mut |_| {}).map_err(|(error, _)| error.to_string())
}

#[rstest]
#[tokio::test]
async fn there_and_back(#[values(true, false)] streams: bool) {
    let served = Served::start(SCRIPT).await;
    let first = ask(&served, vec![user("both")], streams).await.unwrap();
    let call = |id: &str, city: &str| ToolCall {
        id: id.to_owned(),
        name: "weather".to_owned(),
        arguments: json!({"city": city}),
    };
    assert_eq!(first.tool_calls, [call("call_a", "Oslo"), call("call_b", "Bergen")]);
    assert_eq!((first.content.as_str(), first.reasoning.as_deref()), ("I ask for both.", Some("Two places.")));
    assert_eq!(first.finish_reason, FinishReason::ToolCalls);
    let usage = TokenUsage { input_tokens: 100, output_tokens: 20, cache_read_tokens: 30, cache_write_tokens: 0 };
    assert_eq!(first.usage, usage);

    let result = |id: &str, content: &str| Message::Tool {
        tool_call_id: id.to_owned(),
        name: "weather".to_owned(),
        content: content.to_owned(),
    };
    let assistant = Message::Assistant { content: first.content, tool_calls: first.tool_calls, native: first.native };
    let messages = vec![user("both"), assistant, result("call_a", "sun"), result("call_b", "rain")];
    assert_eq!(ask(&served, messages, streams).await.unwrap().content, "It is rain.");

    assert_eq!(ask(&served, vec![user("long")], streams).await.unwrap().finish_reason, FinishReason::Length);
    assert_eq!(ask(&served, vec![user("nothing")], streams).await.unwrap().content, "");
    assert_eq!(ask(&served, vec![user("hello")], streams).await.unwrap().content, "You said: hello");
    served.stop().await;
}

#[tokio::test]
async fn a_stream_that_is_cut_is_interrupted() {
    let served = Served::start(SCRIPT).await;
    let error = ask(&served, vec![user("cut")], true).await.unwrap_err();
    assert!(error.contains("before it was complete"), "{error}");
    served.stop().await;
}
