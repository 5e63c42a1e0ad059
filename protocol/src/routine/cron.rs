//! The parameters and results of the calls `cron.*` and `wake`, with fields in camelCase.
//!
//! Owns the shapes. A cron job is a routine with a schedule; the orchestrator converts one into the other.

use serde::{Deserialize, Serialize};

use crate::{RoutineId, RoutineSession, RoutineWarning, RunId, WakeMode, names::wire_enum};

/// When a cron job runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum CronSchedule {
    /// Once.
    At {
        /// Milliseconds since 1970.
        at_ms: i64,
    },
    /// At a fixed interval.
    Every {
        /// A multiple of 1,000.
        every_ms: u64,
        /// A time that all others are counted from, in milliseconds since 1970.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        anchor_ms: Option<i64>,
    },
    /// At times of a calendar.
    Cron {
        /// The cron expression.
        expr: String,
        /// IANA time zone; the user's when the schedule is made by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        tz: Option<String>,
    },
}

/// What a cron job does.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "camelCase", rename_all_fields = "camelCase", deny_unknown_fields)]
pub enum CronPayload {
    /// A line in the owner's main session.
    SystemEvent {
        /// The line.
        text: String,
    },
    /// A turn of the agent in an isolated session.
    AgentTurn {
        /// The task.
        message: String,
        /// Whether every run that has something to report notifies.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        deliver: Option<bool>,
        /// `last` or `webhook`.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        provider: Option<String>,
        /// Where notifications are posted: a URL.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        to: Option<String>,
        /// The longest run.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timeout_seconds: Option<u64>,
    },
}

/// When the main session looks at its line.
#[derive(
    Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, strum::EnumString, strum::IntoStaticStr,
)]
#[serde(rename_all = "kebab-case")]
#[strum(serialize_all = "kebab-case")]
pub enum CronWakeMode {
    /// At the next heartbeat, or with the user's next message.
    #[default]
    NextHeartbeat,
    /// At once.
    Now,
}

impl From<CronWakeMode> for WakeMode {
    fn from(mode: CronWakeMode) -> Self {
        match mode {
            CronWakeMode::NextHeartbeat => Self::NextHeartbeat,
            CronWakeMode::Now => Self::Now,
        }
    }
}

impl From<WakeMode> for CronWakeMode {
    fn from(mode: WakeMode) -> Self {
        match mode {
            WakeMode::NextHeartbeat => Self::NextHeartbeat,
            WakeMode::Now => Self::Now,
        }
    }
}

/// How the main session learns of an isolated run.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CronIsolation {
    /// The first word of the line in the main session; `Cron` by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub post_to_main_prefix: Option<String>,
}

/// How a failed run is tried again.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub struct CronRuntime {
    /// Attempts in all.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub max_attempts: Option<u32>,
    /// The first wait, a multiple of 1,000.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub retry_backoff_ms: Option<u64>,
}

/// The parameters of `cron.add`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields)]
#[expect(missing_docs, reason = "as in CronJob")]
pub struct AddCronJob {
    pub name: String,
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(default = "yes")]
    pub enabled: bool,
    pub schedule: CronSchedule,
    pub payload: CronPayload,
    /// `main` for a system event, else `isolated`, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session_target: Option<RoutineSession>,
    #[serde(default)]
    pub wake_mode: CronWakeMode,
    #[serde(default)]
    pub isolation: CronIsolation,
    #[serde(default)]
    pub runtime: CronRuntime,
}

const fn yes() -> bool {
    true
}

/// The parameter `patch` of `cron.update`. What is left out stays as it is.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
#[expect(missing_docs, reason = "as in CronJob")]
pub struct CronJobPatch {
    #[serde(skip_serializing_if = "Option::is_none")]
    pub name: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub enabled: Option<bool>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub schedule: Option<CronSchedule>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub payload: Option<CronPayload>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub session_target: Option<RoutineSession>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub wake_mode: Option<CronWakeMode>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub isolation: Option<CronIsolation>,
    #[serde(skip_serializing_if = "Option::is_none")]
    pub runtime: Option<CronRuntime>,
}

