//! A routine and its runs in the shape of the calls `cron.*`.

use chrono::{DateTime, Utc};
use protocol::{
    CronIsolation, CronJob, CronJobState, CronPayload, CronRunEntry, CronRunStatus, CronRuntime, CronSchedule,
    CronWakeMode, Retry, Routine, RoutineAction, RoutineActionKind, RoutineId, RoutineRun, RoutineSession,
    RoutineTrigger, RunReason, RunStatus, WakeMode,
};

use super::without_prefix;

/// Longest text of a job in a list, in characters.
pub const MAX_SHOWN_CHARS: usize = 1_000;

/// What a cron job shows of its routine.
#[derive(Debug, Clone, PartialEq)]
#[expect(missing_docs, reason = "as in Routine")]
pub struct CronJobFacts {
    pub id: RoutineId,
    pub name: String,
    pub description: Option<String>,
    pub enabled: bool,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
    pub trigger: RoutineTrigger,
    pub action: RoutineActionKind,
    /// The text of the action: its prompt, description or line.
    pub text: String,
    pub session: RoutineSession,
    pub wake_mode: WakeMode,
    pub deliver: bool,
    /// `notify.webhook_url`.
    pub to: Option<String>,
    pub timeout_seconds: Option<u64>,
    pub retry: Retry,
    pub post_to_main_prefix: Option<String>,
    pub next_fire_at: Option<DateTime<Utc>>,
    pub last_run_at: Option<DateTime<Utc>>,
    /// The last run that has ended.
    pub last: Option<LastRun>,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Eq)]
#[expect(missing_docs, reason = "as in RoutineRun")]
pub struct LastRun {
    pub status: RunStatus,
    pub reason: Option<RunReason>,
    pub message: Option<String>,
    pub started_at: Option<DateTime<Utc>>,
    pub completed_at: Option<DateTime<Utc>>,
}

impl CronJobFacts {
    /// What is shown of a whole routine.
    pub fn new(routine: Routine, last: Option<LastRun>) -> Self {
        let action = routine.action.kind();
        let text = match routine.action {
            RoutineAction::Lightweight(light) => light.prompt,
            RoutineAction::FullJob(job) => job.description,
            RoutineAction::SystemEventText { text } => text,
        };
        Self {
            id: routine.id,
            name: routine.name,
            description: routine.description,
            enabled: routine.enabled,
            created_at: routine.created_at,
            updated_at: routine.updated_at,
            trigger: routine.trigger,
            action,
            text,
            session: routine.session,
            wake_mode: routine.wake_mode,
            deliver: routine.deliver,
            to: routine.notify.webhook_url,
            timeout_seconds: routine.guardrails.timeout_seconds,
            retry: routine.guardrails.retry,
            post_to_main_prefix: routine.post_to_main_prefix,
            next_fire_at: routine.next_fire_at,
            last_run_at: routine.last_run_at,
            last,
        }
    }
}

/// A routine as a cron job; `None` if it has no schedule.
pub fn shown(facts: CronJobFacts) -> Option<CronJob> {
    let schedule = match facts.trigger {
        RoutineTrigger::At { at } => CronSchedule::At { at_ms: at.timestamp_millis() },
        RoutineTrigger::Every { every_seconds, anchor } => CronSchedule::Every {
            every_ms: every_seconds.saturating_mul(1_000),
            anchor_ms: anchor.map(|anchor| anchor.timestamp_millis()),
        },
        RoutineTrigger::Cron { schedule, timezone } => CronSchedule::Cron { expr: schedule, tz: timezone },
        _ => return None,
    };
    let payload = if facts.action == RoutineActionKind::SystemEventText {
        CronPayload::SystemEvent { text: facts.text }
    } else {
        let message = without_prefix(facts.id, &facts.name, &facts.text).map(str::to_owned);
        CronPayload::AgentTurn {
            message: message.unwrap_or(facts.text),
            deliver: facts.deliver.then_some(true),
            provider: facts.to.as_ref().map(|_| "webhook".to_owned()),
            to: facts.to,
            timeout_seconds: facts.timeout_seconds,
        }
    };
    let default = Retry::default();
    let runtime = CronRuntime {
        max_attempts: Some(facts.retry.max_attempts).filter(|attempts| *attempts != default.max_attempts),
        retry_backoff_ms: Some(facts.retry.backoff_seconds)
            .filter(|seconds| *seconds != default.backoff_seconds)
            .map(|seconds| seconds.saturating_mul(1_000)),
    };
    Some(CronJob {
        id: facts.id,
        name: facts.name,
        description: facts.description,
        enabled: facts.enabled,
        created_at_ms: facts.created_at.timestamp_millis(),
        updated_at_ms: facts.updated_at.timestamp_millis(),
        schedule,
        session_target: facts.session,
        wake_mode: CronWakeMode::from(facts.wake_mode),
        payload,
        isolation: CronIsolation { post_to_main_prefix: facts.post_to_main_prefix },
        runtime,
        state: state(facts.next_fire_at.filter(|_| facts.enabled), facts.last_run_at, facts.last),
        warnings: Vec::new(),
    })
}

fn state(next: Option<DateTime<Utc>>, last_run_at: Option<DateTime<Utc>>, last: Option<LastRun>) -> CronJobState {
    let milliseconds = |at: DateTime<Utc>| at.timestamp_millis();
    let (mut last_error, mut last_duration_ms) = (None, None);
    let last_status = last.as_ref().and_then(|last| status(last.status));
    if let Some(last) = last {
        last_error = error(last.status, last.reason, last.message);
        last_duration_ms = duration(last.started_at, last.completed_at);
    }
    CronJobState {
        next_run_at_ms: next.map(milliseconds),
        last_run_at_ms: last_run_at.map(milliseconds),
        last_status,
        last_error,
        last_duration_ms,
    }
}

/// How a run ended; `None` for one that has not.
fn status(status: RunStatus) -> Option<CronRunStatus> {
    match status {
        RunStatus::Queued | RunStatus::Running => None,
        RunStatus::Ok | RunStatus::Attention => Some(CronRunStatus::Ok),
        RunStatus::Failed => Some(CronRunStatus::Error),
        RunStatus::Skipped | RunStatus::Missed => Some(CronRunStatus::Skipped),
    }
}

fn error(status: RunStatus, reason: Option<RunReason>, message: Option<String>) -> Option<String> {
    if status.is_success() {
        return None;
    }
    match (reason, message) {
        (Some(reason), Some(message)) => Some(format!("{reason}: {message}")),
        (Some(reason), None) => Some(reason.to_string()),
        (None, message) => message,
    }
}

fn duration(from: Option<DateTime<Utc>>, to: Option<DateTime<Utc>>) -> Option<i64> {
    Some((to? - from?).num_milliseconds())
}

/// A run as an entry of `cron.runs`; `None` for one that has not ended.
pub fn run_entry(run: RoutineRun) -> Option<CronRunEntry> {
    Some(CronRunEntry {
        job_id: run.routine_id,
        run_id: run.id,
        at_ms: run.started_at.unwrap_or(run.created_at).timestamp_millis(),
        status: status(run.status)?,
        error: error(run.status, run.reason, run.message),
        duration_ms: duration(run.started_at, run.completed_at),
        summary: run.result.or(run.result_summary),
    })
}
