//! Container-domain tools and remote orchestrator-domain tools. Contents only.

mod build;
mod capture;
mod file_tool;
mod files;
mod launch;
mod limits;
mod line_endings;
mod output_stream;
mod patch;
mod patch_format;
mod remote;
mod search;
mod shell;
mod workspace;

#[cfg(test)]
mod tests;

pub(crate) use build::{ToolDeps, build_tools, context};
pub(crate) use launch::Launcher;
pub(crate) use limits::LimitMonitor;
pub(crate) use workspace::{Workspace, failure};