/// A routine with a schedule, in the shape of the `cron.*` calls.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronJob {
    /// The routine's id.
    pub id: RoutineId,
    /// Its name.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether it runs.
    pub enabled: bool,
    /// When it was created, in milliseconds since 1970.
    pub created_at_ms: i64,
    /// When it was last changed.
    pub updated_at_ms: i64,
    /// When it runs.
    pub schedule: CronSchedule,
    /// In which session.
    pub session_target: RoutineSession,
    /// When the main session looks at its line.
    pub wake_mode: CronWakeMode,
    /// What it does. `cron.list` cuts long texts.
    pub payload: CronPayload,
    /// How the main session learns of its runs.
    pub isolation: CronIsolation,
    /// How a failed run is tried again.
    pub runtime: CronRuntime,
    /// Its next and its last run.
    pub state: CronJobState,
    /// What will not work as it is written; only in the answers to `cron.add` and `cron.update`.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub warnings: Vec<RoutineWarning>,
}

/// The next and the last run of a cron job.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct CronJobState {
    /// In milliseconds since 1970; null when it has no next time.
    pub next_run_at_ms: Option<i64>,
    /// When the last run started.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_run_at_ms: Option<i64>,
    /// How the last run ended.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_status: Option<CronRunStatus>,
    /// Why it failed.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_error: Option<String>,
    /// How long it took.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub last_duration_ms: Option<i64>,
}

wire_enum! {
    /// How a run ended.
    pub enum CronRunStatus {
        /// Well.
        Ok,
        /// It failed.
        Error,
        /// It did not run.
        Skipped,
    }
}

/// The answer to `cron.list`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronJobs {
    /// The newest first.
    pub jobs: Vec<CronJob>,
    /// The parameter `cursor` of the next call, when there are more.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_cursor: Option<String>,
}

/// The answer to `cron.status`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronStatus {
    /// Whether schedules run.
    pub enabled: bool,
    /// Number of the caller's cron jobs.
    pub jobs: u64,
    /// When the next one runs.
    pub next_wake_at_ms: Option<i64>,
}

/// The answer to `cron.run`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronRan {
    /// Whether the call was understood.
    pub ok: bool,
    /// Whether it started a run.
    pub ran: bool,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// Why it started none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub reason: Option<String>,
}

/// The answer to `cron.runs`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct CronRuns {
    /// The newest first.
    pub entries: Vec<CronRunEntry>,
}

/// A run that has ended.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase")]
pub struct CronRunEntry {
    /// The cron job.
    pub job_id: RoutineId,
    /// The run.
    pub run_id: RunId,
    /// When it started, or was recorded if it never did.
    pub at_ms: i64,
    /// How it ended.
    pub status: CronRunStatus,
    /// Why it failed or was skipped.
    pub error: Option<String>,
    /// How long it took.
    pub duration_ms: Option<i64>,
    /// The text of its result.
    pub summary: Option<String>,
}

/// The parameters of `wake`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct WakeRequest {
    /// Whether the main session looks at the line at once.
    #[serde(default)]
    pub mode: CronWakeMode,
    /// The line.
    pub text: String,
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn a_cron_job_has_the_documented_shape() {
        let job = CronJob {
            id: RoutineId::nil(),
            name: "news".to_owned(),
            description: None,
            enabled: true,
            created_at_ms: 1,
            updated_at_ms: 2,
            schedule: CronSchedule::Every { every_ms: 60_000, anchor_ms: None },
            session_target: RoutineSession::Isolated,
            wake_mode: CronWakeMode::NextHeartbeat,
            payload: CronPayload::AgentTurn {
                message: "look".to_owned(),
                deliver: Some(true),
                provider: None,
                to: None,
                timeout_seconds: Some(60),
            },
            isolation: CronIsolation { post_to_main_prefix: Some("News".to_owned()) },
            runtime: CronRuntime { max_attempts: Some(2), retry_backoff_ms: Some(30_000) },
            state: CronJobState { last_status: Some(CronRunStatus::Error), ..CronJobState::default() },
            warnings: vec![],
        };
        let expected = json!({"id": RoutineId::nil(), "name": "news", "enabled": true, "createdAtMs": 1, "updatedAtMs": 2,
            "schedule": {"kind": "every", "everyMs": 60_000}, "sessionTarget": "isolated", "wakeMode": "next-heartbeat",
            "payload": {"kind": "agentTurn", "message": "look", "deliver": true, "timeoutSeconds": 60},
            "isolation": {"postToMainPrefix": "News"}, "runtime": {"maxAttempts": 2, "retryBackoffMs": 30_000},
            "state": {"nextRunAtMs": null, "lastStatus": "error"}});
        assert_eq!(serde_json::to_value(&job).unwrap(), expected);
        assert_eq!(serde_json::from_value::<CronJob>(expected).unwrap(), job);
    }
}
