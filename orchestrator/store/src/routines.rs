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
pub(super) mod events;
mod finish;
mod firing;
mod lines;
mod list;
mod notifications;
pub(super) mod own_events;
mod publish;
mod retention;
mod rows;
mod run_log;
mod start;

pub use automation::Automation;
pub use cancel::CancelledRun;
pub use claims::{DueRoutine, DueRoutines, PlannedFiring};
pub use cron_jobs::CronJobFilter;
pub use definitions::{RoutineDefinition, RoutineStored, RoutineUpdate};
pub use deliveries::{Delivered, DeliveryDigests, NewDelivery, RefusedDelivery, WebhookTarget};
pub use events::{EventCause, EventName, EventRoutine, EventRoutines, NewRoutineEvent, PendingEvent};
pub use finish::{AttemptEnd, AttemptResult};
pub use firing::{FireOutcome, Firing};
pub use list::{RoutineFilter, RunFilter};
pub use start::{AbandonedRun, RunAttempt};

pub(super) use finish::end_with_job;
