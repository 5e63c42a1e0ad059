//! Limits of a routine's firings.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::names::wire_enum;

/// Limits of a routine's firings. Each can be left out.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Guardrails {
    /// Seconds after the start of a run in which events and webhooks start no other. Schedules are not held back.
    pub cooldown_seconds: u64,
    /// Runs at the same time.
    pub max_concurrent: u32,
    /// Seconds in which the same payload starts one run only; null for no such window.
    pub dedup_window_seconds: Option<u64>,
    /// What happens to a firing while `max_concurrent` runs are in progress.
    pub overlap: Overlap,
    /// Which times that have passed unnoticed are run afterwards.
    pub catch_up: CatchUp,
    /// How late a time may be caught up.
    pub catch_up_window_seconds: u64,
    /// Most times that `catch_up: all` runs, the newest.
    pub catch_up_max: u32,
    /// Further attempts of a failed run.
    pub retry: Retry,
    /// Failures in a row that disable the routine; 0 for never.
    pub disable_after_failures: u32,
    /// The longest run of a lightweight action, 600 by default; a job has its own limit.
    pub timeout_seconds: Option<u64>,
    /// The range of a fixed delay that is drawn from the routine's id.
    pub stagger_seconds: u64,
    /// No firing after this time.
    pub until: Option<DateTime<Utc>>,
    /// No firing after this number of runs.
    pub max_runs: Option<u64>,
    /// What the runs of a period may use.
    pub budget: Option<Budget>,
}

impl Default for Guardrails {
    fn default() -> Self {
        Self {
            cooldown_seconds: 300,
            max_concurrent: 1,
            dedup_window_seconds: None,
            overlap: Overlap::Skip,
            catch_up: CatchUp::Once,
            catch_up_window_seconds: 86_400,
            catch_up_max: 10,
            retry: Retry::default(),
            disable_after_failures: 10,
            timeout_seconds: None,
            stagger_seconds: 0,
            until: None,
            max_runs: None,
            budget: None,
        }
    }
}

wire_enum! {
    /// What happens to a firing while `max_concurrent` runs are in progress.
    #[derive(Default)]
    pub enum Overlap {
        /// It is skipped.
        #[default]
        Skip,
        /// One firing waits; further ones are skipped.
        QueueOne,
        /// The oldest run is cancelled.
        CancelPrevious,
    }
}

wire_enum! {
    /// Which times that have passed unnoticed are run afterwards.
    #[derive(Default)]
    pub enum CatchUp {
        /// None.
        None,
        /// The newest.
        #[default]
        Once,
        /// The newest `catch_up_max`.
        All,
    }
}

/// Further attempts of a failed run.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct Retry {
    /// Attempts in all.
    pub max_attempts: u32,
    /// The first wait; it doubles with each attempt.
    pub backoff_seconds: u64,
    /// The longest wait.
    pub backoff_max_seconds: u64,
}

impl Default for Retry {
    fn default() -> Self {
        Self { max_attempts: 1, backoff_seconds: 30, backoff_max_seconds: 3600 }
    }
}

/// What the runs of a period may use. A spent budget skips firings until the next period.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct Budget {
    /// Tokens of all model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_tokens: Option<u64>,
    /// Cost of all model calls.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub max_cost_usd: Option<f64>,
    /// The period, in the user's time zone.
    #[serde(default)]
    pub per: BudgetPeriod,
}

/// What the runs of a period have used. A run counts when an attempt of it ends.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct BudgetUse {
    /// Tokens of all model calls.
    pub tokens: u64,
    /// Cost of the model calls that had a price.
    pub cost_usd: f64,
    /// When the period began.
    pub since: DateTime<Utc>,
}

wire_enum! {
    /// The period of a budget, in the user's time zone.
    #[derive(Default)]
    pub enum BudgetPeriod {
        /// From midnight.
        #[default]
        Day,
        /// From Monday.
        Week,
        /// From the first of the month.
        Month,
    }
}
