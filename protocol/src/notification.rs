//! Notifications: what Gantry tells a user outside a conversation.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{JobId, NotificationId, RoutineId, RunId, names::wire_names};

/// Why there is a notification.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
pub enum NotificationKind {
    /// An agent sent it with the tool `message`.
    Message,
    /// A tool call of a chat waits for the user's approval.
    GateRequired,
}

wire_names!(NotificationKind { Message => "message", GateRequired => "gate_required" });

/// One item of `GET /api/notifications`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct Notification {
    /// Its id.
    pub id: NotificationId,
    /// Why it was sent.
    pub kind: NotificationKind,
    /// One line; for a message of a job, the job's title.
    pub title: String,
    /// The whole text.
    pub text: String,
    /// The routine that it is about.
    pub routine_id: Option<RoutineId>,
    /// The run that it is about.
    pub run_id: Option<RunId>,
    /// The job that it is about.
    pub job_id: Option<JobId>,
    /// When it was sent.
    pub created_at: DateTime<Utc>,
    /// When the user marked it as read.
    pub read_at: Option<DateTime<Utc>>,
    /// Where else it was delivered. Empty in this version.
    pub deliveries: Vec<NotificationDelivery>,
}

/// A delivery of a notification to a channel outside Gantry. There are none in this version.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationDelivery {}
