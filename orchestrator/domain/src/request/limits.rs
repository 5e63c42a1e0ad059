//! Validation of the requested limits.

use std::fmt::Display;

use protocol::{Limits, LimitsRequest};

use super::{Ceiling, Errors};

/// The largest `max_tokens` where the operator sets no ceiling.
const MAX_TOKENS: u64 = 1_000_000_000_000;
/// The largest `max_cost_usd` where the operator sets no ceiling.
const MAX_COST_USD: f64 = 1_000_000.0;

/// Validates the requested limits and fills in the defaults.
pub(super) fn check_limits(asked: Option<&LimitsRequest>, ceiling: &Ceiling, errors: &mut Errors) -> Limits {
    let empty = LimitsRequest::default();
    let asked = asked.unwrap_or(&empty);
    let (d, c) = (&ceiling.default_limits, &ceiling.limits);
    let mut limits = Limits {
        timeout_seconds: whole(
            errors,
            "timeout_seconds",
            asked.timeout_seconds,
            d.timeout_seconds,
            1,
            c.timeout_seconds,
        ),
        max_iterations: whole(errors, "max_iterations", asked.max_iterations, d.max_iterations, 1, c.max_iterations),
        max_tool_calls: whole(errors, "max_tool_calls", asked.max_tool_calls, d.max_tool_calls, 1, c.max_tool_calls),
        // 16 MiB: what the worker needs to start, with a margin.
        memory_mb: whole(errors, "memory_mb", asked.memory_mb, d.memory_mb, 16, c.memory_mb),
        // The init process, the worker with its threads, a supervisor and a shell.
        pids: whole(errors, "pids", asked.pids, d.pids, 16, c.pids),
        disk_mb: whole(errors, "disk_mb", asked.disk_mb, d.disk_mb, 1, c.disk_mb),
        // 0 in the request means the ceiling; 0 in the ceiling means none.
        max_tokens: match asked.max_tokens {
            None | Some(0) => c.max_tokens,
            value => {
                whole(errors, "max_tokens", value, 0, 1, if c.max_tokens == 0 { MAX_TOKENS } else { c.max_tokens })
            }
        },
        max_children: whole(errors, "max_children", asked.max_children, d.max_children, 0, c.max_children),
        max_cost_usd: c.max_cost_usd,
        cpus: d.cpus.min(c.cpus),
    };
    if let Some(cpus) = asked.cpus {
        if cpus.is_finite() && (0.01..=c.cpus).contains(&cpus) {
            limits.cpus = cpus;
        } else {
            errors.add("limits.cpus", format!("must be from 0.01 to {}", c.cpus));
        }
    }
    if let Some(cost) = asked.max_cost_usd.filter(|cost| *cost != 0.0) {
        let top = if c.max_cost_usd == 0.0 { MAX_COST_USD } else { c.max_cost_usd };
        // Money is counted in micro-dollars.
        if cost.is_finite() && (0.000_001..=top).contains(&cost) {
            limits.max_cost_usd = cost;
        } else {
            errors.add("limits.max_cost_usd", format!("must be 0 or from 0.000001 to {top}"));
        }
    }
    limits
}

/// A whole number within its bounds. A default above the ceiling is not an error of the caller.
fn whole<T: Ord + Copy + Display>(
    errors: &mut Errors,
    field: &str,
    asked: Option<T>,
    default: T,
    floor: T,
    top: T,
) -> T {
    match asked {
        None => default.min(top),
        Some(value) if value < floor || value > top => {
            errors.add(format!("limits.{field}"), format!("must be from {floor} to {top}"));
            default
        }
        Some(value) => value,
    }
}
