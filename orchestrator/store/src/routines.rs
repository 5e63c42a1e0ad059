//! Routines and their runs. Contents.

mod admit;
mod automation;
mod budgets;
mod cancel;
mod claims;
mod cron_jobs;
mod definitions;
mod deliveries;
mod disable;
mod event_routines;
pub(super) mod events;
mod finish;
mod firing;
mod firings;
mod lines;
mod list;
mod notifications;
pub(super) mod own_events;
mod problems;
mod publish;
mod retention;
mod rows;
mod run_list;
mod run_log;
mod start;
mod startable;

pub use automation::Automation;
pub use cancel::CancelledRun;
pub use claims::{DueRoutine, DueRoutines, PlannedFiring};
pub use cron_jobs::CronJobFilter;
pub use definitions::{RoutineDefinition, RoutineStored, RoutineUpdate};
pub use deliveries::{Delivered, DeliveryDigests, NewDelivery, RefusedDelivery, WebhookTarget};
pub use event_routines::{EventRoutine, EventRoutines};
pub use events::{EventAnswer, EventName, NewRoutineEvent, PendingEvent};
pub use firing::{FireOutcome, Firing, Triggered};
pub use list::RoutineFilter;
pub use run_list::RunFilter;
pub use startable::{AbandonedRun, RunAttempt};

pub(super) use finish::end_with_job;

#[cfg(test)]
mod tests;
