//! Renders the events of a chat as text.
//!
//! Owns the layout. Never prints. Text of the agent and of tools is escaped.

use protocol::{ChatContent, ChatMessage, DeltaPiece, Gate};

use super::event::ChatEvent;
use crate::cli::{
    output::Paint,
    text::{escape_control_chars, one_line, truncate},
};

/// Longest input or output of a tool call that is shown, in characters.
const MAX_CALL_CHARS: usize = 140;

/// Renders the events of one thread in order.
pub(super) struct Renderer {
    paint: Paint,
    /// Pieces of answers are shown as they arrive.
    is_live: bool,
    /// The pieces of the current answer that were shown.
    shown: String,
}

impl Renderer {
    pub(super) const fn new(paint: Paint, is_live: bool) -> Self {
        Self { paint, is_live, shown: String::new() }
    }

    /// The text of an event, with its line ends. `None`: it is not shown.
    pub(super) fn event(&mut self, event: &ChatEvent) -> Option<String> {
        match event {
            ChatEvent::Delta(delta) if self.is_live => self.piece(&delta.piece),
            ChatEvent::Entry(_, message) => Some(self.entry(message)),
            ChatEvent::Status(status) => {
                Some(self.on_new_line(&self.paint.dim(&format!("({})", one_line(&status.message)))))
            }
            ChatEvent::Delta(_) | ChatEvent::GateRequired(_) | ChatEvent::GateResolved(_) | ChatEvent::State(..) => {
                None
            }
        }
    }

    fn piece(&mut self, piece: &DeltaPiece) -> Option<String> {
        match piece {
            // What was shown is void.
            DeltaPiece::Start => (!std::mem::take(&mut self.shown).is_empty()).then(|| "\n".to_owned()),
            DeltaPiece::Text(text) => {
                self.shown.push_str(text);
                Some(escape_control_chars(text))
            }
            DeltaPiece::Reasoning(_) => None,
        }
    }

    fn entry(&mut self, message: &ChatMessage) -> String {
        let paint = self.paint;
        let text = match &message.content {
            ChatContent::Assistant { content } => {
                let shown = std::mem::take(&mut self.shown);
                if !shown.is_empty() && shown.trim() == content.trim() {
                    return "\n".to_owned();
                }
                let begin = if shown.is_empty() { "" } else { "\n" };
                return format!("{begin}{}\n", escape_control_chars(content.trim_end()));
            }
            ChatContent::User { content } => {
                format!("{} {}", paint.cyan("you:"), escape_control_chars(content.trim_end()))
            }
            ChatContent::System { content } => paint.dim(&escape_control_chars(content.trim_end())),
            ChatContent::ToolUse { tool, input, .. } => {
                let input = truncate(&one_line(&input.to_string()), MAX_CALL_CHARS);
                format!("{} {} {input}", paint.cyan("→"), paint.bold(&one_line(tool)))
            }
            ChatContent::ToolResult { tool, success, output, duration_ms, .. } => {
                let (arrow, word) = if *success { (paint.green("←"), "ok") } else { (paint.red("←"), "failed") };
                let output = truncate(&one_line(output.trim()), MAX_CALL_CHARS);
                format!("{arrow} {} {word}, {duration_ms} ms {}", one_line(tool), paint.dim(&output))
            }
            ChatContent::Job { job_id, title, state, content, .. } => {
                let head = format!("job {job_id} {state}: {}", one_line(title));
                format!("{}\n{}", paint.bold(&head), escape_control_chars(content.trim_end()))
            }
            ChatContent::Error { reason, content } => {
                format!("{} {} ({reason})", paint.red("error:"), one_line(content))
            }
        };
        self.on_new_line(&text)
    }

    /// The text on separate lines.
    fn on_new_line(&mut self, text: &str) -> String {
        let begin = if std::mem::take(&mut self.shown).is_empty() { "" } else { "\n" };
        format!("{begin}{text}\n")
    }

    /// What a person has to decide.
    pub(super) fn gate(&self, gate: &Gate) -> String {
        let parameters = serde_json::to_string_pretty(&gate.parameters).unwrap_or_default();
        format!(
            "{} {} with\n{}\n",
            self.paint.yellow("The agent wants to call"),
            self.paint.bold(&one_line(&gate.tool)),
            escape_control_chars(&parameters)
        )
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use protocol::{CallId, ChatDelta, MessageId, ThreadId};
    use serde_json::json;

    use super::*;

    fn piece(piece: DeltaPiece) -> ChatEvent {
        ChatEvent::Delta(ChatDelta { thread_id: ThreadId::nil(), call_id: CallId::from("c"), piece })
    }

    fn text(text: &str) -> ChatEvent {
        piece(DeltaPiece::Text(text.to_owned()))
    }

    fn entry(content: ChatContent) -> ChatEvent {
        let message = ChatMessage { id: MessageId::nil(), seq: Some(1), at: DateTime::UNIX_EPOCH, content };
        ChatEvent::Entry(ThreadId::nil(), Box::new(message))
    }

    fn said(content: &str) -> ChatEvent {
        entry(ChatContent::Assistant { content: content.to_owned() })
    }

    fn shown(is_live: bool, events: &[ChatEvent]) -> String {
        let mut renderer = Renderer::new(Paint::Plain, is_live);
        events.iter().filter_map(|event| renderer.event(event)).collect()
    }

    #[test]
    fn pieces_are_shown_as_they_arrive_and_their_message_is_not_repeated() {
        let start = || piece(DeltaPiece::Start);
        let answer = [start(), text("It "), text("works\x1b[2J"), said("It works\x1b[2J")];
        assert_eq!(shown(true, &answer), "It works␛[2J\n");
        assert_eq!(shown(false, &answer), "It works␛[2J\n");
        // An answer that broke off is void, and one that was cleaned is shown as it is.
        let twice = [start(), text("half"), start(), text("<think>x</think>whole"), said("whole")];
        assert_eq!(shown(true, &twice), "half\n<think>x</think>whole\nwhole\n");
        assert_eq!(shown(false, &twice), "whole\n");
    }

    #[test]
    fn a_call_is_one_line_and_its_result_another() {
        let (call_id, tool) = (CallId::from("c"), "echo".to_owned());
        let used =
            entry(ChatContent::ToolUse { call_id: call_id.clone(), tool: tool.clone(), input: json!({"a": "b\nc"}) });
        let result = entry(ChatContent::ToolResult {
            call_id,
            tool,
            success: false,
            output: "no\nway".to_owned(),
            truncated: false,
            duration_ms: 3,
        });
        assert_eq!(
            shown(true, &[text("I look."), used, result]),
            "I look.\n→ echo {\"a\":\"b\\nc\"}\n← echo failed, 3 ms no way\n"
        );
    }
}
