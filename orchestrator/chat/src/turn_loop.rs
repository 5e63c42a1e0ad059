//! The shared loop on one turn, with the user's settings, tools and budget.
//!
//! Owns the limits of a turn, and streams what the model says. Never stores how a turn ends.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use agent::{Agent, Delta, DeltaSink, LoopOutcome, Run, Settings, Signals, ToolExecutor, Transcript};
use protocol::{ChatDelta, ChatStatus, DeltaPiece, UserSettings};
use tokio::{sync::mpsc, time::Instant};
use tokio_util::sync::CancellationToken;

use super::{engine::ChatEngine, journal::TurnJournal, live::LiveEvent, turn::WorkError};
use config::HookPoint;
use llm::metering::{Account, CallLimiter, MeteredModel};
use store::{Turn, TurnRequest};

/// Model calls of one turn.
pub(super) const MAX_MODEL_CALLS: u32 = 50;
/// Tool calls of one turn: ten for each model call.
const MAX_TOOL_CALLS: u32 = 500;
/// Time limit of one turn, without the time that it waits for a person.
pub(super) const TIMEOUT: Duration = Duration::from_mins(15);
/// Pieces of an answer that wait to be streamed.
const DELTA_CAPACITY: usize = 64;

/// The notice after a command to summarise.
const SUMMARISED: &str = "The older messages were summarised for the model.";
const NOTHING_TO_SUMMARISE: &str = "There is nothing to summarise yet.";

/// The state that the loop begins with.
pub(super) struct LoopStart {
    pub(super) transcript: Transcript,
    pub(super) run: Run,
}

/// What the loop ended with, and its state.
pub(super) struct Worked {
    pub(super) outcome: LoopOutcome,
    pub(super) transcript: Transcript,
    pub(super) run: Run,
    /// How long the turn has worked in all, without the time that it waited for a person.
    pub(super) time: Duration,
    /// The time limit ended it.
    pub(super) timed_out: bool,
    /// A notice to the user.
    pub(super) notice: Option<String>,
    /// The last answer, as the hooks let it out.
    pub(super) answer: Option<String>,
}

impl ChatEngine {
    /// Runs the loop with a time limit, and streams what the model says meanwhile.
    pub(super) async fn run_loop(
        &self,
        turn: &Turn,
        settings: &UserSettings,
        LoopStart { mut transcript, mut run }: LoopStart,
        stop: &CancellationToken,
    ) -> Result<Worked, WorkError> {
        let tools = self.executor(turn).await?;
        let model = MeteredModel {
            meter: self.parts.meter.clone(),
            account: self.account(turn, settings),
            stop: || stop.clone().cancelled_owned(),
            waits_for_providers: true,
        };
        let (journal, settings) = (self.journal(turn), self.settings(turn, settings));
        let signals = Signals { stop: stop.clone(), ..Signals::default() };
        let (deltas, pieces) = DeltaSink::channel(DELTA_CAPACITY);
        let mut notice = None;
        let work = async {
            let agent = Agent {
                model: &model,
                tools: &tools,
                journal: &journal,
                signals: &signals,
                settings: &settings,
                deltas: &deltas,
            };
            let outcome = match &turn.request {
                TurnRequest::Command(_) => match agent.compact(&mut transcript, &mut run).await {
                    Ok(is_done) => {
                        notice = Some(if is_done { SUMMARISED } else { NOTHING_TO_SUMMARISE }.to_owned());
                        LoopOutcome::Completed { text: String::new(), cut: false }
                    }
                    Err(outcome) => outcome,
                },
                TurnRequest::Message | TurnRequest::Resume { .. } => agent.run(&mut transcript, &mut run).await,
            };
            // Ends the stream.
            drop(deltas);
            outcome
        };
        let limited = within_limit(work, turn.worked, stop);
        let (Ended { outcome, time, timed_out }, ()) = tokio::join!(limited, self.stream(turn, pieces));
        let answer = journal.answer.into_inner().unwrap_or_else(PoisonError::into_inner);
        Ok(Worked { outcome, transcript, run, time, timed_out, notice, answer })
    }

    async fn executor(&self, turn: &Turn) -> Result<ToolExecutor, WorkError> {
        let remembered = (!turn.is_autonomous).then(|| turn.remembered.clone());
        Ok(self.parts.tools.executor_for_turn(&turn.user, turn.key, remembered).await?)
    }

