//! Renders the events of a chat as text.
//!
//! Owns the layout. Never prints. Text of the agent and of tools is escaped.

use protocol::{ChatContent, ChatHistory, ChatMessage, DeltaPiece, Gate, NotApproved};

use super::{event::ChatEvent, gate::call_arguments};
use crate::output::{
    Paint, escape_control_chars, one_line,
    render::{arguments, outcome},
    truncate,
    wrap::Wrap,
};

/// Longest input or output of a tool call that is shown, in characters.
const MAX_CALL_CHARS: usize = 140;
/// Longest entry from before the conversation, in characters: three lines of a terminal.
const MAX_EARLIER_CHARS: usize = 240;
/// What a message of the user begins with.
const USER: &str = "you:";

/// Renders the events of one thread in order.
pub(super) struct Renderer {
    paint: Paint,
    /// Pieces of answers are shown as they arrive.
    is_live: bool,
    /// Columns of the terminal. `None`: unlimited.
    width: Option<usize>,
    /// The pieces of the current answer.
    shown: String,
    /// Their lines.
    wrap: Wrap,
    /// The last of them did not end its line.
    is_mid_line: bool,
}

impl Renderer {
    pub(super) const fn new(paint: Paint, is_live: bool, width: Option<usize>) -> Self {
        Self { paint, is_live, width, shown: String::new(), wrap: Wrap::new(width), is_mid_line: false }
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
            DeltaPiece::Start => {
                self.shown.clear();
                let end = self.line_end();
                self.wrap = Wrap::new(self.width);
                Some(end).filter(|end| !end.is_empty())
            }
            DeltaPiece::Text(text) => {
                self.shown.push_str(text);
                self.is_mid_line = !self.shown.is_empty() && !self.shown.ends_with('\n');
                Some(self.wrap.push(&escape_control_chars(text)))
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
                    return self.line_end();
                }
                self.wrapped(content, 0)
            }
            ChatContent::User { content } => {
                format!("{} {}", paint.cyan(USER), self.wrapped(content, USER.len() + 1))
            }
            ChatContent::System { content, .. } => paint.dim(&self.wrapped(content, 0)),
            ChatContent::ToolUse { tool, input, .. } => {
                let input = truncate(&one_line(&arguments(tool, input)), MAX_CALL_CHARS);
                format!("{} {} {input}", paint.cyan("→"), paint.bold(&one_line(tool)))
            }
            ChatContent::ToolResult { tool, success, output, duration_ms, .. } => {
                if let Some(cause) = NotApproved::parse(output).filter(|_| !success) {
                    let (arrow, tool) = (paint.red("←"), one_line(tool));
                    return self.on_new_line(&format!("{arrow} {tool} {}", one_line(&not_approved(cause))));
                }
                let arrow = if *success { paint.green("←") } else { paint.red("←") };
                let (outcome, output) = outcome(tool, *success, output);
                let output = truncate(&one_line(output.trim()), MAX_CALL_CHARS);
                let head = format!("{arrow} {} {}, {duration_ms} ms", one_line(tool), one_line(&outcome));
                format!("{head} {}", paint.dim(&output))
            }
            ChatContent::Job { job_id, title, state, content, .. } => {
                let head = format!("job {job_id} {state}: {}", one_line(title));
                format!("{}\n{}", paint.bold(&head), self.wrapped(content, 0))
            }
            ChatContent::Error { reason, content } => {
                format!("{} {} ({reason})", paint.red("error:"), one_line(content))
            }
        };
        self.on_new_line(&text)
    }

    /// The text on separate lines.
    fn on_new_line(&mut self, text: &str) -> String {
        self.shown.clear();
        format!("{}{text}\n", self.line_end())
    }

    /// A text behind something of `column` columns.
    fn wrapped(&self, text: &str, column: usize) -> String {
        Wrap::text(&escape_control_chars(text.trim_end()), column, self.width)
    }

    /// What ends the current line, if it has begun.
    fn line_end(&mut self) -> String {
        let rest = self.wrap.rest();
        if self.line_has_ended() { format!("{rest}\n") } else { rest }
    }

    /// Something else has ended the current line, or does so now. Returns whether it had begun.
    pub(super) const fn line_has_ended(&mut self) -> bool {
        self.wrap.line_has_ended();
        std::mem::replace(&mut self.is_mid_line, false)
    }

    /// The entries of a thread before a conversation, in one line each.
    pub(super) fn earlier(&self, history: &ChatHistory) -> String {
        let mut plain = Self::new(Paint::Plain, false, None);
        let lines = history.messages.iter().map(|message| {
            let text = truncate(&one_line(plain.entry(message).trim()), MAX_EARLIER_CHARS);
            format!("{}\n", self.paint.dim(&text))
        });
        lines.collect()
    }

    /// What a person has to decide.
    pub(super) fn gate(&self, gate: &Gate) -> String {
        format!(
            "{} {} with\n{}\n",
            self.paint.yellow("The agent wants to call"),
            self.paint.bold(&one_line(&gate.tool)),
            call_arguments(gate)
        )
    }
}

