//! The part of a job that never changes after it is created.

use std::collections::BTreeMap;

use agent::safety::{DelimiterNonce, REDACTED};
use chrono::{DateTime, Utc};
use protocol::{Effort, Egress, EgressView, JobId, JobMode, Limits, Metadata, Placement, RoutineId, RunId, Source};

/// The run of a routine that a job is for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RunLink {
    pub routine: RoutineId,
    pub run: RunId,
}

/// The values a job was created with. Immutable.
#[derive(Debug, Clone, PartialEq)]
pub struct Brief {
    pub user_id: String,
    pub title: String,
    pub prompt: String,
    /// What its agent is told of the job that it continues, after the prompt.
    pub note: Option<String>,
    /// How the worker carries out the task.
    pub mode: JobMode,
    pub placement: Placement,
    /// Higher is served first within the owner's queue.
    pub priority: i32,
    /// Labels, for filters.
    pub labels: BTreeMap<String, String>,
    /// Stored for the client, never interpreted.
    pub metadata: Metadata,
    /// Its limits, after the ceilings were applied.
    pub limits: Limits,
    /// The tools it may use; `None` is all that are offered.
    pub tools: Option<Vec<String>>,
    /// Tools with requirement `always` that a person has approved for it.
    pub approve: Vec<String>,
    /// The hosts that it may reach, as they were requested.
    pub egress: Option<Egress>,
    /// Of the markers around tool results in what its model reads: the same in all attempts, so that a provider's cache
    /// finds their common beginning.
    pub delimiter_nonce: Option<DelimiterNonce>,
    /// The image of its containers.
    pub image: String,
    pub model: String,
    /// How much the model thinks; the operator's default if it is not said.
    pub effort: Option<Effort>,
    /// Whether the agent plans first.
    pub plan: bool,
    /// Whether a person accepts or rejects the result.
    pub review: bool,
    pub source: Source,
    /// The run of a routine that it is for.
    pub routine: Option<RunLink>,
    /// The job whose files it continues with.
    pub restarted_from: Option<JobId>,
    /// The job whose tool created it.
    pub parent_id: Option<JobId>,
    /// Number of ancestors.
    pub depth: u32,
    pub created_at: DateTime<Utc>,
    /// W3C trace context of the request that created it.
    pub traceparent: Option<String>,
}

impl Brief {
    /// What its agent is told to do: the prompt, and the note.
    pub fn task(&self) -> String {
        format!("{}{}", self.prompt, self.note.as_deref().unwrap_or_default())
    }

    /// The first message of its agent's conversation, the same in all attempts: the title as a heading, unless the prompt
    /// begins with it, and the task.
    pub fn first_message(&self) -> String {
        let task = self.task();
        if self.title_repeats_prompt() { task } else { format!("{}{task}", heading(&self.title)) }
    }

    /// Whether the title is the beginning of the prompt, such as one that was derived from it. It may be cut, and secrets
    /// in it are redacted.
    pub fn title_repeats_prompt(&self) -> bool {
        let line = self.prompt.lines().map(str::trim).find(|line| !line.is_empty()).unwrap_or_default();
        let line: String = line.chars().map(|c| if c.is_control() { ' ' } else { c }).collect();
        let title = self.title.trim();
        let (title, is_cut) = title.strip_suffix('…').map_or((title, false), |cut| (cut, true));
        let mut parts = title.split(REDACTED);
        let Some(mut rest) = parts.next().and_then(|part| line.strip_prefix(part)) else { return false };
        for part in parts {
            let Some((_, after)) = rest.split_once(part) else { return false };
            rest = after;
        }
        is_cut || title.is_empty() || title.ends_with(REDACTED) || !rest.starts_with(char::is_alphanumeric)
    }

    /// The hosts that the job's tools may reach.
    pub fn egress_view(&self) -> EgressView {
        let of = |egress: &Egress| egress.hosts.clone().unwrap_or_else(|| egress.allow.clone());
        let allow = self.egress.as_ref().map(of).unwrap_or_default();
        EgressView { enabled: !allow.is_empty(), allow }
    }
}

/// A job's first message without the title that opens it, if one does.
pub fn without_title<'m>(message: &'m str, title: &str) -> &'m str {
    message.strip_prefix(&heading(title)).unwrap_or(message)
}

fn heading(title: &str) -> String {
    format!("# {title}\n\n")
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::{job::sample, request::derive_title};

    fn first_message(title: &str, prompt: &str) -> String {
        let mut brief = sample::brief();
        (brief.title, brief.prompt) = (title.to_owned(), prompt.to_owned());
        brief.first_message()
    }

    #[rstest]
    #[case::another_text("Nightly report", "Tidy up.", true)]
    #[case::a_later_line("Tidy up.", "Look around.\nTidy up.", true)]
    #[case::a_longer_title("Tidy up. Then rest.", "Tidy up.", true)]
    #[case::within_a_word("Tid", "Tidy up.", true)]
    #[case::the_first_words("Tidy", "Tidy up.", false)]
    #[case::the_first_line("Tidy up.", "\n  Tidy up.\nThen rest.", false)]
    #[case::cut("Tidy u…", "Tidy up.", false)]
    #[case::redacted("Use [redacted] now", "Use s3cret now, twice", false)]
    #[case::redacted_at_the_end("Use [redacted]", "Use s3cret", false)]
    #[case::redacted_of_another("Use [redacted] later", "Use s3cret now", true)]
    fn the_title_opens_the_prompt_unless_it_repeats_it(#[case] title: &str, #[case] prompt: &str, #[case] opens: bool) {
        let message = first_message(title, prompt);
        assert_eq!(message, if opens { format!("# {title}\n\n{prompt}") } else { prompt.to_owned() });
        assert_eq!(without_title(&message, title), prompt);
    }

    #[rstest]
    #[case("work")]
    #[case("# Heading\n\nwork")]
    #[case(" \u{1}\n\twork\tand\u{7}rest\n\nmore")]
    #[case(
        "Übersetze a first line that is longer than a title may be, so that the title which is derived from it is cut."
    )]
    fn a_job_without_a_title_begins_with_its_prompt(#[case] prompt: &str) {
        let title = derive_title(prompt);
        let message = first_message(&title, prompt);
        assert_eq!((message.as_str(), without_title(&message, &title)), (prompt, prompt));
    }

    #[test]
    fn a_note_follows_the_prompt() {
        let mut brief = sample::brief();
        (brief.title, brief.prompt, brief.note) = ("T".to_owned(), "work".to_owned(), Some("\n\n[Note: …]".to_owned()));
        assert_eq!(brief.first_message(), "# T\n\nwork\n\n[Note: …]");
    }
}
