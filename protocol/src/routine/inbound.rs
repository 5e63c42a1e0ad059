//! What comes in and fires routines: messages, events of systems, webhook deliveries.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use crate::{RoutineId, RunId, names::wire_enum};

/// `POST /api/messages`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct PostMessage {
    /// Where it was written, such as `support`.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub channel: Option<String>,
    /// The text; at most 64 KiB.
    pub content: String,
    /// Who wrote it, as the caller knows them.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub sender: Option<String>,
}

/// `POST /api/system-events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct EmitSystemEvent {
    /// Who sends it, such as `github`.
    pub source: String,
    /// Its type, such as `issue.opened`.
    pub event_type: String,
    /// Its content; at most 256 KiB as JSON.
    #[serde(default)]
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub payload: Value,
}

/// The answer to `POST /api/messages` and `POST /api/system-events`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventReceipt {
    /// The id of the event: the `Idempotency-Key`, or a new UUID.
    pub id: String,
    /// The runs that it fired, not those of firings that a guardrail stopped.
    pub run_ids: Vec<RunId>,
}

/// The answer to a webhook delivery.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookReceipt {
    /// The run that it fired; for a duplicate the run of the first delivery, or the entry that counts duplicates.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub run_id: Option<RunId>,
    /// False when `where` is not true of the delivery.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub matched: Option<bool>,
    /// True when the same delivery has been answered before.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub duplicate: Option<bool>,
}

/// One item of `GET /api/routines/{id}/deliveries`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WebhookDelivery {
    /// When it arrived.
    pub at: DateTime<Utc>,
    /// The id that the sender gave it, or the digest of its body.
    pub id: String,
    /// Its outcome.
    pub verdict: DeliveryVerdict,
    /// The HTTP status of the answer.
    pub status: u16,
    /// The run that it fired, or the entry that counts it if a guardrail stopped it.
    pub run_id: Option<RunId>,
}

wire_enum! {
    /// The outcome of a webhook delivery.
    pub enum DeliveryVerdict {
        /// It fired a run.
        Accepted,
        /// `where` is not true of it.
        NotMatched,
        /// It was answered before.
        Duplicate,
        /// A guardrail stopped it.
        Skipped,
        /// The routine or automation was disabled.
        Disabled,
        /// The signature or the time was wrong.
        Unauthorized,
        /// It was too large.
        TooLarge,
        /// There were too many.
        RateLimited,
        /// `where` could not be computed.
        WhereFailed,
    }
}

/// The data of the event `cron`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "camelCase")]
pub struct RoutineCronEvent {
    /// The routine.
    pub job_id: RoutineId,
    /// What happened.
    pub action: RoutineCronAction,
    /// `ok`, `error` or `skipped`, when a run ended.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub status: Option<String>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<String>,
    /// When it fires next, in milliseconds since 1970.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub next_run_at_ms: Option<i64>,
}

wire_enum! {
    /// What happened to a scheduled routine.
    #[expect(missing_docs, reason = "the words say it")]
    pub enum RoutineCronAction {
        Added,
        Updated,
        Removed,
        Started,
        Finished,
    }
}