/// Why a call did not run, human-readable.
fn not_approved(cause: NotApproved<'_>) -> String {
    match cause {
        NotApproved::Denied { reason: None } => "denied".to_owned(),
        NotApproved::Denied { reason: Some(reason) } => format!("denied: {reason}"),
        NotApproved::Expired => "expired: it was not approved in time".to_owned(),
        NotApproved::Stopped => "stopped with its turn".to_owned(),
    }
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use protocol::{CallId, ChatDelta, MessageId, ThreadId};
    use rstest::rstest;
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
        let mut renderer = Renderer::new(Paint::Plain, is_live, None);
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
    fn long_lines_are_broken_at_spaces() {
        let mut renderer = Renderer::new(Paint::Plain, true, Some(12));
        let events = [
            text("It works on"),
            text("ly on Mon"),
            text("days"),
            said("It works only on Mondays"),
            said("not on Fridays"),
        ];
        let shown: String = events.iter().filter_map(|event| renderer.event(event)).collect();
        assert_eq!(shown, "It works\nonly on\nMondays\nnot on\nFridays\n");
    }

    #[test]
    fn a_call_is_one_line_and_its_result_another() {
        let (call_id, tool) = (CallId::from("c"), "echo".to_owned());
        let used = entry(ChatContent::ToolUse {
            call_id: call_id.clone(),
            tool: tool.clone(),
            input: json!({"a": "b\nc"}),
            reasoning: None,
        });
        let result = entry(ChatContent::ToolResult {
            call_id,
            tool,
            success: false,
            output: "no\nway".to_owned(),
            truncated: false,
            duration_ms: 3,
        });
        assert_eq!(shown(true, &[text("I look."), used, result]), "I look.\n→ echo b c\n← echo failed, 3 ms no way\n");
    }

    #[rstest]
    #[case("error (not_authorized): the user denied this call; do not repeat it", "← echo denied\n")]
    #[case("error (not_authorized): the user denied this call: not\non Fridays", "← echo denied: not on Fridays\n")]
    #[case(
        "error (not_authorized): this call was not approved in time; continue without it",
        "← echo expired: it was not approved in time\n"
    )]
    #[case("error (not_authorized): the user stopped the turn; the call was not run", "← echo stopped with its turn\n")]
    fn a_call_that_was_not_approved_is_no_failure(#[case] output: &str, #[case] expected: &str) {
        let result = |success| {
            entry(ChatContent::ToolResult {
                call_id: CallId::from("c"),
                tool: "echo".to_owned(),
                success,
                output: output.to_owned(),
                truncated: false,
                duration_ms: 0,
            })
        };
        assert_eq!(shown(true, &[result(false)]), expected);
        assert!(shown(true, &[result(true)]).starts_with("← echo ok, 0 ms error"));
    }

    #[test]
    fn the_text_after_an_interrupt_begins_on_the_line_that_it_ended() {
        let mut renderer = Renderer::new(Paint::Plain, true, None);
        assert_eq!(renderer.event(&text("It wor")).unwrap(), "It wor");
        assert!(renderer.line_has_ended());
        let stopped = entry(ChatContent::notice("Stopped.".to_owned()));
        assert_eq!(renderer.event(&stopped).unwrap(), "Stopped.\n");
    }
}
