//! The wire types of Gantry's programs: ids, messages, events, jobs, the worker API, problems.
//!
//! Owns the shape of every wire type, each declared once. Never does I/O, never decides anything: the only logic here
//! is about a value's own shape (parsing, defaults, bounds that are part of the type).

#![warn(missing_docs)]

mod account;
mod chat;
mod egress;
mod event;
mod execution;
mod gate;
mod histogram;
mod ids;
mod invisible;
mod job;
pub mod limits;
mod names;
mod problem;
mod routine;
mod rpc;
mod status;
mod thread;
mod worker;

pub use account::{
    ActorRole, AuditOutcome, AuditRecord, JobCounts, LlmCallRecord, Page, StateCounts, StorageKind, StoredBytes,
    ThreadActionRecord, ToolActionRecord, UserStorage, is_user_name,
    mcp::{ApproveMcpTool, McpServerSummary, McpToolStatus, McpToolSummary, McpTransportKind},
    memory::{
        MemoryAuthor, MemoryContent, MemoryDocument, MemoryEntry, MemoryMatch, MemoryVersion, ParseMemoryAuthorError,
    },
    model_request::{LlmCallRequest, ModelMessage, ModelMessageRole, ModelToolCall, UnrecordedPart},
    notification::{
        DeliveryStatus, Notification, NotificationDelivery, NotificationKind, NotificationPage, NotificationsRead,
        ReadNotifications,
    },
    secret::{SecretSummary, SetSecret, is_secret_name},
    session::{OpenSession, OpenedSession, SessionCode, SessionSummary, WhoAmI},
    settings::{ParseTimeOfDayError, QuietHours, TimeOfDay, UserSettings},
    tool::{
        AdminToolPolicy, ApprovalRequirement, PermissionState, SetPermission, ToolPage, ToolSummary,
        UnavailableMcpTools,
    },
    usage::{ParseUsageGroupError, UsageGroup, UsageLine, UsageSort},
};
pub use chat::{
    Completion, CompletionRequest, CompletionRequestRef, Effort, FinishReason, Message, NativeReply, TokenUsage,
    ToolCall, ToolChoice, ToolDefinition, ToolDomain,
};
pub use egress::{EGRESS_HEADER, EgressCounter, EgressName, EgressPhase, JobEgress, MAX_EGRESS_NAMES, PROXY_ADDRESS};
pub use event::{
    EgressDecision, Event, EventData, EventKind, LimitName, LogStream, MessageRole, PlanStep,
    agent_event::AgentEvent,
    instance_event::{
        AnyEventData, EventSubject, InstanceEvent, InstanceEventData, InstanceEventKind, JobStreamPosition,
        LiveJobEvent, RoutineChange, StreamPosition,
    },
};
pub use execution::{Execution, WorkId};
pub use gate::{
    Gate, GateDecision, GateKind, GateResolution, GateScope, GateState, NotApproved, ResolveGate, ResolveThreadGate,
};
pub use histogram::{JobHistogram, JobHour, RunHistogram, RunHour};
pub use ids::{
    CallId, DeliveryId, GateId, InstanceId, JobId, MessageId, NotificationId, ParseIdError, PromptId, RoutineEventId,
    RoutineId, RunId, ThreadId, UserId,
};
pub use invisible::is_invisible;
pub use job::{
    CUT_NOTE, ContainerInfo, Job, JobMode, JobReason, JobResult, JobState, JobSummary, Limits, PROMPT_PREVIEW_CHARS,
    PartialResult, Placement, Source, Usage,
    container_name::{ContainerName, ParseContainerNameError},
    file::{DiffOmitted, FileChange, FileChangeKind, FileChanges, FileEntry, FileKind, FileList, Unpacked},
    metadata::Metadata,
    request::{
        CancelRequest, CreateJob, Egress, EgressInjection, FileMode, InputFile, JobOptions, JobPrompt, LimitsRequest,
        PromptMode, PromptReceipt, PromptRequest, RejectRequest, RestartRequest,
    },
    workspace_path::{WorkspacePath, check_path},
};
pub use problem::{ErrorCode, FieldError, Problem};
pub use routine::{
    Budget, BudgetPeriod, BudgetUse, CatchUp, CreateRoutine, DeliveryVerdict, DisabledReason, EmitSystemEvent,
    EventReceipt, FiringHour, FiringTime, FullJobAction, Guardrails, LightweightAction, Notify, Overlap, PostMessage,
    Retry, Routine, RoutineAction, RoutineActionKind, RoutineCronAction, RoutineCronEvent, RoutinePatch,
    RoutinePreview, RoutineRun, RoutineSaved, RoutineSession, RoutineStatus, RoutineSummary, RoutineTrigger,
    RoutineWarning, RunMessage, RunReason, RunStatus, TriggerRoutine, TriggerType, UpcomingFiring, UpcomingFirings,
    UpcomingOfRoutines, WakeMode, WebhookDelivery, WebhookReceipt, WebhookTrigger,
    cron::{
        AddCronJob, CronIsolation, CronJob, CronJobPatch, CronJobState, CronJobs, CronPayload, CronRan, CronRunEntry,
        CronRunStatus, CronRuns, CronRuntime, CronSchedule, CronStatus, CronWakeMode, WakeRequest,
    },
};
pub use rpc::{JSON_RPC_VERSION, RpcError, RpcErrorData, RpcRequest, RpcResponse};
pub use status::{DiskStatus, ModelStatus, ReadinessState, SandboxStatus, ServerStatus, SlotStatus};
pub use thread::{
    ChatContent, ChatDelta, ChatEventKind, ChatHistory, ChatMessage, ChatStatus, ChatThread, DeltaPiece, LineOrigin,
    MAIN_THREAD, MessageReceipt, SendMessage, ThreadState,
};
pub use worker::{
    CONTEXT_LENGTH, CompleteReply, CompleteReport, EgressView, EventAck, EventBatch, JobAssignment, PromptDelivery,
    RateLimitOrigin, ReportedOutcome, SESSION_HEADER, StatusReply, StatusReport, ToolCallReply, ToolCallRequest,
    ToolErrorKind, ToolFailure, ToolList, WorkerEvent,
};
