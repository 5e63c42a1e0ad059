//! Telemetry: the log, metrics and traces. Contents only.

mod log;
pub mod metrics;
pub mod traces;

pub use log::{LogFormatter, TelemetryError, init, subscriber};

/// The targets of the program's own crates; those of libraries are not exported as traces.
pub const OWN_TARGETS: [&str; 26] = [
    "admin",
    "agent",
    "app",
    "auth",
    "base",
    "chat",
    "cli",
    "config",
    "dashboard",
    "dispatch",
    "domain",
    "egress",
    "engine",
    "hooks",
    "host_jobs",
    "http_api",
    "llm",
    "mcp",
    "orchestrator",
    "routine",
    "schedule",
    "secrets",
    "store",
    "telemetry",
    "tools",
    "workspace",
];
