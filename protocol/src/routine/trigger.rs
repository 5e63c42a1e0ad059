//! What fires a routine.

use std::collections::BTreeMap;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};
use serde_json::Value;

use super::TriggerType;

/// What fires a routine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum RoutineTrigger {
    /// Times of a calendar.
    Cron {
        /// A cron expression of 5, 6 (seconds first) or 7 fields, a nickname such as `@daily`, or a phrase such as
        /// `every weekday at 9:00`, which is stored as what it means.
        schedule: String,
        /// IANA time zone. A schedule without one takes the zone of its user's settings when it is made, and keeps it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        timezone: Option<String>,
    },
    /// Times at a fixed interval.
    Every {
        /// The interval.
        every_seconds: u64,
        /// A time that all others are counted from; the routine's creation by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        anchor: Option<DateTime<Utc>>,
    },
    /// One time.
    At {
        /// The time.
        at: DateTime<Utc>,
    },
    /// Messages of the owner.
    Event {
        /// The channel, compared without regard to case; any by default.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        channel: Option<String>,
        /// A regular expression that the text must match.
        pattern: String,
    },
    /// Events of systems.
    SystemEvent {
        /// Who sends it, compared without regard to case.
        source: String,
        /// Its type, compared without regard to case.
        event_type: String,
        /// Values that top-level fields of the payload must have: strings, numbers and booleans.
        #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
        #[cfg_attr(feature = "openapi", schema(value_type = Object))]
        filters: BTreeMap<String, Value>,
        /// A CEL expression over `payload` that must be true.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        r#where: Option<String>,
    },
    /// Signed requests to `POST /api/webhooks/{path}`.
    Webhook(WebhookTrigger),
    /// Only a person or a program that asks for it.
    Manual {},
}

/// Signed requests to `POST /api/webhooks/{path}`.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct WebhookTrigger {
    /// `[a-z0-9-]{1,64}`, unique in the installation; the routine's id by default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub path: Option<String>,
    /// The key of the signatures, at least 16 bytes; generated when absent. Shown once, when it was generated.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub secret: Option<String>,
    /// Whether there is a key. Only in answers.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub has_secret: Option<bool>,
    /// A CEL expression over `payload` and `headers` that must be true.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub r#where: Option<String>,
}

impl RoutineTrigger {
    /// Its type.
    pub const fn kind(&self) -> TriggerType {
        match self {
            Self::Cron { .. } => TriggerType::Cron,
            Self::Every { .. } => TriggerType::Every,
            Self::At { .. } => TriggerType::At,
            Self::Event { .. } => TriggerType::Event,
            Self::SystemEvent { .. } => TriggerType::SystemEvent,
            Self::Webhook(_) => TriggerType::Webhook,
            Self::Manual {} => TriggerType::Manual,
        }
    }
}
