//! Notifications: what Gantry tells a user outside a conversation.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{GateId, JobId, NotificationId, RoutineId, RunId, ThreadId, names::wire_enum};

wire_enum! {
    /// Why there is a notification.
    pub enum NotificationKind {
        /// An agent sent it with the tool `message`.
        Message,
        /// A tool call of a chat waits for the user's approval.
        GateRequired,
        /// A run succeeded.
        RunOk,
        /// A run has something to report.
        RunAttention,
        /// A run failed.
        RunFailed,
        /// A routine was disabled by Gantry.
        RoutineDisabled,
        /// The budget of a routine is spent.
        BudgetSpent,
        /// Gantry could not do something for a routine, through no fault of the routine; at most one a day for each.
        AutomationProblem,
        /// The heartbeat of the main session has something to report.
        Heartbeat,
        /// Heartbeats of the main session failed.
        HeartbeatFailed,
    }
}

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
    /// The gate that it is about.
    #[serde(default)]
    pub gate_id: Option<GateId>,
    /// The chat thread of that gate.
    #[serde(default)]
    pub thread_id: Option<ThreadId>,
    /// The channel that the routine or the tool `message` names, for the recipient's own sorting.
    pub channel: Option<String>,
    /// When it was sent.
    pub created_at: DateTime<Utc>,
    /// When the user marked it as read.
    pub read_at: Option<DateTime<Utc>>,
    /// Where else it was delivered.
    pub deliveries: Vec<NotificationDelivery>,
}

/// A page of `GET /api/notifications`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationPage {
    /// The newest first.
    pub items: Vec<Notification>,
    /// Pass as `cursor` to get the next page; null on the last page.
    pub next_cursor: Option<String>,
    /// The user's unread notifications, on whatever page; 1,000 stands for that many or more.
    pub unread_count: u64,
}

/// The answer of `POST /api/notifications/read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationsRead {
    /// How many were marked as read.
    pub count: u64,
}

/// The body of `POST /api/notifications/read`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct ReadNotifications {
    /// The newest one that was seen: those that came later stay unread.
    pub up_to: NotificationId,
}

/// A delivery of a notification to a webhook.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct NotificationDelivery {
    /// The URL that it is posted to, without its query.
    pub url: String,
    /// Its outcome.
    pub status: DeliveryStatus,
    /// Posts so far.
    pub attempts: u32,
    /// When the last post was made.
    pub last_attempt_at: Option<DateTime<Utc>>,
    /// When the next post is made.
    pub next_attempt_at: Option<DateTime<Utc>>,
    /// The HTTP status of the last answer.
    pub response_status: Option<u16>,
    /// Why the last post failed.
    pub error: Option<String>,
}

wire_enum! {
    /// The outcome of a delivery.
    pub enum DeliveryStatus {
        /// It waits for its next post.
        Pending,
        /// The receiver accepted it.
        Delivered,
        /// It was refused, or the retries are used up.
        Failed,
        /// The orchestrator stopped during a post: the receiver may have got it.
        Unknown,
    }
}
