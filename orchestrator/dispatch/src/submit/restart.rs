//! Restarts: a new job that continues with the files of one that failed or was cancelled.
//!
//! Owns what the new job takes over, held to today's ceilings, and the note about the earlier attempt.

use std::{fmt::Write as _, sync::Arc};

use agent::safety::{DELIMITER_NOTICE, DelimiterNonce, wrap_untrusted};
use protocol::{CreateJob, JobState, RestartRequest};

use super::{JobSubmitter, NewJob, Submission, SubmitError, Submitted, egress};
use domain::{
    job::JobRecord,
    request::{Accepted, check_prompt, derive_title, within_priorities},
};

/// Bytes of the earlier job's last text that the note quotes.
const MAX_QUOTED_BYTES: usize = 4_000;

impl JobSubmitter {
    /// Creates a job that continues `earlier`, for its owner, even if an admin restarts it.
    pub async fn restart(
        self: &Arc<Self>,
        submission: Submission,
        earlier: &JobRecord,
        mut request: RestartRequest,
    ) -> Result<Submitted, SubmitError> {
        if let Some(prompt) = &mut request.prompt {
            self.ask_about_prompt(&earlier.brief.user_id, Some(earlier.id), prompt).await?;
            check_prompt("prompt", prompt)?;
        }
        if !matches!(earlier.state(), JobState::Failed | JobState::Cancelled) {
            return Err(SubmitError::NotRestartable(earlier.state()));
        }
        if request.prompt.is_none() && self.store.has_cut_texts(earlier.id).await? {
            return Err(SubmitError::PromptNotKept);
        }
        let job = self.continuation(earlier, request.prompt.as_deref());
        self.submit_validated(job, submission).await
    }

    fn continuation(&self, earlier: &JobRecord, prompt: Option<&str>) -> NewJob {
        let brief = &earlier.brief;
        // A title that was derived from the earlier prompt says nothing about another one.
        let title = match prompt {
            Some(prompt) if brief.title_repeats_prompt() => derive_title(prompt),
            _ => brief.title.clone(),
        };
        let has_files = !earlier.is_on_host()
            && earlier.finished_at().is_none_or(|at| self.retention.contains(at, self.clock.now()));
        let mut allowed = self.ceiling.restrict(&brief.limits, (&brief.image, &brief.model), brief.tools.as_deref());
        let (egress, removed) = egress::restrict(brief.egress.as_ref(), &self.egress);
        if !removed.is_empty() {
            allowed.changes.push(format!("hosts that are no longer allowed: {}", removed.join(", ")));
        }
        let message = (!allowed.changes.is_empty())
            .then(|| format!("adjusted to the present limits: {}", allowed.changes.join("; ")));
        NewJob {
            owner: brief.user_id.clone(),
            request: CreateJob {
                prompt: prompt.unwrap_or(&brief.prompt).to_owned(),
                mode: Some(brief.mode),
                tools: allowed.tools,
                approve: brief.approve.clone(),
                egress,
                review: brief.review,
                priority: within_priorities(brief.priority),
                labels: brief.labels.clone(),
                metadata: brief.metadata.clone(),
                effort: brief.effort,
                ..CreateJob::default()
            },
            accepted: Accepted {
                title,
                limits: allowed.limits,
                image: allowed.image,
                model: allowed.model,
                plan: brief.plan,
                files: vec![],
            },
            restarted_from: Some(earlier.id),
            note: Some(note(earlier, has_files)),
            // A person restarts it: its parent does not wait for it.
            parent: None,
            // The run has ended with the earlier job.
            routine: None,
            message,
        }
    }
}

/// How the earlier attempt ended, to be read after the prompt.
fn note(earlier: &JobRecord, has_files: bool) -> String {
    let reason = earlier.reason().map_or("for no recorded reason".to_owned(), |reason| format!("with reason {reason}"));
    let files = if has_files {
        "The files it left are in the workspace; look at them before you start."
    } else {
        "The files it left are no longer kept."
    };
    let mut note = format!("\n\n[Note: an earlier attempt at this task ended as {} {reason}. {files}", earlier.state());
    let last_text = earlier.result().and_then(|result| result.partial).map(|partial| partial.text);
    if let Some(text) = last_text.as_deref().filter(|text| !text.is_empty()) {
        // What an agent wrote is no part of the task, whatever it says.
        let text = &text[..text.floor_char_boundary(MAX_QUOTED_BYTES)];
        let marked = wrap_untrusted(&format!("job:{}", earlier.id), text, &DelimiterNonce::generate());
        let _ = write!(note, " The last text of its agent was:\n{marked}\n{DELIMITER_NOTICE}");
    }
    note.push(']');
    note
}
