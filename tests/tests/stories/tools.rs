//! Stories of the orchestrator's tools: approvals, and the tools as jobs meet them.

mod approvals;
mod http_tool;
mod job_tools;
mod memory;
mod worker_tools;
