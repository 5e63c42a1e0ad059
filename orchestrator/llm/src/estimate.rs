//! The estimated prompt tokens of a request, before it is sent: everything that is sent, tool definitions included.

use protocol::{CompletionRequest, Message, ToolCall, ToolDefinition};
use serde_json::Value;

use super::arguments::tokens_of_bytes;

/// A message's role and separators, in bytes.
const MESSAGE_BYTES: usize = 16;

pub(super) fn prompt_tokens(request: &CompletionRequest) -> u64 {
    let messages: usize = request.messages.iter().map(message).sum();
    let tools: usize = request.tools.iter().map(tool).sum();
    tokens_of_bytes(messages + tools)
}

fn message(message: &Message) -> usize {
    let content = match message {
        Message::System { content } | Message::User { content } => text(content),
        Message::Tool { tool_call_id, name, content } => text(tool_call_id) + text(name) + text(content),
        Message::Assistant { content, tool_calls, native } => {
            let native = native.as_ref().map_or(0, |native| json(&native.value));
            text(content) + native + tool_calls.iter().map(call).sum::<usize>()
        }
    };
    content + MESSAGE_BYTES
}

fn call(call: &ToolCall) -> usize {
    text(&call.id) + text(&call.name) + json(&call.arguments) + MESSAGE_BYTES
}

fn tool(tool: &ToolDefinition) -> usize {
    text(&tool.name) + text(&tool.description) + json(&tool.parameters) + MESSAGE_BYTES
}

/// A text without spaces of this length is encoded data, such as base64 or hexadecimal, rather than a word.
const MIN_ENCODED_BYTES: usize = 24;

/// The bytes of a text. Those of characters outside ASCII, of digits and of encoded data count twice: a token has about
/// two of them.
fn text(text: &str) -> usize {
    weigh(text.as_bytes())
}

fn weigh(bytes: &[u8]) -> usize {
    let may_encode = |byte: &u8| byte.is_ascii_alphanumeric() || matches!(byte, b'+' | b'/' | b'-' | b'_' | b'=');
    let runs = bytes.chunk_by(|left, right| may_encode(left) == may_encode(right));
    let weight = |run: &[u8]| {
        let is_encoded = run.len() >= MIN_ENCODED_BYTES && run.first().is_some_and(may_encode);
        let counts_twice = |byte: &&u8| is_encoded || byte.is_ascii_digit() || !byte.is_ascii();
        run.len() + run.iter().filter(counts_twice).count()
    };
    runs.map(weight).sum()
}

/// The same of a value's JSON, without making it.
fn json(value: &Value) -> usize {
    struct Weight(usize);
    impl std::io::Write for Weight {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0 += weigh(bytes);
            Ok(bytes.len())
        }
        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }
    let mut weight = Weight(0);
    // Neither serialising a value nor counting can fail.
    let _ = serde_json::to_writer(&mut weight, value);
    weight.0
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::prose("The quick brown fox jumps", 25)]
    #[case::digits("1234 5678", 17)]
    #[case::a_word("internationalisation", 20)]
    #[case::base64("TG9yZW0gaXBzdW0gZG9sb3Igc2l0IGFtZXQ=", 72)]
    #[case::other_scripts("漢字", 12)]
    #[case::nothing("", 0)]
    fn weights(#[case] given: &str, #[case] weight: usize) {
        assert_eq!(text(given), weight);
        assert_eq!(json(&Value::from(given)), weight + 2, "with its quotes");
    }
}
