//! Container-domain tools and remote orchestrator-domain tools. Contents only.

mod capture;
mod file_tool;
mod files;
mod launch;
mod limits;
mod offer;
mod patch;
mod patch_format;
mod remote;
mod search;
mod shell;
mod workspace;

#[cfg(test)]
mod tests;

pub(crate) use launch::Launcher;
pub(crate) use limits::LimitMonitor;
pub(crate) use offer::{ToolDeps, build_tools, context};
pub(crate) use workspace::{Workspace, failure};
