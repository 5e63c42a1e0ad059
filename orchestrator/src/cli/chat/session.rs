//! One conversation: what the person types goes to the thread, and what happens there is printed.
//!
//! Owns when the next line is read: when the turn of the one before is over and all of it is printed, or to answer a tool call
//! that waits.

use protocol::{
    ChatContent, ChatHistory, ChatThread, Gate, GateDecision, GateResolution, MessageId, MessageReceipt, Page,
    ResolveGate, SendMessage, ThreadId, ThreadState,
};

use super::{event::ChatEvent, lines, render::Renderer};
use crate::{
    cli::{
        client::Client,
        exit::{CliError, Exit},
        output::{Format, Output},
        stream::Followed,
    },
    domain::chat::MAIN_THREAD,
};

/// The maximum of the API.
const GATES_PER_PAGE: &str = "200";

/// A conversation.
pub(super) struct Session<'a> {
    client: &'a Client,
    output: &'a mut Output,
    renderer: Renderer,
    /// The thread as the person named it.
    name: String,
    /// The thread; `None` until its first message creates it.
    thread: Option<ThreadId>,
    /// The last message that was sent.
    sent: Option<MessageId>,
    progress: Progress,
    /// Position of the last entry that was printed.
    printed: i64,
    /// The call that waits for an answer.
    gate: Option<Box<Gate>>,
    /// The last turn ended with an error.
    has_failed: bool,
    /// How often the person has asked to stop the turn.
    stops_requested: u32,
    is_line_asked_for: bool,
    is_loss_reported: bool,
}

/// What the next line waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
    /// Nothing.
    Ready,
    /// The thread may have become idle.
    Changed,
    /// A turn is in progress.
    Working,
    /// The turn is over, and its entries up to this position are to be printed.
    Ending(i64),
}

impl<'a> Session<'a> {
    /// Opens a thread, which exists, or is `main`.
    pub(super) async fn open(client: &'a Client, name: String, output: &'a mut Output) -> Result<Self, CliError> {
        let renderer = Renderer::new(output.paint, output.is_live);
        let mut session = Self {
            client,
            output,
            renderer,
            thread: None,
            sent: None,
            progress: Progress::Ready,
            printed: 0,
            gate: None,
            has_failed: false,
            stops_requested: 0,
            is_line_asked_for: false,
            is_loss_reported: false,
            name,
        };
        match session.history().await {
            Ok(history) => {
                session.thread = Some(history.thread.id);
                session.printed = last_position(&history);
                match history.thread.state {
                    ThreadState::Idle => {}
                    ThreadState::Processing => {
                        session.output.note("the agent works on an earlier message");
                        session.progress = Progress::Changed;
                    }
                    ThreadState::AwaitingApproval => session.show_waiting_gate(history.thread.id).await?,
                }
            }
            Err(error) if error.exit() == Exit::NotFound && session.name == MAIN_THREAD => {}
            Err(error) => return Err(error),
        }
        Ok(session)
    }

    async fn history(&self) -> Result<ChatHistory, CliError> {
        let thread = self.thread.map_or_else(|| self.name.clone(), |thread| thread.to_string());
        self.client.get(&format!("/api/chat/threads/{thread}"), &[("limit", "1".to_owned())]).await
    }

    /// Whether a line can be sent, or answers a call that waits.
    pub(super) const fn wants_line(&self) -> bool {
        matches!(self.progress, Progress::Ready) || self.gate.is_some()
    }

    /// Shows that a line is wanted, once, to a person.
    pub(super) fn ask_for_line(&mut self) -> Result<(), CliError> {
        if !self.wants_line() || self.is_line_asked_for {
            return Ok(());
        }
        self.is_line_asked_for = true;
        if self.output.format == Format::Json || !lines::are_typed() {
            return Ok(());
        }
        let question = match &self.gate {
            Some(gate) if gate.can_be_remembered => "Allow it? y/n/always ",
            Some(_) => "Allow it? y/n ",
            None => "> ",
        };
        self.output.raw(question.as_bytes())
    }

