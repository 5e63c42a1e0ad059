//! One supervisor per tool call: a process between the worker and the command, and the root of the command's process
//! tree.
//!
//! A process can leave its process group, its session and its parent (`setsid`, double fork) and can change its
//! environment, but not its ancestors: an orphan becomes a child of the nearest subreaper, which is the call's
//! supervisor. The supervisor's descendants are therefore exactly the processes of the call. Contents only.

mod child;
mod parent;
mod process_tree;
mod report;

pub use child::{SupervisorError, run};
pub(crate) use parent::{CallProcesses, OWN_PROGRAM, Processes, supervised_command};
pub(crate) use report::ExitStatus;
