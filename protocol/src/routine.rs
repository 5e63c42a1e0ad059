//! Routines: work that starts by itself, on a schedule or on an event.
//!
//! Owns the wire shapes of routines, their runs and their requests. Submodules own the parts: triggers, actions,
//! guardrails, runs, and the requests that fire them.

mod action;
pub(crate) mod cron;
mod guardrails;
mod inbound;
mod run;
#[cfg(test)]
mod tests;
mod trigger;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

pub use action::{FullJobAction, LightweightAction, RoutineAction, RoutineActionKind};
pub use guardrails::{Budget, BudgetPeriod, BudgetUse, CatchUp, Guardrails, Overlap, Retry};
pub use inbound::{
    DeliveryVerdict, EmitSystemEvent, EventReceipt, PostMessage, RoutineCronAction, RoutineCronEvent, WebhookDelivery,
    WebhookReceipt,
};
pub use run::{RoutineRun, RunMessage, RunReason, RunStatus, TriggerRoutine, TriggerType};
pub use trigger::{RoutineTrigger, WebhookTrigger};

use crate::{RoutineId, names::wire_enum};

wire_enum! {
    /// Where the agent of a routine works.
    pub enum RoutineSession {
        /// Each run starts with an empty conversation.
        Isolated,
        /// The run puts a line into the owner's main session.
        Main,
    }
}

wire_enum! {
    /// When the main session looks at a line that a routine put there.
    #[derive(Default)]
    pub enum WakeMode {
        /// At the next heartbeat, or with the user's next message.
        #[default]
        NextHeartbeat,
        /// At once.
        Now,
    }
}

wire_enum! {
    /// The human-readable status of a routine.
    pub enum RoutineStatus {
        /// It does not fire.
        Disabled,
        /// A run is in progress.
        Running,
        /// It has not had a successful run since its trigger or action changed.
        Unverified,
        /// Its last run failed.
        Failing,
        /// Its last run found something that needs attention.
        Attention,
        /// Its last run was good.
        Active,
    }
}

wire_enum! {
    /// Why a routine is disabled.
    pub enum DisabledReason {
        /// A user disabled it.
        User,
        /// Its single time has passed.
        Completed,
        /// Its schedule has no further time.
        ScheduleEnded,
        /// Its `until` has passed.
        Until,
        /// It has had `max_runs` runs.
        MaxRuns,
        /// It failed `disable_after_failures` times in a row.
        Failures,
        /// More than 60 runs started within 60 seconds.
        FireRate,
        /// The model's provider refused the key, or the account is empty.
        ProviderAccount,
        /// Its stored definition cannot be read.
        Unreadable,
    }
}

impl DisabledReason {
    /// Whether the routine has done all that its schedule asks for: runs that it has begun go on.
    pub const fn is_end_of_schedule(self) -> bool {
        matches!(self, Self::Completed | Self::ScheduleEnded | Self::Until | Self::MaxRuns)
    }
}

/// Whom a routine tells about its runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Notify {
    /// A name for the recipient's own sorting; passed on with each notification.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// Whether a run with `attention` notifies.
    pub on_attention: bool,
    /// Whether a failed run notifies.
    pub on_failure: bool,
    /// Whether a run with `ok` notifies.
    pub on_success: bool,
    /// Where notifications are posted, too. It must match the operator's `notify_allow`.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_url: Option<String>,
    /// The key of the signatures of these posts; generated when absent, and never shown again.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub webhook_secret: Option<String>,
    /// Whether there is such a key. Only in answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_webhook_secret: Option<bool>,
}

impl Default for Notify {
    fn default() -> Self {
        Self {
            channel: None,
            on_attention: true,
            on_failure: true,
            on_success: false,
            webhook_url: None,
            webhook_secret: None,
            has_webhook_secret: None,
        }
    }
}

/// `POST /api/routines`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct CreateRoutine {
    /// Unique among the user's routines; at most 128 characters.
    pub name: String,
    /// What it is for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub description: Option<String>,
    /// Whether it fires; true by default.
    #[serde(default = "yes")]
    pub enabled: bool,
    /// What fires it.
    pub trigger: RoutineTrigger,
    /// What a run does.
    pub action: RoutineAction,
    /// Limits of its firings.
    #[serde(default)]
    pub guardrails: Guardrails,
    /// Whom it tells.
    #[serde(default)]
    pub notify: Notify,
    /// `main` for the action `system_event_text`, else `isolated`, by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub session: Option<RoutineSession>,
    /// When the main session looks at its line.
    #[serde(default)]
    pub wake_mode: WakeMode,
    /// Whether every run that has something to report notifies.
    #[serde(default)]
    pub deliver: bool,
    /// Whether a run puts a summary line into the main session.
    #[serde(default)]
    pub post_to_main: bool,
    /// The first word of that line; `Cron` by default.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub post_to_main_prefix: Option<String>,
    /// Whether what fired a run is kept with it; by default only its digest is.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub persist_payload: Option<bool>,
}

const fn yes() -> bool {
    true
}

