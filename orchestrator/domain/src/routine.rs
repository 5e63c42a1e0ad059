//! Routines: when they fire, whether they may, and what a run's outcome means. Pure. Contents.

pub mod admission;
pub mod budget_period;
pub mod cron_job;
pub mod definition;
pub mod expression;
pub mod matching;
pub mod outcome;
pub mod prompt;
pub mod secret;
pub mod signature;
pub mod timing;