    /// Sends a line, or answers the call that waits with it.
    pub(super) async fn send(&mut self, line: &str) -> Result<(), CliError> {
        self.is_line_asked_for = false;
        if let Some(gate) = self.gate.take() {
            return self.answer(gate, line).await;
        }
        if line.trim().is_empty() {
            return Ok(());
        }
        let thread = self.thread.map_or_else(|| self.name.clone(), |thread| thread.to_string());
        let body = SendMessage { thread_id: Some(thread), content: line.to_owned() };
        let receipt: MessageReceipt = self.client.post("/api/chat/send", &body, None).await?;
        if self.thread.is_some_and(|thread| thread != receipt.thread_id) {
            self.output.note("A new conversation begins.");
            self.printed = 0;
        }
        self.thread = Some(receipt.thread_id);
        self.sent = Some(receipt.message_id);
        self.has_failed = false;
        self.stops_requested = 0;
        self.progress = Progress::Changed;
        Ok(())
    }

    async fn answer(&mut self, gate: Box<Gate>, line: &str) -> Result<(), CliError> {
        let decision = match line.trim().to_lowercase().as_str() {
            "y" | "yes" => GateDecision::Approve,
            "n" | "no" => GateDecision::Deny,
            "a" | "always" => GateDecision::Always,
            _ => {
                self.output.note("answer y, n or always");
                self.gate = Some(gate);
                return Ok(());
            }
        };
        // Exactly what was shown.
        let parameters_digest = Some(gate.parameters_digest.clone());
        let body = ResolveGate { decision, reason: None, scope: None, parameters_digest };
        let resolved: Result<GateResolution, _> =
            self.client.post(&format!("/api/gates/{}/resolve", gate.id), &body, None).await;
        match resolved {
            Ok(resolution) if decision == GateDecision::Always && !resolution.remembered => {
                self.output.note("later calls will ask again");
            }
            Ok(_) => {}
            // It was resolved elsewhere, or has expired: the turn goes on.
            Err(error) if error.exit() == Exit::Conflict => self.output.note(&format!("gantry: {error}")),
            Err(error) => return Err(error),
        }
        self.progress = Progress::Changed;
        Ok(())
    }

    /// Prints an item of the stream.
    pub(super) fn receive(&mut self, item: Followed<ChatEvent>) -> Result<(), CliError> {
        match item {
            Followed::Event { raw, event: Some(event) } if Some(event.thread()) == self.thread => {
                self.is_loss_reported = false;
                self.take(&raw, *event)
            }
            Followed::Event { .. } => Ok(()),
            Followed::Resync { .. } => {
                self.progress = self.progress.changed();
                Ok(())
            }
            Followed::Lost { cause } => {
                if !std::mem::replace(&mut self.is_loss_reported, true) {
                    self.output.note(&format!("connection lost ({cause}); retrying"));
                }
                Ok(())
            }
            Followed::End => Err(CliError::Failed("the server ended the stream of events".to_owned())),
        }
    }

    fn take(&mut self, raw: &str, event: ChatEvent) -> Result<(), CliError> {
        match self.output.format {
            Format::Json => self.output.json(&event.named(raw))?,
            Format::Text => self.print(&event)?,
        }
        match event {
            ChatEvent::Entry(_, message) => {
                self.printed = self.printed.max(message.seq.unwrap_or(0));
                self.has_failed |= matches!(message.content, ChatContent::Error { .. });
            }
            ChatEvent::State(_, ThreadState::Processing) => self.progress = Progress::Working,
            ChatEvent::State(..) => self.progress = self.progress.changed(),
            ChatEvent::GateRequired(gate) => self.show_gate(gate)?,
            ChatEvent::GateResolved(gate) => {
                if self.gate.take_if(|waiting| waiting.id == gate.id).is_some() {
                    self.output.note(&format!("\nthe call was {} elsewhere", gate.state));
                    self.is_line_asked_for = false;
                    self.progress = Progress::Changed;
                }
            }
            ChatEvent::Delta(_) | ChatEvent::Status(_) => {}
        }
        Ok(())
    }