/// A routine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[expect(missing_docs, reason = "as in CreateRoutine")]
#[expect(clippy::struct_excessive_bools, reason = "the fields are the contract's, and independent")]
pub struct Routine {
    pub id: RoutineId,
    pub user_id: String,
    pub name: String,
    pub description: Option<String>,
    pub enabled: bool,
    /// Why it is disabled.
    pub disabled_reason: Option<DisabledReason>,
    /// When it was disabled.
    pub disabled_at: Option<DateTime<Utc>>,
    /// Increases with each change of the definition. `ETag` has it, and `If-Match` is compared with it.
    pub rev: u64,
    pub trigger: RoutineTrigger,
    pub action: RoutineAction,
    pub guardrails: Guardrails,
    pub notify: Notify,
    pub session: RoutineSession,
    pub wake_mode: WakeMode,
    pub deliver: bool,
    pub post_to_main: bool,
    pub post_to_main_prefix: Option<String>,
    pub persist_payload: bool,
    /// The text of the last successful run, at most 2,000 characters; the next run gets it as data.
    pub state: Option<String>,
    /// When the last run started.
    pub last_run_at: Option<DateTime<Utc>>,
    /// When it fires next by its schedule.
    pub next_fire_at: Option<DateTime<Utc>>,
    /// Runs that have started.
    pub run_count: u64,
    /// Failed runs since the last good one.
    pub consecutive_failures: u32,
    /// Whether it has had a successful run since its trigger or action changed.
    pub verified: bool,
    /// Its human-readable status.
    pub status: RoutineStatus,
    /// What its runs have used in the current period of its budget; null without a budget. In an event: as of the last
    /// run that ended.
    #[serde(default)]
    pub budget_used: Option<BudgetUse>,
    pub created_at: DateTime<Utc>,
    pub updated_at: DateTime<Utc>,
}

/// What will not work as it is written in an unattended run.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutineWarning {
    /// A stable name: `tool_not_allowed`, `sandbox_unavailable`, `unpriced_model`, `automation_disabled`,
    /// `tool_rounds_lowered`, `timezone_not_set`.
    pub code: String,
    /// The field that it is about.
    pub field: String,
    /// What will happen, and what to do.
    pub detail: String,
}

/// The answer to creating or changing a routine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutineSaved {
    /// The routine. Secrets that were generated are shown here, once.
    #[serde(flatten)]
    pub routine: Routine,
    /// What will not work unattended.
    pub warnings: Vec<RoutineWarning>,
}

/// The answer to `POST /api/routines?dry_run=true`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutinePreview {
    /// What will not work unattended.
    pub warnings: Vec<RoutineWarning>,
    /// The next three times of its schedule.
    pub upcoming: Vec<FiringTime>,
    /// How often it fires in the next eight days; null if that takes too long to count.
    pub count: Option<u64>,
}

/// The answer to `GET /api/routines/summary`: numbers of the caller's routines; for an admin, of all.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RoutineSummary {
    /// All routines.
    pub total: u64,
    /// Those that are enabled.
    pub enabled: u64,
    /// Those that are disabled.
    pub disabled: u64,
    /// Those with a run in progress.
    pub running: u64,
    /// Those whose last run failed.
    pub failing: u64,
    /// Those that have not had a successful run since they changed.
    pub unverified: u64,
    /// Runs that were recorded since the start of the day in UTC.
    pub runs_today: u64,
    /// When the next one fires.
    pub next_fire_at: Option<DateTime<Utc>>,
}

/// A time at which a routine fires.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FiringTime {
    /// In UTC.
    pub utc: DateTime<Utc>,
    /// In the routine's time zone, or else the user's, as RFC 3339 with its offset.
    pub local: String,
}

/// The answer to `GET /api/routines/{id}/upcoming`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpcomingFirings {
    /// The earliest first.
    pub items: Vec<FiringTime>,
}

/// A firing to come of one of several routines.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpcomingFiring {
    /// The routine.
    pub routine_id: RoutineId,
    /// Its name.
    pub routine_name: String,
    /// Its owner.
    pub user_id: String,
    /// When it fires, in UTC.
    pub utc: DateTime<Utc>,
    /// The same in the routine's time zone, or else its owner's, as RFC 3339 with its offset.
    pub local: String,
}

/// The number of firings in an hour.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct FiringHour {
    /// The beginning of the hour, in UTC.
    pub hour: DateTime<Utc>,
    /// How often routines fire in it.
    pub count: u64,
}

/// The answer to `GET /api/routines/upcoming`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct UpcomingOfRoutines {
    /// The soonest first.
    pub items: Vec<UpcomingFiring>,
    /// The hours in which routines fire.
    pub hours: Vec<FiringHour>,
    /// Firings before this time are listed and counted.
    pub until: DateTime<Utc>,
    /// The number of routines whose firings `hours` does not count.
    pub left_out: u64,
}

/// A merge patch of a routine (RFC 7396) that replaces `trigger` and `action` as a whole.
pub type RoutinePatch = serde_json::Map<String, Value>;

impl CreateRoutine {
    /// The definition of a routine, as a request would ask for it, without secrets.
    #[must_use]
    pub fn of(routine: &Routine) -> Self {
        let mut trigger = routine.trigger.clone();
        if let RoutineTrigger::Webhook(webhook) = &mut trigger {
            webhook.has_secret = None;
        }
        Self {
            name: routine.name.clone(),
            description: routine.description.clone(),
            enabled: routine.enabled,
            trigger,
            action: routine.action.clone(),
            guardrails: routine.guardrails.clone(),
            notify: Notify { has_webhook_secret: None, ..routine.notify.clone() },
            session: Some(routine.session),
            wake_mode: routine.wake_mode,
            deliver: routine.deliver,
            post_to_main: routine.post_to_main,
            post_to_main_prefix: routine.post_to_main_prefix.clone(),
            persist_payload: Some(routine.persist_payload),
        }
    }
}
