//! What a followed job is doing now, from its events, in one line.
//!
//! Pure. Text of the job is escaped.

use chrono::{DateTime, Utc};
use protocol::{CallId, Event, EventData, JobState, MessageRole};

use crate::output::{duration, one_line, render::arguments, truncate};

const MAX_CALL_CHARS: usize = 60;
const SHELL: &str = "shell";

/// What a job is doing.
#[derive(Debug, Clone, PartialEq)]
enum Phase {
    Queued,
    Starting,
    /// A model call, or the agent's own work between calls.
    Model,
    /// Tool calls run; the text describes the latest one.
    Tools,
    /// As the job describes it.
    Status(String),
    /// It has no contact to its worker.
    Stuck,
    /// It has ended, or waits for a review.
    Ended,
}

#[derive(Debug)]
pub(super) struct Activity {
    phase: Phase,
    phase_since: DateTime<Utc>,
    /// When the job was created.
    since: DateTime<Utc>,
    /// Calls that run, oldest first, with their summaries.
    running: Vec<(CallId, String)>,
    tokens: u64,
    /// `None` once a call had no price.
    cost_usd: Option<f64>,
    queue_position: Option<u64>,
}

impl Activity {
    pub(super) const fn new(now: DateTime<Utc>) -> Self {
        Self {
            phase: Phase::Queued,
            phase_since: now,
            since: now,
            running: Vec::new(),
            tokens: 0,
            cost_usd: Some(0.0),
            queue_position: None,
        }
    }

    /// Whether the job waits to be started.
    pub(super) fn is_queued(&self) -> bool {
        self.phase == Phase::Queued
    }

    /// Sets the job's place in the queue; 1 is next.
    pub(super) const fn set_queue_position(&mut self, position: Option<u64>) {
        self.queue_position = position;
    }

    /// Takes an event into account that arrived now.
    pub(super) fn apply(&mut self, event: &Event, now: DateTime<Utc>) {
        if event.seq == 1 {
            // Clocks may differ.
            self.since = event.at.min(now);
        }
        let phase = match &event.data {
            EventData::State { to, .. } => {
                self.running.clear();
                match to {
                    JobState::Pending => Phase::Queued,
                    JobState::InProgress => Phase::Starting,
                    JobState::Stuck => Phase::Stuck,
                    _ => Phase::Ended,
                }
            }
            EventData::ToolUse { call_id, tool, input, .. } => {
                self.running.push((call_id.clone(), summary(tool, input)));
                Phase::Tools
            }
            EventData::ToolResult { call_id, .. } => {
                self.running.retain(|(running, _)| running != call_id);
                if self.running.is_empty() { Phase::Model } else { Phase::Tools }
            }
            EventData::LlmCall { input_tokens, output_tokens, cost_usd, .. } => {
                self.tokens += input_tokens + output_tokens;
                self.cost_usd = self.cost_usd.zip(*cost_usd).map(|(sum, cost)| sum + cost);
                Phase::Model
            }
            EventData::Message { role: MessageRole::Assistant, .. }
            | EventData::Plan { .. }
            | EventData::Reasoning { .. } => Phase::Model,
            EventData::Status { message, .. } => Phase::Status(one_line(message)),
            EventData::Result { .. } => Phase::Ended,
            EventData::Message { .. } | EventData::Log { .. } | EventData::Egress { .. } | EventData::Limit { .. } => {
                return;
            }
        };
        if phase != self.phase || phase == Phase::Tools {
            (self.phase, self.phase_since) = (phase, now);
        }
    }

    /// The line: elapsed time, tokens, cost, and the phase with its own time. What can be long comes last, because it
    /// may be cut.
    pub(super) fn line(&self, now: DateTime<Utc>) -> String {
        let (phase, detail) = match &self.phase {
            Phase::Queued => match self.queue_position {
                Some(position) => (format!("queued as number {position}"), ""),
                None => ("queued".to_owned(), ""),
            },
            Phase::Starting => ("starting".to_owned(), ""),
            Phase::Model => ("waiting for the model".to_owned(), ""),
            Phase::Tools => match self.running.as_slice() {
                [(_, only)] => ("running".to_owned(), only.as_str()),
                [.., (_, last)] => (format!("running {} calls", self.running.len()), last.as_str()),
                [] => ("running".to_owned(), ""),
            },
            Phase::Status(text) => (text.clone(), ""),
            Phase::Stuck => ("stuck: waiting for recovery".to_owned(), ""),
            Phase::Ended => ("finishing".to_owned(), ""),
        };
        let mut parts = vec![duration(now - self.since)];
        if self.tokens > 0 {
            parts.push(format!("{} tokens", self.tokens));
        }
        match self.cost_usd {
            Some(cost) if cost > 0.0 => parts.push(format!("${cost:.4}")),
            Some(_) => {}
            None => parts.push("unknown cost".to_owned()),
        }
        parts.push(format!("{phase} ({}) {detail}", duration(now - self.phase_since)).trim_end().to_owned());
        parts.join(" · ")
    }
}

