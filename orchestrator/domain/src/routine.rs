//! Routines: when they fire, whether they may, and what a run's outcome means. Pure. Contents.

pub mod admission;
pub mod attempt;
pub mod budget_period;
pub mod cron_job;
pub mod definition;
pub mod ending;
pub mod expression;
pub mod firings;
pub mod matching;
pub mod outcome;
mod pattern;
pub mod problem;
pub mod prompt;
pub mod secret;
pub mod signature;
pub mod timing;
