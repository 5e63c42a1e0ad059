//! Tool calls: the registry, what a caller may use, and the one executor that every call goes through.

mod approval;
mod call;
mod coerce;
pub(crate) mod container;
mod context;
mod credentials;
mod executor;
mod host;
mod output;
mod policy;
mod registry;

pub use approval::{AllowList, ApprovalContext};
pub(crate) use call::STOPPED_BEFORE_START;
pub use call::{Admission, CallOutcome, CallResult, CheckedCall, Decision};
pub use context::{ToolContext, is_denied_to_jobs};
pub use executor::ToolExecutor;
pub use host::{CallHost, OpenedRow, RecordError, Unrecorded};
pub use output::{MAX_OUTPUT_BYTES, is_incomplete_escape, sanitize_piece};
pub use policy::ToolPolicy;
pub use registry::{RegisterError, RegisteredTool, ToolRegistry};

#[cfg(test)]
mod tests;
