//! The commands of a chat. Each answers with an entry in the thread.

use agent::elide;
use protocol::{ChatContent, CreateJob, Job, JobId, JobState, MessageId, Source, ThreadId};

use super::chats::{ChatError, Chats};
use dispatch::{Submission, SubmitError, Submitted};
use domain::chat::{Command, HELP, ThreadRef};
use store::{AuditEntry, ChatJob, IdempotencyKey, StoreError, Transition};

/// Jobs that `/status` lists.
const MAX_LISTED_JOBS: u32 = 20;
/// Shortest part of an id that names a job.
const MIN_ID_DIGITS: usize = 4;
/// Jobs that the answer to an ambiguous part of an id lists.
const MAX_CANDIDATES: u32 = 10;
/// Length of a text of the user that an answer repeats.
const MAX_REPEATED_BYTES: usize = 200;

/// On whose behalf a command is done.
pub(super) struct CommandCall {
    pub(super) thread: ThreadId,
    /// The message with the command.
    pub(super) message: MessageId,
    pub(super) user: String,
    pub(super) audit: AuditEntry,
}

struct Answer {
    text: String,
    /// Whether the model reads it with the next message.
    is_for_model: bool,
}

impl From<String> for Answer {
    fn from(text: String) -> Self {
        Self { text, is_for_model: false }
    }
}

impl Chats {
    /// Does a command that is shown in the thread already. It may be begun again after a failure, so what it does must
    /// not be done twice.
    pub(super) async fn run_command(&self, command: Command, call: CommandCall) -> Result<(), ChatError> {
        let answer = match command {
            Command::Job(prompt) if prompt.is_empty() => "Usage: /job TEXT".to_owned().into(),
            Command::Job(prompt) => self.create_job(prompt, &call).await?,
            Command::Status => self.status(&call).await?.into(),
            Command::Cancel(id) => self.cancel_job(&id, &call).await?.into(),
            Command::Help => HELP.to_owned().into(),
            Command::Stop if self.stop(call.thread).await? => {
                // The turn says that it was stopped.
                return self.answer(&call, None, false).await;
            }
            Command::Stop => "There is no turn to stop.".to_owned().into(),
            Command::Unknown(name) => format!("/{} is not a command.\n{HELP}", elide(&name, MAX_REPEATED_BYTES)).into(),
            // These are not done at once.
            Command::New | Command::Compact => return Ok(()),
        };
        let Answer { text, is_for_model } = answer;
        self.answer(&call, Some(ChatContent::notice(text)), is_for_model).await
    }

    async fn answer(&self, call: &CommandCall, content: Option<ChatContent>, due: bool) -> Result<(), ChatError> {
        let command = (call.thread, call.message);
        self.store.answer_chat_command(command, content, due, self.clock.now()).await?;
        Ok(())
    }

    /// Stops the turn of a thread. False: there is none.
    pub async fn stop(&self, thread: ThreadId) -> Result<bool, ChatError> {
        let is_active = self.engine.stop(thread);
        // Also after that: a turn that is parked at this moment may not see the stop any more.
        let was_parked = self.engine.stop_parked(thread).await?;
        // A turn whose answer has come may just have gone on.
        Ok(is_active || was_parked || self.engine.stop(thread))
    }

    async fn create_job(&self, prompt: String, call: &CommandCall) -> Result<Answer, ChatError> {
        let shown = elide(&prompt, MAX_REPEATED_BYTES);
        let request = CreateJob { prompt, ..CreateJob::default() };
        let audit = AuditEntry { action: "job.create".to_owned(), ..call.audit.clone() };
        // A command makes one job, also if its first try failed after that.
        let message = call.message.to_string();
        let key = IdempotencyKey { user: call.user.clone(), key: format!("chat:{message}"), digest: message };
        let submission =
            Submission { source: Source::Chat, key: Some(key), audit: Some(audit), thread: Some(call.thread) };
        let id = match self.submitter.submit_request(call.user.clone(), submission, request).await {
            Ok(Submitted::Created(job)) => job.id,
            Ok(Submitted::Replayed { body, .. }) => match serde_json::from_str::<Job>(&body) {
                Ok(job) => job.id,
                Err(_) => return Ok("The job was created before.".to_owned().into()),
            },
            Err(SubmitError::Store(error)) => return Err(error.into()),
            Err(error) => return Ok(format!("The job was not created: {}", describe(&error)).into()),
        };
        let text = format!("The job {id} was created: {shown}\nIts end is posted here.");
        Ok(Answer { text, is_for_model: true })
    }

