//! The operator's ceilings, and how an earlier job's settings are restricted to them.

use std::fmt::Display;

use protocol::Limits;

use super::{
    MAX_PRIORITY,
    tool_list::{entry_name, is_addition, server_of, server_of_all},
};

/// The operator's ceilings for jobs.
#[derive(Debug, Clone, PartialEq)]
pub struct Ceiling {
    /// The maximum of each limit; 0 in `max_tokens` and `max_cost_usd` is no ceiling.
    pub limits: Limits,
    /// The limits of jobs that name none, as far as the ceilings allow them.
    pub default_limits: Limits,
    /// Whether jobs begin with a plan where they do not say it.
    pub default_plan: bool,
    /// The image of jobs that name none.
    pub default_image: String,
    /// Other images that jobs may name.
    pub images: Vec<String>,
    /// The model of jobs that name none.
    pub default_model: String,
    /// Other models that jobs may name.
    pub models: Vec<String>,
    /// Tools that jobs may name.
    pub tools: Vec<String>,
    /// MCP servers whose tools jobs may name. Which tools they have is not known here.
    pub mcp_servers: Vec<String>,
}

/// The limits, image, model and tools of an earlier job, restricted to the present ceilings.
#[derive(Debug, Clone, PartialEq)]
pub struct RestrictedSettings {
    /// The limits, each at most its ceiling.
    pub limits: Limits,
    /// The earlier image, or the default if it is no longer offered.
    pub image: String,
    /// The earlier model, or the default if it is no longer offered.
    pub model: String,
    /// The tools that are still offered.
    pub tools: Option<Vec<String>>,
    /// Descriptions of what was changed; empty if nothing was.
    pub changes: Vec<String>,
}

impl Ceiling {
    /// Whether jobs may name this tool, or all tools of this server.
    pub fn offers(&self, tool: &str) -> bool {
        let has_tools_of = |server: &str| self.tools.iter().any(|one| server_of(one) == Some(server));
        self.tools.iter().any(|one| one == tool)
            || server_of(tool).is_some_and(|server| self.mcp_servers.iter().any(|one| one == server))
            || server_of_all(tool).is_some_and(has_tools_of)
    }

    /// Restricts the settings of an earlier job to the present ceilings.
    pub fn restrict(
        &self,
        limits: &Limits,
        (image, model): (&str, &str),
        tools: Option<&[String]>,
    ) -> RestrictedSettings {
        let mut changes = Vec::new();
        let limits = self.cut(limits, &mut changes);
        let mut known = |what: &str, name: &str, default: &str, list: &[String]| {
            if name == default || list.iter().any(|one| one == name) {
                return name.to_owned();
            }
            changes.push(format!("{what} {name} is no longer offered: {default}"));
            default.to_owned()
        };
        let image = known("image", image, &self.default_image, &self.images);
        let model = known("model", model, &self.default_model, &self.models);
        let tools = tools.and_then(|tools| {
            let (kept, removed): (Vec<_>, Vec<_>) =
                tools.iter().cloned().partition(|entry| self.offers(entry_name(entry)));
            if !removed.is_empty() {
                changes.push(format!("tools that are no longer offered: {}", removed.join(", ")));
            }
            // The built-in tools alone are what a job without a list has.
            (!kept.is_empty() || !is_addition(tools)).then_some(kept)
        });
        RestrictedSettings { limits, image, model, tools, changes }
    }

    fn cut(&self, old: &Limits, changes: &mut Vec<String>) -> Limits {
        let top = &self.limits;
        let limits = Limits {
            timeout_seconds: whole("timeout_seconds", old.timeout_seconds, top.timeout_seconds, changes),
            max_iterations: whole("max_iterations", old.max_iterations, top.max_iterations, changes),
            max_tool_calls: whole("max_tool_calls", old.max_tool_calls, top.max_tool_calls, changes),
            max_children: whole("max_children", old.max_children, top.max_children, changes),
            memory_mb: whole("memory_mb", old.memory_mb, top.memory_mb, changes),
            pids: whole("pids", old.pids, top.pids, changes),
            disk_mb: whole("disk_mb", old.disk_mb, top.disk_mb, changes),
            // 0 is no limit on either side.
            max_tokens: match (old.max_tokens, top.max_tokens) {
                (old, 0) => old,
                (0, top) => whole("max_tokens", u64::MAX, top, changes),
                (old, top) => whole("max_tokens", old, top, changes),
            },
            cpus: old.cpus.min(top.cpus),
            max_cost_usd: match (old.max_cost_usd, top.max_cost_usd) {
                (old, top) if top <= 0.0 => old,
                (old, top) if old <= 0.0 => top,
                (old, top) => old.min(top),
            },
        };
        for (name, old, new) in
            [("cpus", old.cpus, limits.cpus), ("max_cost_usd", old.max_cost_usd, limits.max_cost_usd)]
        {
            if (old - new).abs() > f64::EPSILON {
                let old = if old > 0.0 { old.to_string() } else { "no limit".to_owned() };
                changes.push(format!("{name} {old} -> {new}"));
            }
        }
        for change in changes {
            *change = change.replace(&u64::MAX.to_string(), "no limit");
        }
        limits
    }
}

fn whole<T: Ord + Display>(name: &str, old: T, top: T, changes: &mut Vec<String>) -> T {
    if old > top {
        changes.push(format!("{name} {old} -> {top}"));
    }
    old.min(top)
}

/// The valid priority nearest to an earlier one.
pub fn within_priorities(old: i32) -> i32 {
    old.clamp(-MAX_PRIORITY, MAX_PRIORITY)
}
