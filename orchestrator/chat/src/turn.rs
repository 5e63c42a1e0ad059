//! One turn of a thread: what it begins with, and how its end is stored.
//!
//! Never asks a model or runs a tool itself: `turn_loop` runs the shared loop.

use std::{panic::AssertUnwindSafe, time::Duration};

use agent::{FailureReason, LimitKind, LoopOutcome, Run, Transcript};
use futures_util::FutureExt as _;
use protocol::{JobReason, ThreadId, ThreadState};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    conversation::{Briefing, messages},
    engine::ChatEngine,
    live::LiveEvent,
    turn_loop::{LoopStart, MAX_MODEL_CALLS, TIMEOUT, Worked},
};
use domain::memory::MemoryPath;
use llm::metering::retry_write;
use store::{ParkedTurn, StoreError, Turn, TurnEnd, TurnError, TurnKey, TurnRequest};

/// Delay after a turn that could not begin, so that a failing database is not asked in a loop.
const BEGIN_RETRY: Duration = Duration::from_secs(1);

/// What the user can do where a model refuses a conversation.
const REFUSED_AGAIN: &str = ". If this happens again: /new begins a new conversation, /compact summarises this one";

/// How the work on a turn ended.
enum Ending {
    Finished(TurnEnd),
    Parked(Box<ParkedTurn>),
}

impl Ending {
    /// For the log.
    fn name(&self) -> &'static str {
        match self {
            Self::Parked(_) => ThreadState::AwaitingApproval.as_str(),
            Self::Finished(TurnEnd { error: Some(error), .. }) => error.reason.as_str(),
            Self::Finished(_) => "done",
        }
    }
}

