//! Tool calls: the registry, what a caller may use, and the one executor that every call goes through.

mod call;
mod coerce;
mod context;
mod executor;
mod output;
mod registry;

pub use call::{Admission, Admitted, CallOutcome, CallResult, Rejected};
pub use context::{ApprovalContext, ToolContext, ToolOrigin};
pub use executor::ToolExecutor;
pub use output::MAX_OUTPUT_BYTES;
pub use registry::{RegisterError, RegisteredTool, ToolRegistry};

#[cfg(test)]
mod tests;
