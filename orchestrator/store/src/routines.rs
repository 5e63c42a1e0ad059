//! Routines and their runs. Contents.

mod automation;
mod definitions;
mod deliveries;
pub(super) mod events;
mod firings;
mod lines;
mod list;
mod notifications;
mod problems;
mod publish;
mod retention;
mod rows;
mod runs;
mod upcoming;

pub use automation::Automation;
pub use definitions::{NewRoutine, RoutineDefinition, RoutineStored, RoutineUpdate, cron_jobs::CronJobFilter};
pub use deliveries::{Delivered, DeliveryDigests, NewDelivery, RefusedDelivery, WebhookTarget};
pub use events::{
    EventAnswer, EventName, NewRoutineEvent, PendingEvent,
    event_routines::{EventRoutine, EventRoutines},
};
pub use firings::{
    claims::{DueRoutine, DueRoutines, PlannedFiring},
    firing::{FireOutcome, Firing, Triggered},
};
pub use list::RoutineFilter;
pub use runs::{
    cancel::CancelledRun,
    list::RunFilter,
    startable::{AbandonedRun, RunAttempt},
};

pub use upcoming::{ScheduledRoutine, ScheduledRoutines};

pub(super) use runs::finish::end_with_job;

#[cfg(test)]
mod tests;
