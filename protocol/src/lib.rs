//! What Gantry's programs say to each other: ids, messages, events, jobs, the worker API, problems.
//!
//! Owns the shape of every wire type, each declared once. Never does I/O, never decides anything: the only logic here
//! is about a value's own shape (parsing, defaults, bounds that are part of the type).

mod account;
mod chat;
mod event;
mod file;
mod ids;
mod job;
mod problem;
mod worker;

pub use account::{AuditOutcome, AuditRecord, UsageBy, UsageLine};
pub use chat::{
    Completion, CompletionRequest, FinishReason, Message, TokenUsage, ToolCall, ToolChoice, ToolDefinition, ToolDomain,
};
pub use event::{Event, EventData, EventKind, LogStream, MessageRole, PlanStep};
pub use file::{FileEntry, FileKind, Unpacked};
pub use ids::{CallId, InstanceId, JobId, ParseIdError, PromptId};
pub use job::{
    CancelRequest, ContainerInfo, CreateJob, Egress, EgressInjection, InputFile, Job, JobMode, JobReason, JobResult,
    JobState, JobSummary, Limits, LimitsRequest, LlmCallRecord, Page, PartialResult, Placement, PromptMode,
    PromptReceipt, PromptRequest, RejectRequest, RestartRequest, Source, StateCounts, ToolActionRecord, Usage,
};
pub use problem::{ErrorCode, FieldError, Problem};
pub use worker::{
    CompleteReply, CompleteReport, EgressView, EventAck, EventBatch, JobAssignment, PromptDelivery, ReportedOutcome,
    StatusReply, StatusReport, ToolCallReply, ToolCallRequest, ToolErrorKind, ToolFailure, ToolList, WorkerEvent,
};