    async fn status(&self, call: &CommandCall) -> Result<String, ChatError> {
        let thread = self.store.chat_thread(&call.user, &ThreadRef::Id(call.thread)).await?;
        let state = thread.map_or_else(|| "deleted".to_owned(), |owned| owned.thread.state.to_string());
        let jobs = self.store.unfinished_jobs_of(&call.user, MAX_LISTED_JOBS + 1).await?;
        let mut lines = vec![format!("This thread is {state}.")];
        if jobs.is_empty() {
            lines.push("You have no unfinished jobs.".to_owned());
        }
        let listed = jobs.iter().take(MAX_LISTED_JOBS as usize);
        lines.extend(listed.map(in_one_line));
        if jobs.len() > MAX_LISTED_JOBS as usize {
            lines.push("… and more".to_owned());
        }
        Ok(lines.join("\n"))
    }

    async fn cancel_job(&self, id: &str, call: &CommandCall) -> Result<String, ChatError> {
        let job = match self.find_job(id, call).await? {
            Ok(job) => job,
            Err(problem) => return Ok(problem),
        };
        let now = self.clock.now();
        let audit = AuditEntry { action: "job.cancel".to_owned(), ..call.audit.clone() };
        let reason = Some("cancelled in a chat".to_owned());
        Ok(match self.store.transition(job, now, Some(&audit), move |job| job.request_cancel(now, reason)).await? {
            Transition::Applied(record) if record.state() == JobState::Cancelled => {
                self.waker.wake();
                format!("The job {job} is cancelled.")
            }
            Transition::Applied(_) => {
                self.waker.wake();
                format!("The job {job} is being cancelled.")
            }
            Transition::Refused(refused) => format!("The job {job} is already {}.", refused.state),
            Transition::NotFound => not_found(id),
        })
    }

    /// The job that an id or a part of one names, or why there is none.
    async fn find_job(&self, id: &str, call: &CommandCall) -> Result<Result<JobId, String>, StoreError> {
        let digits: String = id.chars().filter(|c| *c != '-').map(|c| c.to_ascii_lowercase()).collect();
        if digits.len() < MIN_ID_DIGITS || !digits.bytes().all(|byte| byte.is_ascii_hexdigit()) {
            return Ok(Err(format!(
                "Usage: /cancel ID, with at least {MIN_ID_DIGITS} of the first or last characters of the job's id"
            )));
        }
        let found: Vec<ChatJob> = self.store.jobs_by_id_part(&call.user, &digits, MAX_CANDIDATES + 1).await?;
        Ok(match found.as_slice() {
            [job] => Ok(job.id),
            [] => Err(not_found(id)),
            candidates => Err(ambiguous(&digits, candidates)),
        })
    }
}

fn in_one_line(job: &ChatJob) -> String {
    format!("{} {} {}", job.id, job.state, job.title)
}

fn ambiguous(digits: &str, candidates: &[ChatJob]) -> String {
    let listed = candidates.iter().take(MAX_CANDIDATES as usize).map(in_one_line);
    let mut lines: Vec<String> = listed.collect();
    if candidates.len() > MAX_CANDIDATES as usize {
        lines.push("… and more".to_owned());
    }
    let digits = elide(digits, MAX_REPEATED_BYTES);
    format!(
        "The ids of several of your jobs begin or end with {digits}. Use more characters, or the last ones:\n{}",
        lines.join("\n")
    )
}

fn not_found(id: &str) -> String {
    format!("You have no job {}.", elide(id, MAX_REPEATED_BYTES))
}

/// The error with its fields or its reason, in one sentence.
fn describe(error: &SubmitError) -> String {
    match error {
        SubmitError::Rejected(rejected) => rejected.to_string(),
        SubmitError::SandboxUnavailable { reason, detail } => format!("{detail} ({})", reason.as_str()),
        error => error.to_string(),
    }
}
