//! The limits of the daemon's parts, from the configuration.
//!
//! Decides nothing: the parts apply them.

use std::time::Duration;

use chat::HeartbeatSettings;
use config::{Config, RoutineSettings};
use dispatch::plan::{PlanLimits, SlotLimits};
use domain::{
    budget::{DayLimits, micro_dollars},
    request::Ceiling,
    routine::definition::DefinitionLimits,
    settings::SettingsBounds,
};
use protocol::Limits;
use store::{RetentionLimits, UserStorageLimit};
use tools::BuiltinTools;
use workspace::RetentionPeriod;

pub(super) fn workspace_retention(config: &Config) -> RetentionPeriod {
    RetentionPeriod::from_days(config.workspace_retention_days)
}

pub(super) fn day_limits(config: &Config) -> DayLimits {
    DayLimits { max_tokens: config.user_day_max_tokens, max_micro_usd: micro_dollars(config.user_day_max_cost_usd) }
}

pub(super) fn plan_limits(config: &Config) -> PlanLimits {
    PlanLimits {
        container_slots: SlotLimits {
            total: config.max_parallel_jobs as usize,
            per_user: config.max_parallel_jobs_per_user as usize,
        },
        host_slots: SlotLimits {
            total: config.max_parallel_host_jobs as usize,
            // One less, like the default of jobs in containers: a user leaves a slot to the others.
            per_user: (config.max_parallel_host_jobs as usize).saturating_sub(1).max(1),
        },
        start_timeout: Duration::from_secs(config.start_timeout_seconds),
        lease: Duration::from_secs(config.lease_seconds),
        stuck_after: Duration::from_secs(config.stuck_after_seconds),
        max_repairs: config.max_repair_attempts,
    }
}

pub(super) const fn heartbeat_settings(config: &Config) -> HeartbeatSettings {
    HeartbeatSettings {
        enabled: config.routines.cron_enabled,
        every_seconds: config.heartbeat_every_seconds,
        max_concurrent: config.heartbeat_max_concurrent,
    }
}

pub(super) fn settings_bounds(config: &Config) -> SettingsBounds {
    let default_model = std::iter::once(&config.llm.primary.model);
    SettingsBounds {
        models: default_model.chain(&config.llm.models).cloned().collect(),
        min_heartbeat_seconds: config.routines.min_interval_seconds,
    }
}

/// What the operator allows in definitions of routines.
pub(super) fn definition_limits(routines: &RoutineSettings) -> DefinitionLimits {
    DefinitionLimits {
        min_interval_seconds: routines.min_interval_seconds,
        max_tool_rounds: routines.max_tool_rounds,
        max_name_chars: routines.max_name_chars as usize,
        max_prompt_bytes: routines.max_prompt_bytes as usize,
        max_condition_bytes: routines.max_condition_bytes as usize,
        max_context_paths: routines.max_context_paths as usize,
    }
}

pub(super) fn ceiling(config: &Config, tools: &BuiltinTools) -> Ceiling {
    let defaults = &config.defaults;
    let of_provider = &config.llm.primary.model;
    let default_model = defaults.model.as_ref().unwrap_or(of_provider);
    let models = std::iter::once(of_provider).chain(&config.llm.models).filter(|model| *model != default_model);
    Ceiling {
        limits: config.limits_ceiling,
        default_limits: Limits {
            timeout_seconds: defaults.timeout_seconds,
            max_iterations: defaults.max_iterations,
            ..Limits::default()
        },
        default_plan: defaults.plan,
        default_image: config.sandbox.image.clone(),
        images: config.sandbox.images.clone(),
        default_model: default_model.clone(),
        models: models.cloned().collect(),
        tools: tools.names_for_jobs(),
        mcp_servers: tools.mcp().server_names(),
    }
}

pub(super) const fn user_storage_limit(config: &Config) -> UserStorageLimit {
    UserStorageLimit::from_mb(config.user_storage_max_mb)
}

pub(super) fn record_retention(config: &Config) -> RetentionLimits {
    RetentionLimits {
        days: config.record_retention_days,
        audit_days: config.audit_retention_days,
        max_mb: config.record_retention_max_mb,
    }
}