/// Why a turn could not be worked on.
#[derive(Debug, thiserror::Error)]
pub(super) enum WorkError {
    #[error(transparent)]
    Store(#[from] StoreError),
    #[error(transparent)]
    Tools(#[from] agent::RecordError),
    #[error("the state of the turn cannot be read or written")]
    State(#[from] serde_json::Error),
}

impl ChatEngine {
    /// Begins the next turn of a thread, or goes on with it, and works on it to its end.
    pub(super) async fn process(&self, thread: ThreadId, stop: &CancellationToken) {
        let turn = match self.parts.store.begin_chat_turn(thread, self.parts.clock.now()).await {
            Ok(Some(turn)) => turn,
            Ok(None) => return,
            Err(error) => {
                tracing::error!(thread.id = %thread, error = &error as &dyn std::error::Error, "a turn could not begin");
                drop(error);
                return tokio::time::sleep(BEGIN_RETRY).await;
            }
        };
        let (key, begun) = (turn.key, self.parts.clock.monotonic());
        let span = tracing::info_span!("chat.turn", thread.id = %thread, turn = key.turn);
        let worked = caught("turn", thread, self.work(turn, stop).instrument(span)).await;
        let ending = worked.unwrap_or_else(|| failed(internal()));
        let outcome = ending.name();
        let stored = self.end(key, ending, stop).await;
        self.log_end("turn", key, begun, outcome, stored);
    }

    /// Logs the end of a turn or heartbeat that began at this time.
    pub(super) fn log_end(
        &self,
        what: &str,
        key: TurnKey,
        begun: Duration,
        outcome: &str,
        stored: Result<(), StoreError>,
    ) {
        let thread = key.thread;
        match stored {
            Ok(()) => {
                let duration_ms = self.parts.clock.monotonic().saturating_sub(begun).as_millis();
                tracing::info!(thread.id = %thread, turn = key.turn, outcome, %duration_ms, "{what} ended");
            }
            Err(error) => {
                let error = &error as &dyn std::error::Error;
                tracing::error!(thread.id = %thread, error, "the end of a {what} could not be stored");
            }
        }
    }

    async fn end(&self, key: TurnKey, ending: Ending, stop: &CancellationToken) -> Result<(), StoreError> {
        let (store, drain) = (&self.parts.store, &self.parts.meter.drain);
        let now = || self.parts.clock.now();
        // False: the thread was deleted meanwhile.
        let _ = match &ending {
            Ending::Finished(end) => {
                retry_write(drain, &key, || store.finish_chat_turn(key, end.clone(), now())).await?
            }
            Ending::Parked(parked) => {
                retry_write(drain, &key, || store.park_chat_turn(key, (**parked).clone(), now())).await?
            }
        };
        // Its user stopped it before it waited.
        if matches!(ending, Ending::Parked(_)) && stop.is_cancelled() {
            self.stop_parked(key.thread).await?;
        }
        Ok(())
    }

    async fn work(&self, turn: Turn, stop: &CancellationToken) -> Result<Ending, WorkError> {
        if turn.is_storage_full && !matches!(turn.request, TurnRequest::Resume { .. }) {
            return Ok(failed(storage_is_full()));
        }
        // What is streamed of this turn comes after all that was stored before it.
        let (thread_id, cursor) = (turn.key.thread, self.parts.store.last_cursor().await?);
        self.parts.live.send(&turn.user, || LiveEvent::Stored { thread_id, cursor });
        let settings = self.parts.store.settings(&turn.user).await?;
        let identity = self.parts.store.memory_document(&turn.user, &MemoryPath::identity(), None).await?;
        let identity = identity.map(|document| document.content);
        let saved = turn.transcript.as_deref().map(serde_json::from_str::<Transcript>).transpose()?;
        let saved = saved.unwrap_or_else(|| Transcript::from(Vec::new()));
        let saved_messages = saved.messages().len();
        let (transcript, run) = match &turn.request {
            TurnRequest::Resume { run, answer } => {
                let mut run: Run = serde_json::from_str(run)?;
                // A run without a request goes on by itself.
                let _ = run.answer_approval(answer.clone());
                (saved, run)
            }
            TurnRequest::Message | TurnRequest::Command(_) => {
                let answers = self.parts.store.chat_turn_answers(turn.key.thread).await?;
                let briefing = Briefing::new(identity.as_deref(), &settings, self.parts.clock.now());
                let messages = messages(&briefing, saved.messages().to_vec(), &turn.due, &answers);
                let transcript = saved.continued(messages);
                let run = Run::resume(&transcript);
                (transcript, run)
            }
        };
        let worked = Box::pin(self.run_loop(&turn, &settings, LoopStart { transcript, run }, stop)).await?;
        ending(worked, saved_messages)
    }
}

/// The result of the work on a turn or heartbeat. A panic ends it, not the thread.
pub(super) async fn caught<T>(
    what: &str,
    thread: ThreadId,
    work: impl Future<Output = Result<T, WorkError>>,
) -> Option<T> {
    match AssertUnwindSafe(Box::pin(work)).catch_unwind().await {
        Ok(Ok(ending)) => return Some(ending),
        Ok(Err(error)) => {
            tracing::error!(thread.id = %thread, error = &error as &dyn std::error::Error, "a {what} failed");
        }
        Err(_) => tracing::error!(thread.id = %thread, "a {what} panicked"),
    }
    None
}

/// What a turn's end stores. Its messages come after those that were saved before.
fn ending(mut worked: Worked, saved_messages: usize) -> Result<Ending, WorkError> {
    // What was refused for good would be refused again with each later message.
    match &mut worked.outcome {
        LoopOutcome::Failed { reason: FailureReason::Refused, message } => {
            worked.transcript.forget_unanswered(saved_messages);
            message.push_str(REFUSED_AGAIN);
        }
        // What came before the prompt stays: the ends of jobs and system lines are read once.
        LoopOutcome::Failed { reason: FailureReason::InvalidRequest, message } => {
            worked.transcript.forget_prompt();
            message.push_str(REFUSED_AGAIN);
        }
        _ => {}
    }
    let transcript = serde_json::to_string(&worked.transcript)?;
    let end = |error: Option<TurnError>| TurnEnd { transcript: Some(transcript.clone()), error, notice: None };
    Ok(Ending::Finished(match worked.outcome {
        LoopOutcome::Completed { .. } => TurnEnd { notice: worked.notice, ..end(None) },
        LoopOutcome::Stopped if worked.timed_out => {
            let message = format!("the turn was stopped after {} s, its limit", TIMEOUT.as_secs());
            end(Some(error(JobReason::WallClock, message)))
        }
        LoopOutcome::Stopped => TurnEnd { notice: Some("Stopped.".to_owned()), ..end(None) },
        LoopOutcome::Limit { which, message, .. } => end(Some(limit_reached(which, message))),
        LoopOutcome::Failed { reason, message } => end(Some(failure(reason, message))),
        LoopOutcome::NeedsApproval { request } => {
            let run = serde_json::to_string(&worked.run)?;
            return Ok(Ending::Parked(Box::new(ParkedTurn { transcript, run, request, worked: worked.time })));
        }
    }))
}

pub(super) const fn error(reason: JobReason, message: String) -> TurnError {
    TurnError { reason, message, drops_lines: false }
}

/// Lines that a provider refuses to read are not read again.
pub(super) fn failure(reason: FailureReason, message: String) -> TurnError {
    let drops_lines = matches!(reason, FailureReason::Refused);
    TurnError { drops_lines, ..error(reason.job_reason(), message) }
}

pub(super) fn internal() -> TurnError {
    error(JobReason::Internal, "internal server error; the log has the details".to_owned())
}

fn failed(error: TurnError) -> Ending {
    Ending::Finished(TurnEnd { error: Some(error), ..TurnEnd::default() })
}

pub(super) fn storage_is_full() -> TurnError {
    let message = "your data has the maximum size; delete some, then send the message again".to_owned();
    error(JobReason::DiskLimit, message)
}

pub(super) fn limit_reached(which: LimitKind, message: String) -> TurnError {
    let message = match which {
        LimitKind::Iterations => {
            format!("the turn reached its limit of {MAX_MODEL_CALLS} model calls; send a message to go on")
        }
        LimitKind::ToolCalls => "the turn reached its limit of tool calls; send a message to go on".to_owned(),
        LimitKind::Tokens | LimitKind::Cost => message,
    };
    error(which.job_reason(), message)
}
