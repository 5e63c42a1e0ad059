//! Events of the whole instance: the events of jobs, and those of gates, chat threads and notifications, in one order.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::{
    ChatMessage, EventData, EventKind, Gate, GateId, JobId, JobSummary, Notification, NotificationId, ReadinessState,
    Routine, RoutineCronEvent, RoutineId, RoutineRun, RunId, ThreadId, ThreadState, names::wire_enum,
};

/// One item of `GET /api/events`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct InstanceEvent {
    /// Version of this shape: 1.
    pub v: u8,
    /// Increases over the whole instance, with gaps.
    pub cursor: i64,
    /// Of an event of a job: its number in the job, from 1 without gaps.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = i64, required = false))]
    pub seq: Option<i64>,
    /// Of an event of a job: the attempt that it belongs to.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = u32, required = false))]
    pub attempt: Option<u32>,
    /// When the orchestrator wrote it.
    pub at: DateTime<Utc>,
    /// The user whose job, thread, gate or notification it is about; empty for what concerns all users.
    pub user_id: String,
    /// What it is about.
    #[serde(flatten)]
    pub subject: EventSubject,
    /// `kind` and `data`.
    #[serde(flatten)]
    pub data: AnyEventData,
}

/// What a job does between its transitions, in `GET /api/events`. It is not stored: it has no cursor, and its message no id.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct LiveJobEvent {
    /// Version of this shape: 1.
    pub v: u8,
    /// When it was so.
    pub at: DateTime<Utc>,
    /// The user whose job it is.
    pub user_id: String,
    /// The job.
    pub job_id: JobId,
    /// `job`.
    pub kind: InstanceEventKind,
    /// The job.
    pub data: Box<JobSummary>,
}

/// How far a stream has got: the data of `event: position`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct StreamPosition {
    /// There are no other events up to this cursor.
    pub cursor: i64,
    /// The server's time.
    pub now: DateTime<Utc>,
}

/// The same of a job's own stream.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobStreamPosition {
    /// There are no other events up to this one.
    pub seq: i64,
    /// The server's time.
    pub now: DateTime<Utc>,
}

/// The objects that an event is about. Ids that do not apply are absent.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EventSubject {
    /// The job.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = JobId, required = false))]
    pub job_id: Option<JobId>,
    /// The run.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = RunId, required = false))]
    pub run_id: Option<RunId>,
    /// The routine.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = RoutineId, required = false))]
    pub routine_id: Option<RoutineId>,
    /// The chat thread.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = ThreadId, required = false))]
    pub thread_id: Option<ThreadId>,
    /// The gate.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = GateId, required = false))]
    pub gate_id: Option<GateId>,
}

/// The content of an event, by kind.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(untagged)]
pub enum AnyEventData {
    /// An event of a job.
    Job(EventData),
    /// Another event.
    Instance(InstanceEventData),
}

/// The content of an event that does not belong to a job's own events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(tag = "kind", content = "data", rename_all = "snake_case")]
pub enum InstanceEventData {
    /// A tool call waits for a person.
    GateRequired(Box<Gate>),
    /// A gate was approved or denied, or it has expired.
    GateResolved(Box<Gate>),
    /// A chat thread changed state.
    ThreadState {
        /// The thread.
        thread_id: ThreadId,
        /// The new state.
        state: ThreadState,
    },
    /// An entry was added to a chat thread.
    ChatMessage {
        /// The thread.
        thread_id: ThreadId,
        /// The entry.
        #[serde(flatten)]
        message: Box<ChatMessage>,
    },
    /// The job as lists show it, after a change of its state, a request to cancel it, or its creation. What changes while
    /// it runs is not stored: see `LiveJobEvent`.
    Job(Box<JobSummary>),
    /// A job was deleted.
    JobDeleted {
        /// The job.
        id: JobId,
    },
    /// A user got a notification.
    Notification(Box<Notification>),
    /// A user marked notifications as read: one, or all up to one.
    NotificationsRead {
        /// The one that was marked.
        notification_id: Option<NotificationId>,
        /// The newest of those that were marked together.
        up_to: Option<NotificationId>,
        /// The user's notifications that are still unread; 1,000 stands for that many or more.
        unread_count: u64,
    },
    /// A run was recorded, started or ended.
    Run(Box<RoutineRun>),
    /// A routine was created, changed or deleted.
    Routine {
        /// `created`, `updated`, `enabled`, `disabled` or `deleted`. Not `action`, which the routine has.
        change: RoutineChange,
        /// The routine as it is now; as it was, if it was deleted. Long texts of its action are cut.
        #[serde(flatten)]
        routine: Box<Routine>,
    },
    /// What happened to a scheduled routine, in the shape of the `cron.*` calls.
    Cron(Box<RoutineCronEvent>),
    /// Whether the server can run jobs has changed. It concerns all users.
    Readiness(ReadinessState),
}

/// What happened to a routine.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(rename_all = "snake_case")]
#[expect(missing_docs, reason = "the words say it")]
pub enum RoutineChange {
    Created,
    Updated,
    Enabled,
    Disabled,
    Deleted,
}