    fn account(&self, turn: &Turn, settings: &UserSettings) -> Account {
        let chosen = settings.model.as_ref().filter(|model| self.parts.models.contains(model));
        Account {
            execution: turn.key.into(),
            user: turn.user.clone(),
            model: chosen.unwrap_or(&self.parts.default_model).clone(),
            effort: settings.effort,
            title: turn.title.clone(),
            max_iterations: MAX_MODEL_CALLS,
            has_budget: false,
            has_cost_limit: false,
            limiter: CallLimiter::default(),
        }
    }

    fn settings(&self, turn: &Turn, settings: &UserSettings) -> Settings {
        Settings {
            max_iterations: MAX_MODEL_CALLS,
            max_tool_calls: MAX_TOOL_CALLS,
            temperature: settings.temperature,
            text_tool_calls: self.parts.meter.gateway.recovers_text_tool_calls(),
            outage_patience: self.parts.outage_patience,
            longest_wait: Some(TIMEOUT.saturating_sub(turn.worked)),
            ..Settings::default()
        }
    }

    fn journal(&self, turn: &Turn) -> TurnJournal {
        TurnJournal {
            store: self.parts.store.clone(),
            clock: self.parts.clock.clone(),
            live: self.parts.live.clone(),
            hooks: Arc::clone(&self.parts.hooks),
            drain: self.parts.meter.drain.clone(),
            turn: turn.key,
            user: turn.user.clone(),
            answer: Mutex::default(),
        }
    }

    /// Streams the pieces of answers until the loop has ended. A hook is asked about whole answers, so no piece is shown before.
    /// Nor are pieces of an autonomous turn.
    async fn stream(&self, turn: &Turn, mut pieces: mpsc::Receiver<Delta>) {
        let mut call_id = None;
        let is_held_back = turn.is_autonomous || self.parts.hooks.has(HookPoint::OutboundMessage);
        while let Some(delta) = pieces.recv().await {
            let piece = match delta {
                Delta::Start { call_id: started } => {
                    call_id = Some(started);
                    DeltaPiece::Start
                }
                Delta::Text(text) => DeltaPiece::Text(text),
                Delta::Reasoning(text) => DeltaPiece::Reasoning(text),
                Delta::Waiting(message) => {
                    if !turn.is_autonomous {
                        let status = || LiveEvent::Status(ChatStatus { thread_id: turn.key.thread, message });
                        self.parts.live.send(&turn.user, status);
                    }
                    continue;
                }
            };
            let Some(call_id) = call_id.as_ref().filter(|_| !is_held_back) else { continue };
            self.parts.live.send(&turn.user, || {
                LiveEvent::Delta(ChatDelta { thread_id: turn.key.thread, call_id: call_id.clone(), piece })
            });
        }
    }
}

/// How the work on a turn ended.
#[derive(Debug, PartialEq)]
struct Ended {
    outcome: LoopOutcome,
    /// How long the turn has worked in all.
    time: Duration,
    /// The time limit stopped it.
    timed_out: bool,
}

/// Does the work in the time that is left to a turn which has worked for this long.
async fn within_limit(work: impl Future<Output = LoopOutcome>, worked: Duration, stop: &CancellationToken) -> Ended {
    tokio::pin!(work);
    let began = Instant::now();
    let (outcome, timed_out) = tokio::select! {
        outcome = &mut work => (outcome, false),
        () = tokio::time::sleep(TIMEOUT.saturating_sub(worked)) => {
            stop.cancel();
            (work.await, true)
        }
    };
    Ended { outcome, time: worked.saturating_add(began.elapsed()), timed_out }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Works for this long, or until it is stopped.
    async fn work(time: Duration, stop: &CancellationToken) -> LoopOutcome {
        tokio::select! {
            () = tokio::time::sleep(time) => LoopOutcome::Completed { text: String::new(), cut: false },
            () = stop.cancelled() => LoopOutcome::Stopped,
        }
    }

    #[tokio::test(start_paused = true)]
    async fn the_time_limit_is_one_of_the_whole_turn() {
        let minutes = Duration::from_mins;
        // What a turn has worked before it waited for a person, what it works now, and what comes of it.
        for (before, now, expected) in
            [(0, 14, Some(14)), (0, 16, None), (14, 2, None), (10, 4, Some(14)), (15, 1, None), (20, 1, None)]
        {
            let stop = CancellationToken::new();
            let ended = within_limit(work(minutes(now), &stop), minutes(before), &stop).await;
            let time = ended.time;
            let finished = (!ended.timed_out).then_some(time.as_secs() / 60);
            assert_eq!(finished, expected, "{before} + {now}");
            assert_eq!(ended.timed_out, ended.outcome == LoopOutcome::Stopped);
            assert_eq!(time.as_secs() / 60, expected.unwrap_or(before.max(15)), "{before} + {now}");
        }
    }
}
