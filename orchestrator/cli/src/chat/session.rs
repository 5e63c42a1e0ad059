//! One conversation: what the person types goes to the thread, and what happens there is printed.
//!
//! Owns when the next line is read: when the turn of the one before is over and all of it is printed, or to answer a
//! tool call that waits.

use protocol::{
    ChatContent, ChatHistory, ChatThread, Gate, GateDecision, GateResolution, MessageId, MessageReceipt, Page,
    ResolveGate, SendMessage, ThreadId, ThreadState, UserSettings,
};

use super::{
    event::ChatEvent,
    lines::{self, Line, decision_of},
    screen::Screen,
};
use protocol::MAIN_THREAD;

use crate::{
    client::{Client, Followed, stream::is_transient},
    exit::{CliError, Exit},
    output::{Output, one_line},
};

/// The maximum of the API.
const GATES_PER_PAGE: &str = "200";
/// Entries from before the conversation that a person sees: with a call or two, the last question and its answer.
const EARLIER_ENTRIES: u32 = 6;

pub(super) struct Session<'a> {
    client: &'a Client,
    screen: Screen<'a>,
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
    failures: Failures,
    /// The answer to a command comes before the question about the call that waits.
    is_command_running: bool,
    /// The person has pressed Ctrl-C since the last line, and since the end of the last turn.
    has_interrupted: bool,
    is_loss_reported: bool,
}

/// What makes the exit code 1.
#[derive(Debug, Default)]
struct Failures {
    /// The last turn ended with an error.
    turn: bool,
    /// A line was not sent, or the server refused it.
    line: bool,
}