impl InstanceEventData {
    /// The event's kind.
    pub const fn kind(&self) -> InstanceEventKind {
        match self {
            Self::GateRequired(_) => InstanceEventKind::GateRequired,
            Self::GateResolved(_) => InstanceEventKind::GateResolved,
            Self::ThreadState { .. } => InstanceEventKind::ThreadState,
            Self::ChatMessage { .. } => InstanceEventKind::ChatMessage,
            Self::Job(_) => InstanceEventKind::Job,
            Self::JobDeleted { .. } => InstanceEventKind::JobDeleted,
            Self::Notification(_) => InstanceEventKind::Notification,
            Self::NotificationsRead { .. } => InstanceEventKind::NotificationsRead,
            Self::Run(_) => InstanceEventKind::Run,
            Self::Routine { .. } => InstanceEventKind::Routine,
            Self::Cron(_) => InstanceEventKind::Cron,
            Self::Readiness(_) => InstanceEventKind::Readiness,
        }
    }

    /// The objects that the event is about.
    pub fn subject(&self) -> EventSubject {
        let none = EventSubject::default();
        match self {
            Self::GateRequired(gate) | Self::GateResolved(gate) => {
                EventSubject { thread_id: Some(gate.thread_id), gate_id: Some(gate.id), ..none }
            }
            Self::ThreadState { thread_id, .. } | Self::ChatMessage { thread_id, .. } => {
                EventSubject { thread_id: Some(*thread_id), ..none }
            }
            Self::Job(job) => EventSubject { job_id: Some(job.id), ..none },
            Self::JobDeleted { id } => EventSubject { job_id: Some(*id), ..none },
            Self::Notification(notification) => EventSubject {
                job_id: notification.job_id,
                run_id: notification.run_id,
                routine_id: notification.routine_id,
                thread_id: notification.thread_id,
                gate_id: notification.gate_id,
            },
            Self::NotificationsRead { .. } | Self::Readiness(_) => none,
            Self::Run(run) => {
                EventSubject { job_id: run.job_id, run_id: Some(run.id), routine_id: Some(run.routine_id), ..none }
            }
            Self::Routine { routine, .. } => EventSubject { routine_id: Some(routine.id), ..none },
            Self::Cron(event) => EventSubject { routine_id: Some(event.job_id), ..none },
        }
    }
}

wire_enum! {
    /// The kind of an event of the instance, by itself.
    #[expect(missing_docs, reason = "each is documented on EventData or InstanceEventData")]
    pub enum InstanceEventKind {
        State,
        Message,
        Reasoning,
        Plan,
        ToolUse,
        ToolResult,
        LlmCall,
        Status,
        Log,
        Egress,
        Limit,
        Result,
        Job,
        JobDeleted,
        Run,
        Routine,
        Cron,
        GateRequired,
        GateResolved,
        ThreadState,
        ChatMessage,
        Notification,
        NotificationsRead,
        Readiness,
    }
}

impl InstanceEventKind {
    /// Whether jobs have events of this kind.
    pub fn is_of_jobs(self) -> bool {
        EventKind::parse(self.as_str()).is_some()
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;
    use crate::{MessageRole, NotificationId, NotificationKind};

    #[test]
    fn every_kind_of_a_jobs_event_is_a_kind_of_the_instance() {
        for kind in EventKind::ALL {
            let same = InstanceEventKind::parse(kind.as_str()).unwrap();
            assert!(same.is_of_jobs());
        }
        assert!(!InstanceEventKind::GateRequired.is_of_jobs());
    }

    #[test]
    fn an_event_has_the_ids_that_apply_and_its_data_by_kind() {
        let notification = Notification {
            id: NotificationId::nil(),
            kind: NotificationKind::Message,
            title: "t".to_owned(),
            text: "x".to_owned(),
            routine_id: None,
            run_id: None,
            job_id: Some(JobId::nil()),
            gate_id: None,
            thread_id: None,
            channel: None,
            created_at: DateTime::UNIX_EPOCH,
            read_at: None,
            deliveries: vec![],
        };
        let data = InstanceEventData::Notification(Box::new(notification.clone()));
        let event = InstanceEvent {
            v: 1,
            cursor: 7,
            seq: None,
            attempt: None,
            at: DateTime::UNIX_EPOCH,
            user_id: "ada".to_owned(),
            subject: data.subject(),
            data: AnyEventData::Instance(data),
        };
        let shown = serde_json::to_value(&event).unwrap();
        let expected = json!({"v": 1, "cursor": 7, "at": "1970-01-01T00:00:00Z", "user_id": "ada", "job_id": JobId::nil(),
            "kind": "notification", "data": notification});
        assert_eq!(shown, expected);
        assert_eq!(serde_json::from_value::<InstanceEvent>(shown).unwrap(), event);
        let of_job = json!({"v": 1, "cursor": 8, "at": "1970-01-01T00:00:00Z", "user_id": "ada", "job_id": JobId::nil(),
            "kind": "message", "data": {"role": "user", "content": "hi"}});
        let parsed: InstanceEvent = serde_json::from_value(of_job).unwrap();
        let message = EventData::Message { role: MessageRole::User, content: "hi".to_owned() };
        assert_eq!((parsed.subject.job_id, parsed.data), (Some(JobId::nil()), AnyEventData::Job(message)));
    }
}
