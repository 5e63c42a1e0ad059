//! What the model of a run reads: the routine's task as its owner wrote it, and what fired the run as untrusted data.
//! Pure.
//!
//! Owns which parts are trusted. Everything that did not come from the routine itself is between markers with the nonce
//! of the run.

use std::fmt::Write as _;

use agent::{
    elide,
    safety::{DELIMITER_NOTICE, DelimiterNonce, wrap_untrusted},
};
use chrono::{DateTime, SecondsFormat, Utc};
use protocol::{TriggerType, limits::MAX_PROMPT_BYTES};
use serde_json::Value;

use super::outcome::{MAX_STATE_CHARS, ROUTINE_OK, shortened};
use crate::memory::with_identity;

use base::Zone;

#[cfg(test)]
mod tests;

/// The tool by which a model says that there is nothing to report.
pub const NOTHING_TO_REPORT: &str = "nothing_to_report";

/// What fired a run is shown up to this size.
const MAX_PAYLOAD_BYTES: usize = 128 * 1024;
/// What is known of what fired it is shown up to this size.
const MAX_DETAIL_BYTES: usize = 4 * 1024;
/// A document is shown up to this size.
const MAX_DOCUMENT_BYTES: usize = 64 * 1024;
/// All documents are shown up to this size.
const MAX_DOCUMENTS_BYTES: usize = 256 * 1024;
/// Capacity for markers and for the sentences around them.
const MARKERS_BYTES: usize = 2 * 1024;

/// What is known of a run before it starts.
#[derive(Debug, Clone, Copy)]
pub struct RunFacts<'a> {
    pub trigger: TriggerType,
    /// What is known of what fired it.
    pub detail: &'a Value,
    /// The time of the schedule that it is for.
    pub due_at: Option<DateTime<Utc>>,
    /// What fired it, such as the body of a webhook.
    pub payload: Option<&'a str>,
    /// The text of the last successful run.
    pub state: Option<&'a str>,
    /// The owner's time zone.
    pub timezone: &'a str,
}

/// A document that the routine names.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ContextDocument {
    /// Its path, as the routine has it.
    pub path: String,
    /// Its text; `None` if there is no such document.
    pub content: Option<String>,
}

/// The instructions of a lightweight run, with the owner's own document about the assistant first.
pub fn system_prompt(identity: Option<&str>, timezone: &str, now: DateTime<Utc>, has_tools: bool) -> String {
    let zone = zone(timezone);
    let today = now.with_timezone(&zone).format("%A, %-d %B %Y");
    let by_tool = if has_tools { format!(", or call {NOTHING_TO_REPORT}") } else { String::new() };
    let instructions = format!(
        "You carry out a routine of the user's. No person is present and none can be asked: do the task once, now, with \
         what you have. If there is nothing that the user has to know, answer exactly {ROUTINE_OK} and nothing else{by_tool}. Otherwise \
         answer with a short report in plain text, without {ROUTINE_OK}; the user gets it as a notification.\n\n\
         Today is {today} in the user's time zone, {}.\n\n{DELIMITER_NOTICE}",
        zone.name()
    );
    with_identity(identity, &instructions)
}

/// The first message of a lightweight run.
pub fn task(prompt: &str, facts: &RunFacts<'_>, documents: &[ContextDocument], nonce: &DelimiterNonce) -> String {
    let mut text = format!("{prompt}\n\n{}", run_section(facts, nonce, MAX_PAYLOAD_BYTES));
    let mut room = MAX_DOCUMENTS_BYTES;
    for ContextDocument { path, content } in documents {
        match content {
            Some(content) => {
                let shown = elide(content, MAX_DOCUMENT_BYTES.min(room));
                room -= shown.len();
                let document = wrap_untrusted(&format!("memory:{path}"), &shown, nonce);
                // Writing to a string cannot fail.
                let _ = write!(text, "\n\nThe document {} of the user's memory:\n{document}", quoted(path));
            }
            None => {
                let _ = write!(
                    text,
                    "\n\nThe document {} of the user's memory does not exist. Go on without it, and say so if the task needs it.",
                    quoted(path)
                );
            }
        }
    }
    text
}

/// The prompt of a job that a routine starts, at most as long as a job's prompt may be where the description leaves
/// room.
pub fn job_prompt(description: &str, facts: &RunFacts<'_>, nonce: &DelimiterNonce) -> String {
    let room = MAX_PROMPT_BYTES.saturating_sub(description.len() + DELIMITER_NOTICE.len());
    let others = MARKERS_BYTES + 2 * MAX_DETAIL_BYTES + 4 * MAX_STATE_CHARS;
    let run = if room < others {
        String::new()
    } else {
        format!("\n\n{}", run_section(facts, nonce, MAX_PAYLOAD_BYTES.min(room - others)))
    };
    let result = format!(
        "If there is nothing that the user has to know, let your final answer be exactly {ROUTINE_OK}. {DELIMITER_NOTICE}"
    );
    let prompt = format!("{description}{run}\n\n{result}");
    if prompt.len() <= MAX_PROMPT_BYTES { prompt } else { description.to_owned() }
}

/// What is known of the run.
fn run_section(facts: &RunFacts<'_>, nonce: &DelimiterNonce, max_payload_bytes: usize) -> String {
    let mut text = format!("This run was started by {}.", cause(facts.trigger));
    if let Some(due) = facts.due_at {
        let zone = zone(facts.timezone);
        let _ = write!(
            text,
            " It is for {} ({} in the user's time zone).",
            due.to_rfc3339_opts(SecondsFormat::Secs, true),
            due.with_timezone(&zone).format("%A %H:%M")
        );
    }
    let has_detail = match facts.detail {
        Value::Null => false,
        Value::Object(fields) => !fields.is_empty(),
        _ => true,
    };
    if has_detail {
        let detail = elide(&facts.detail.to_string(), MAX_DETAIL_BYTES);
        let _ = write!(text, "\n\nWhat is known of it:\n{}", wrap_untrusted("trigger", &detail, nonce));
    }
    if let Some(payload) = facts.payload {
        let source = format!("trigger:{}", facts.trigger.as_str());
        let payload = wrap_untrusted(&source, &elide(&printable(payload), max_payload_bytes), nonce);
        let _ = write!(text, "\n\nIt brought this data:\n{payload}");
    }
    if let Some(state) = facts.state.filter(|state| !state.trim().is_empty()) {
        let state = wrap_untrusted("last_run", &shortened(state, MAX_STATE_CHARS), nonce);
        let _ = write!(text, "\n\nThe last successful run of this routine said:\n{state}");
    }
    text
}

const fn cause(trigger: TriggerType) -> &'static str {
    match trigger {
        TriggerType::Cron | TriggerType::Every | TriggerType::At => "its schedule",
        TriggerType::Event => "a message",
        TriggerType::SystemEvent => "an event of a system",
        TriggerType::Webhook => "a webhook",
        TriggerType::Manual => "a manual trigger",
    }
}

fn zone(name: &str) -> Zone {
    name.parse().unwrap_or(Zone::UTC)
}

/// A path within a sentence. It is the owner's, but may have been written by a model.
fn quoted(path: &str) -> String {
    Value::from(path).to_string()
}

/// The text with its control characters replaced. They say nothing to a model, and JSON makes each of them six bytes.
fn printable(text: &str) -> String {
    let shown =
        |c: char| if c.is_control() && !matches!(c, '\n' | '\t' | '\r') { char::REPLACEMENT_CHARACTER } else { c };
    text.chars().map(shown).collect()
}