/// What the next line waits for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Progress {
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
        let mut session = Self {
            client,
            screen: Screen::new(output),
            thread: None,
            sent: None,
            progress: Progress::Ready,
            printed: 0,
            gate: None,
            failures: Failures::default(),
            is_command_running: false,
            has_interrupted: false,
            is_loss_reported: false,
            name,
        };
        match session.history(EARLIER_ENTRIES).await {
            Ok(history) => {
                session.show_opening(Some(&history)).await?;
                session.thread = Some(history.thread.id);
                session.printed = last_position(&history);
                match history.thread.state {
                    ThreadState::Idle => {}
                    ThreadState::Processing => {
                        session.screen.note("the agent works on an earlier message")?;
                        session.progress = Progress::Changed;
                    }
                    ThreadState::AwaitingApproval => session.show_waiting_gate(history.thread.id).await?,
                }
            }
            Err(error) if error.exit() == Exit::NotFound && session.name == MAIN_THREAD => {
                session.show_opening(None).await?;
            }
            Err(error) => return Err(error),
        }
        Ok(session)
    }

    /// Shows a person where they are.
    async fn show_opening(&mut self, history: Option<&ChatHistory>) -> Result<(), CliError> {
        if !self.screen.is_interactive() {
            return Ok(());
        }
        let settings: UserSettings = self.client.get("/api/settings", &[]).await?;
        let model = settings.model.as_deref().unwrap_or("the default model");
        let head = format!("thread {} · {} · /help for commands", one_line(&self.name), one_line(model));
        self.screen.opening(history, &head)
    }

    /// The thread with its last entries.
    async fn history(&self, entries: u32) -> Result<ChatHistory, CliError> {
        let thread = self.thread.map_or_else(|| self.name.clone(), |thread| thread.to_string());
        self.client.get(&format!("/api/chat/threads/{thread}"), &[("limit", entries.to_string())]).await
    }

    /// Whether a line can be sent, or answers a call that waits.
    pub(super) const fn wants_line(&self) -> bool {
        (matches!(self.progress, Progress::Ready) || self.gate.is_some()) && !self.is_command_running
    }

    /// Shows that a line is wanted, to a person.
    pub(super) fn ask_for_line(&mut self) -> Result<(), CliError> {
        if !self.wants_line() {
            return Ok(());
        }
        self.screen.ask(match &self.gate {
            Some(gate) if gate.can_be_remembered => "Allow it? y/n/always (Ctrl-C stops the turn) ",
            Some(_) => "Allow it? y/n (Ctrl-C stops the turn) ",
            None => "> ",
        })
    }

    /// Sends a line, or answers the call that waits with it.
    pub(super) async fn take_line(&mut self, line: Line) -> Result<(), CliError> {
        self.screen.entered();
        self.has_interrupted = false;
        match line {
            Line::Text(line) => match self.gate.take() {
                Some(gate) => self.answer(gate, &line).await,
                None => self.send(&line).await,
            },
            Line::NotUtf8(number) => {
                let error = format!("line {number} of the input is not UTF-8 and was not sent");
                self.report(&CliError::Usage(error))
            }
            Line::Failed(number, error) => {
                Err(CliError::failed(&format!("cannot read line {number} of the input"), error))
            }
        }
    }

    async fn send(&mut self, line: &str) -> Result<(), CliError> {
        if line.trim().is_empty() {
            return Ok(());
        }
        let Some(receipt) = self.post(line).await? else { return Ok(()) };
        if let Some(earlier) = self.thread.filter(|thread| *thread != receipt.thread_id) {
            self.screen.note(&format!("A new conversation begins. The earlier one: gantry chat --thread {earlier}"))?;
            self.printed = 0;
        }
        self.thread = Some(receipt.thread_id);
        self.failures.turn = false;
        self.progress = Progress::Changed;
        Ok(())
    }

    /// Sends a message. `None`: it was refused, which is reported.
    async fn post(&mut self, line: &str) -> Result<Option<MessageReceipt>, CliError> {
        let thread = self.thread.map_or_else(|| self.name.clone(), |thread| thread.to_string());
        let body = SendMessage { thread_id: Some(thread), content: line.to_owned() };
        let sent: Result<MessageReceipt, _> = self.client.post("/api/chat/send", &body, None).await;
        match sent {
            Ok(receipt) => {
                self.sent = Some(receipt.message_id);
                Ok(Some(receipt))
            }
            Err(error) => self.report_or_end(error).map(|()| None),
        }
    }

    /// Reports an error that is about one line only. To a person also one that may be over when they try again.
    fn report_or_end(&mut self, error: CliError) -> Result<(), CliError> {
        if lines::is_about_one_line(&error) || lines::are_typed() && is_transient(&error) {
            return self.report(&error);
        }
        Err(error)
    }

    fn report(&mut self, error: &CliError) -> Result<(), CliError> {
        // A person has seen it and can repeat the line.
        self.failures.line |= !self.screen.is_interactive();
        self.screen.error(error)
    }

    async fn answer(&mut self, gate: Box<Gate>, line: &str) -> Result<(), CliError> {
        let Some(decision) = decision_of(line) else { return self.send_at_gate(gate, line).await };
        // Exactly what was shown.
        let parameters_digest = Some(gate.parameters_digest.clone());
        let body = ResolveGate { decision, reason: None, scope: None, parameters_digest };
        let resolved: Result<GateResolution, _> =
            self.client.post(&format!("/api/gates/{}/resolve", gate.id), &body, None).await;
        match resolved {
            Ok(resolution) if decision == GateDecision::Always && !resolution.remembered => {
                self.screen.note("later calls will ask again")?;
            }
            Ok(_) => {}
            // It was resolved elsewhere, or has expired: the turn goes on.
            Err(error) if error.exit() == Exit::Conflict => self.screen.error(&error)?,
            Err(error) => {
                self.gate = Some(gate);
                return self.report_or_end(error);
            }
        }
        self.progress = Progress::Changed;
        Ok(())
    }

    /// Gives a command while a call waits. Other messages would wait for the answer.
    async fn send_at_gate(&mut self, gate: Box<Gate>, line: &str) -> Result<(), CliError> {
        let command = line.trim_end();
        if !command.starts_with('/') || ["/new", "/compact"].contains(&command) {
            let answers = if gate.can_be_remembered { "y, n or always" } else { "y or n" };
            self.gate = Some(gate);
            return self.screen.note(&format!(
                "answer {answers}; or give a command such as /help, /status or /stop, but not /new or /compact"
            ));
        }
        if self.post(line).await?.is_none() {
            self.gate = Some(gate);
        } else if command == "/stop" {
            self.progress = Progress::Changed;
        } else {
            self.gate = Some(gate);
            self.is_command_running = true;
        }
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
                    self.screen.note(&format!("connection lost ({cause}); retrying"))?;
                }
                Ok(())
            }
            Followed::End => Err(CliError::Failed("the server ended the stream of events".to_owned())),
        }
    }

    fn take(&mut self, raw: &str, event: ChatEvent) -> Result<(), CliError> {
        // The person has just typed it.
        let is_own = matches!(&event, ChatEvent::Entry(_, message) if Some(message.id) == self.sent);
        self.screen.event(raw, &event, is_own)?;
        match event {
            ChatEvent::Entry(_, message) => {
                self.is_command_running &= !matches!(message.content, ChatContent::System { .. });
                self.printed = self.printed.max(message.seq.unwrap_or(0));
                self.failures.turn |= matches!(message.content, ChatContent::Error { .. });
            }
            ChatEvent::State(_, ThreadState::Processing) => self.progress = Progress::Working,
            ChatEvent::State(..) => self.progress = self.progress.changed(),
            ChatEvent::GateRequired(gate) => self.show_gate(gate)?,
            ChatEvent::GateResolved(gate) => {
                if self.gate.take_if(|waiting| waiting.id == gate.id).is_some() {
                    self.screen.note(&format!("the call was {} elsewhere", gate.state))?;
                    self.is_command_running = false;
                    self.progress = Progress::Changed;
                }
            }
            ChatEvent::Delta(_) | ChatEvent::Status(_) => {}
        }
        Ok(())
    }

    fn show_gate(&mut self, gate: Box<Gate>) -> Result<(), CliError> {
        self.screen.gate(&gate)?;
        self.gate = Some(gate);
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
            let history = self.history(1).await?;
            let is_queued = history.messages.iter().any(|one| one.seq.is_none() && Some(one.id) == self.sent);
            self.progress = match history.thread.state {
                ThreadState::Idle if !is_queued => Progress::Ending(last_position(&history)),
                _ => Progress::Working,
            };
        }
        if matches!(self.progress, Progress::Ending(last) if last <= self.printed) {
            self.progress = Progress::Ready;
            self.has_interrupted = false;
        }
        Ok(())
    }

    /// Ctrl-C: stops the turn, or tells an idle person how to leave. False: the program ends, because the person asks
    /// for the second time, or no one types.
    pub(super) async fn interrupt(&mut self) -> Result<bool, CliError> {
        if std::mem::replace(&mut self.has_interrupted, true) {
            return Ok(false);
        }
        let Some(thread) = self.thread.filter(|_| self.progress != Progress::Ready) else {
            if !self.screen.is_interactive() {
                return Ok(false);
            }
            self.screen.interrupted()?;
            return self.screen.note("Press Ctrl-C again, or Ctrl-D, to leave.").map(|()| true);
        };
        self.screen.interrupted()?;
        self.gate = None;
        self.is_command_running = false;
        let path = format!("/api/chat/threads/{thread}/stop");
        let stopped: Result<ChatThread, _> = self.client.post(&path, &serde_json::json!({}), None).await;
        match stopped {
            Ok(_) => {}
            // It has just ended.
            Err(error) if error.exit() == Exit::Conflict => {}
            Err(error) => self.report_or_end(error)?,
        }
        self.progress = Progress::Changed;
        Ok(true)
    }

    /// The exit code after Ctrl-C.
    pub(super) fn leave(&mut self) -> Result<Exit, CliError> {
        self.screen.interrupted()?;
        Ok(Exit::Interrupted)
    }

    /// The exit code when there are no more lines.
    pub(super) fn end(&mut self) -> Result<Exit, CliError> {
        self.screen.leave_question()?;
        if let Some(gate) = &self.gate {
            return Err(CliError::ApprovalRequired { tool: one_line(&gate.tool), gate: gate.id });
        }
        Ok(if self.failures.turn || self.failures.line { Exit::Failed } else { Exit::Success })
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
