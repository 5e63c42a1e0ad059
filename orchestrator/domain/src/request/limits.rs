//! Validation of the requested limits.

use protocol::{Limits, LimitsRequest};

use super::Errors;

/// The largest `max_tokens` where the operator sets no ceiling.
const MAX_TOKENS: u64 = 1_000_000_000_000;
/// The largest `max_cost_usd` where the operator sets no ceiling.
const MAX_COST_USD: f64 = 1_000_000.0;

/// Validates the requested limits and fills in the defaults.
pub(super) fn check_limits(asked: Option<&LimitsRequest>, ceiling: &Limits, errors: &mut Errors) -> Limits {
    let default = Limits::default();
    let empty = LimitsRequest::default();
    let asked = asked.unwrap_or(&empty);
    let mut whole = |field: &str, asked: Option<u64>, default: u64, floor: u64, top: u64| -> u64 {
        match asked {
            // A default above the ceiling is not an error of the caller.
            None => default.min(top),
            Some(value) if value < floor || value > top => {
                errors.add(format!("limits.{field}"), format!("must be from {floor} to {top}"));
                default
            }
            Some(value) => value,
        }
    };
    let narrow = |value: u64| u32::try_from(value).unwrap_or(u32::MAX);
    let wide = |value: Option<u32>| value.map(u64::from);
    let (d, c) = (&default, ceiling);
    let mut limits = Limits {
        timeout_seconds: whole("timeout_seconds", asked.timeout_seconds, d.timeout_seconds, 1, c.timeout_seconds),
        max_iterations: narrow(whole(
            "max_iterations",
            wide(asked.max_iterations),
            d.max_iterations.into(),
            1,
            c.max_iterations.into(),
        )),
        max_tool_calls: narrow(whole(
            "max_tool_calls",
            wide(asked.max_tool_calls),
            d.max_tool_calls.into(),
            1,
            c.max_tool_calls.into(),
        )),
        // 16 MiB: what the worker needs to start, with a margin.
        memory_mb: whole("memory_mb", asked.memory_mb, d.memory_mb, 16, c.memory_mb),
        // The init process, the worker with its threads, a supervisor and a shell.
        pids: narrow(whole("pids", wide(asked.pids), d.pids.into(), 16, c.pids.into())),
        disk_mb: whole("disk_mb", asked.disk_mb, d.disk_mb, 1, c.disk_mb),
        // 0 in the request means the ceiling; 0 in the ceiling means none.
        max_tokens: match asked.max_tokens {
            None | Some(0) => c.max_tokens,
            value => whole("max_tokens", value, 0, 1, if c.max_tokens == 0 { MAX_TOKENS } else { c.max_tokens }),
        },
        max_children: narrow(whole(
            "max_children",
            wide(asked.max_children),
            d.max_children.into(),
            0,
            c.max_children.into(),
        )),
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