    fn print(&mut self, event: &ChatEvent) -> Result<(), CliError> {
        // The person has just typed it.
        let is_own = matches!(event, ChatEvent::Entry(_, message) if Some(message.id) == self.sent);
        match self.renderer.event(event).filter(|_| !is_own) {
            Some(text) => self.output.raw(text.as_bytes()),
            None => Ok(()),
        }
    }

    fn show_gate(&mut self, gate: Box<Gate>) -> Result<(), CliError> {
        if self.output.format == Format::Text {
            let text = self.renderer.gate(&gate);
            self.output.raw(text.as_bytes())?;
        }
        self.gate = Some(gate);
        self.is_line_asked_for = false;
        Ok(())
    }

    /// Shows the call that has been waiting since before this conversation was opened.
    async fn show_waiting_gate(&mut self, thread: ThreadId) -> Result<(), CliError> {
        self.progress = Progress::Working;
        let query = [("state", "pending".to_owned()), ("limit", GATES_PER_PAGE.to_owned())];
        let page: Page<Gate> = self.client.get("/api/gates", &query).await?;
        match page.items.into_iter().find(|gate| gate.thread_id == thread) {
            Some(gate) => self.show_gate(Box::new(gate)),
            None => Ok(()),
        }
    }

    /// Finds out whether the turn is over.
    pub(super) async fn update(&mut self) -> Result<(), CliError> {
        if self.progress == Progress::Changed && self.gate.is_none() {
            let history = self.history().await?;
            let is_queued = history.messages.iter().any(|one| one.seq.is_none() && Some(one.id) == self.sent);
            self.progress = match history.thread.state {
                ThreadState::Idle if !is_queued => Progress::Ending(last_position(&history)),
                _ => Progress::Working,
            };
        }
        if matches!(self.progress, Progress::Ending(last) if last <= self.printed) {
            self.progress = Progress::Ready;
            self.is_line_asked_for = false;
        }
        Ok(())
    }

    /// Stops the turn. False: there is none, or the person asks for the second time.
    pub(super) async fn stop_turn(&mut self) -> Result<bool, CliError> {
        let Some(thread) = self.thread.filter(|_| self.progress != Progress::Ready && self.stops_requested == 0) else {
            return Ok(false);
        };
        self.stops_requested += 1;
        self.gate = None;
        let path = format!("/api/chat/threads/{thread}/stop");
        let stopped: Result<ChatThread, _> = self.client.post(&path, &serde_json::json!({}), None).await;
        match stopped {
            Ok(_) => {}
            // It has just ended.
            Err(error) if error.exit() == Exit::Conflict => {}
            Err(error) => return Err(error),
        }
        self.progress = Progress::Changed;
        Ok(true)
    }

    /// The exit code when there are no more lines.
    pub(super) fn end(&self) -> Result<Exit, CliError> {
        if let Some(gate) = &self.gate {
            return Err(CliError::Failed(format!(
                "a call of {} waits for approval: run `gantry gate approve {}` or `gantry gate deny {}`",
                gate.tool, gate.id, gate.id
            )));
        }
        Ok(if self.has_failed { Exit::Failed } else { Exit::Success })
    }
}

impl Progress {
    const fn changed(self) -> Self {
        match self {
            Self::Ready => Self::Ready,
            Self::Changed | Self::Working | Self::Ending(_) => Self::Changed,
        }
    }
}

/// Position of the last entry.
fn last_position(history: &ChatHistory) -> i64 {
    history.messages.iter().filter_map(|message| message.seq).max().unwrap_or(0)
}