/// A command by itself; other tools with their name.
fn summary(tool: &str, input: &serde_json::Value) -> String {
    let input = one_line(&arguments(tool, input));
    let text = if tool == SHELL { input } else { format!("{} {input}", one_line(tool)) };
    truncate(text.trim_end(), MAX_CALL_CHARS)
}

#[cfg(test)]
mod tests {
    use protocol::JobId;
    use serde_json::json;

    use super::*;

    fn at(second: i64) -> DateTime<Utc> {
        DateTime::from_timestamp(1_800_000_000 + second, 0).unwrap()
    }

    /// The line three seconds after each event.
    fn lines(events: Vec<EventData>) -> Vec<String> {
        let mut activity = Activity::new(at(0));
        let mut lines = Vec::new();
        for (seq, data) in (1..).zip(events) {
            let now = at((seq - 1) * 10);
            let event = Event { v: 1, seq, cursor: seq, job_id: JobId::nil(), attempt: 1, at: now, cut: false, data };
            activity.apply(&event, now);
            lines.push(activity.line(now + chrono::TimeDelta::seconds(3)));
        }
        lines
    }

    fn state(to: JobState) -> EventData {
        EventData::State { from: None, to, reason: None, message: None }
    }

    fn call(id: &str, tool: &str, input: serde_json::Value) -> EventData {
        EventData::ToolUse { call_id: id.into(), tool: tool.into(), input, reasoning: None }
    }

    fn result(id: &str) -> EventData {
        let (output, tool) = (String::new(), "shell".into());
        EventData::ToolResult { call_id: id.into(), tool, success: true, output, truncated: false, duration_ms: 1 }
    }

    fn model_call(cost_usd: Option<f64>) -> EventData {
        let text = || "x".to_owned();
        EventData::LlmCall {
            model: text(),
            provider: text(),
            input_tokens: 1000,
            output_tokens: 10,
            cost_usd,
            duration_ms: 1,
            finish_reason: text(),
        }
    }

    #[test]
    fn the_line_says_what_the_job_is_doing() {
        let lines = lines(vec![
            state(JobState::Pending),
            state(JobState::InProgress),
            model_call(Some(0.25)),
            call("a", "shell", json!({"command": "cargo test\u{1b}"})),
            call("b", "read_file", json!({"path": "a.txt"})),
            result("a"),
            result("b"),
            EventData::Status { message: "try 2 of 3".into(), iteration: 1 },
            model_call(None),
            state(JobState::Stuck),
            state(JobState::Completed),
        ]);
        assert_eq!(
            lines,
            [
                "3s · queued (3s)",
                "13s · starting (3s)",
                "23s · 1010 tokens · $0.2500 · waiting for the model (3s)",
                "33s · 1010 tokens · $0.2500 · running (3s) cargo test␛",
                "43s · 1010 tokens · $0.2500 · running 2 calls (3s) read_file a.txt",
                "53s · 1010 tokens · $0.2500 · running (3s) read_file a.txt",
                "63s · 1010 tokens · $0.2500 · waiting for the model (3s)",
                "73s · 1010 tokens · $0.2500 · try 2 of 3 (3s)",
                "83s · 2020 tokens · unknown cost · waiting for the model (3s)",
                "93s · 2020 tokens · unknown cost · stuck: waiting for recovery (3s)",
                "103s · 2020 tokens · unknown cost · finishing (3s)",
            ]
        );
    }

    #[test]
    fn a_queued_job_shows_its_position() {
        let mut activity = Activity::new(at(0));
        activity.set_queue_position(Some(3));
        assert_eq!(activity.line(at(1)), "1s · queued as number 3 (1s)");
        assert!(activity.is_queued());
    }
}
