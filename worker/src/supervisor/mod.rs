//! A supervisor per tool call: the process between the worker and a command, which owns the command's process tree.
//!
//! A command can leave its process group, its session and its parent (`setsid`, double fork) and can change its own
//! environment, but not its ancestors: orphans become children of the nearest subreaper, which is the call's supervisor.
//! So the supervisor's descendants are the processes of the call, no more and no fewer. Contents only.

mod child;
mod parent;
mod process_tree;
mod report;

pub use child::{SupervisorError, run};
pub(crate) use parent::{CallProcesses, OWN_PROGRAM, Processes, supervised_command};
pub(crate) use report::ExitStatus;
