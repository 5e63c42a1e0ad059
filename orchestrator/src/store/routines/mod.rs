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
mod ending;
pub(super) mod events;
mod firing;
mod lines;
mod list;
mod notices;
mod publish;
mod retention;
mod rows;
mod starts;

pub use automation::Automation;
pub use cancel::CancelledRun;
pub use claims::{DueRoutine, DueRoutines, PlannedClaim};
pub use cron_jobs::CronJobFilter;
pub use definitions::{MAX_ROUTINES_PER_USER, RoutineDefinition, RoutineStored, RoutineUpdate};
pub use deliveries::{Delivered, DeliveryDigests, NewDelivery, RefusedDelivery, WebhookTarget};
pub use ending::{RunEnd, RunOutcome};
pub use events::{EventCause, EventName, EventRoutine, EventRoutines, NewRoutineEvent, WaitingEvent};
pub use firing::{FireOutcome, Firing};
pub use list::{RoutineFilter, RunFilter};
pub use starts::StartedRun;

pub(super) use ending::end_with_job;
