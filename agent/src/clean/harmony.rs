//! Messages of Harmony, the format of gpt-oss, and the channel of Gemma 4: whom a message is for, and where its body
//! is. Pure.

use super::marks;

/// Marks and words of a header, before the recipient or the body.
const HEADER: [&str; 9] =
    ["<|start|>", "assistant", "<|channel|>", "<|constrain|>", "commentary", "analysis", "final", "json", " "];

const MAX_HEADER_WORDS: usize = 16;

/// What ends a body. The next message may begin without it.
const BODY_ENDS: [&str; 5] = ["<|end|>", "<|call|>", "<|return|>", "<|start|>", "<|channel|>"];

/// The channel of Gemma 4.
const CHANNEL: &str = "<|channel>";
const CHANNEL_ENDS: [&str; 2] = ["<channel|>", "<|tool_call>"];

/// What ends a body by beginning something else.
const NEXT: [&str; 3] = ["<|start|>", "<|channel|>", "<|tool_call>"];

/// What a header begins.
#[derive(Debug, PartialEq, Eq)]
pub(super) enum Message<'t> {
    /// A call: the text from the name of the recipient on.
    Call(&'t str),
    /// Thinking: its text, if it has an end, and the text after it.
    Thinking(Option<&'t str>, &'t str),
    /// A text for the user, which follows.
    Text(&'t str),
}

/// The message whose header the text starts with. Servers that remove marks leave the words of a header: where
/// `may_lack_marks`, they are enough if they name a function.
pub(super) fn message_at(text: &str, may_lack_marks: bool) -> Option<Message<'_>> {
    if let Some(body) = text.strip_prefix(CHANNEL) {
        return Some(thinking(body.strip_prefix("thought").unwrap_or(body), &CHANNEL_ENDS));
    }
    let has_mark = text.starts_with("<|start|>") || text.starts_with("<|channel|>");
    if !has_mark && !may_lack_marks {
        return None;
    }
    let mut is_analysis = false;
    let mut rest = text;
    for _ in 0..MAX_HEADER_WORDS {
        let Some((word, after)) = HEADER.iter().find_map(|word| Some((*word, rest.strip_prefix(word)?))) else { break };
        is_analysis |= word == "analysis";
        rest = after;
    }
    if let Some(recipient) = rest.strip_prefix("to=") {
        return (has_mark || recipient.starts_with("functions.")).then_some(Message::Call(recipient));
    }
    let body = rest.strip_prefix("<|message|>").filter(|_| has_mark)?;
    Some(if is_analysis { thinking(body, &BODY_ENDS) } else { Message::Text(body) })
}

fn thinking<'t>(body: &'t str, ends: &[&str]) -> Message<'t> {
    let mut places = body.match_indices('<').map(|(at, _)| at);
    match places.find(|at| marks::strip_any(&body[*at..], ends).is_some()) {
        Some(end) => Message::Thinking(Some(&body[..end]), after_end(&body[end..], ends)),
        None => Message::Thinking(None, body),
    }
}

/// A mark that begins something else is left to it.
fn after_end<'t>(rest: &'t str, ends: &[&str]) -> &'t str {
    let begins_next = NEXT.iter().any(|mark| rest.starts_with(mark));
    if begins_next { rest } else { marks::strip_any(rest, ends).unwrap_or(rest) }
}
