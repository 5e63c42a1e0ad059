//! One heartbeat: the shared loop over a copy of the main session's conversation, and how its end is stored.
//!
//! The main session is not touched while it runs: its user may talk there, or have a call to approve. Never gates: its calls
//! have no person to approve them.

use agent::{LoopOutcome, Run, Transcript, elide, safety::DelimiterNonce};
use protocol::{ChatContent, ChatMessage, JobReason, MessageId};
use tokio_util::sync::CancellationToken;
use tracing::Instrument as _;

use super::{
    conversation::{Briefing, messages},
    engine::ChatEngine,
    heartbeat_prompt::heartbeat_prompt,
    turn::{WorkError, caught, error, failure, internal, limit_reached, storage_is_full},
    turn_loop::{LoopStart, TIMEOUT, Worked},
};
use domain::{heartbeat::is_silent, memory::MemoryPath};
use llm::metering::retry_write;
use store::{HeartbeatEnd, HeartbeatReply, StartedHeartbeat};

/// Maximum size of the text that the user gets; the whole is in the thread of heartbeats.
const MAX_REPLY_BYTES: usize = 16 * 1024;

impl ChatEngine {
    /// Works on a heartbeat that has begun, to its end.
    pub(super) async fn process_heartbeat(&self, started: StartedHeartbeat, stop: &CancellationToken) {
        let (key, user, begun) = (started.turn.key, started.turn.user.clone(), self.parts.clock.monotonic());
        let span = tracing::info_span!("chat.heartbeat", thread.id = %key.thread, turn = key.turn);
        let end = caught("heartbeat", key.thread, self.heartbeat(started, stop).instrument(span)).await;
        let end = end.unwrap_or_else(|| HeartbeatEnd::Failed(internal()));
        let outcome = name(&end);
        let write = || self.parts.store.finish_heartbeat(&user, key, end.clone(), self.parts.clock.now());
        // False: the thread was deleted meanwhile.
        let stored = retry_write(&self.parts.meter.drain, &key, write).await.map(|_| ());
        self.log_end("heartbeat", key, begun, outcome, stored);
    }

    async fn heartbeat(&self, started: StartedHeartbeat, stop: &CancellationToken) -> Result<HeartbeatEnd, WorkError> {
        let StartedHeartbeat { turn, lines, main } = started;
        if turn.is_storage_full {
            return Ok(HeartbeatEnd::Failed(storage_is_full()));
        }
        let store = &self.parts.store;
        let settings = store.settings(&turn.user).await?;
        let identity = store.memory_document(&turn.user, &MemoryPath::identity(), None).await?;
        let checklist = store.memory_document(&turn.user, &MemoryPath::heartbeat(), None).await?;
        let answers = match main {
            Some(main) => store.chat_turn_answers(main).await?,
            None => Vec::new(),
        };
        let now = self.parts.clock.now();
        let identity = identity.as_ref().map(|document| document.content.as_str());
        // The prompt says the time.
        let briefing = Briefing { time: None, ..Briefing::new(identity, &settings, now) };
        let saved = turn.transcript.as_deref().map(serde_json::from_str::<Transcript>).transpose()?;
        let (nonce, saved) = saved.map(|saved| (saved.nonce().clone(), saved.messages().to_vec())).unzip();
        let nonce = nonce.unwrap_or_else(DelimiterNonce::generate);
        let checklist = checklist.as_ref().map(|document| document.content.as_str());
        let prompt = heartbeat_prompt(checklist, &lines, &settings, now, &nonce);
        let content = ChatContent::User { content: prompt };
        // Stored nowhere: the main session has only what comes of the heartbeat.
        let prompt = ChatMessage { id: MessageId::generate(), seq: None, at: now, content };
        let due: Vec<ChatMessage> = turn.due.iter().cloned().chain([prompt]).collect();
        let messages = messages(&briefing, saved.unwrap_or_default(), &due, &answers);
        let transcript = Transcript::resume(messages).with_nonce(nonce);
        let run = Run::resume(&transcript);
        Ok(end_of(Box::pin(self.run_loop(&turn, &settings, LoopStart { transcript, run }, stop)).await?))
    }
}

/// What the end of the loop means.
fn end_of(worked: Worked) -> HeartbeatEnd {
    HeartbeatEnd::Failed(match worked.outcome {
        LoopOutcome::Completed { text, .. } if is_silent(&text) => {
            return HeartbeatEnd::Replied(HeartbeatReply::Silent);
        }
        LoopOutcome::Completed { text, .. } => {
            let text = elide(&worked.answer.unwrap_or(text), MAX_REPLY_BYTES);
            return HeartbeatEnd::Replied(HeartbeatReply::Text(text));
        }
        LoopOutcome::Stopped if worked.timed_out => {
            error(JobReason::WallClock, format!("the heartbeat was stopped after {} s, its limit", TIMEOUT.as_secs()))
        }
        LoopOutcome::Stopped => return HeartbeatEnd::Stopped,
        LoopOutcome::Limit { which, message, .. } => limit_reached(which, message),
        LoopOutcome::Failed { reason, message } => failure(reason, message),
        // Its calls need no approval, or are refused.
        LoopOutcome::NeedsApproval { .. } => internal(),
    })
}

/// For the log.
fn name(end: &HeartbeatEnd) -> &'static str {
    match end {
        HeartbeatEnd::Replied(HeartbeatReply::Silent) => "silent",
        HeartbeatEnd::Replied(HeartbeatReply::Text(_)) => "replied",
        HeartbeatEnd::Stopped => "stopped",
        HeartbeatEnd::Failed(error) => error.reason.as_str(),
    }
}
