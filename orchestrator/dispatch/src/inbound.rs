//! What arrives from outside and fires routines: messages, events of systems, and webhook deliveries. Contents.
//!
//! `matchers` compares, `events` fires routines for messages and events, at once or when they are pending, and
//! `webhooks` decides about deliveries.

mod events;
mod matchers;
mod webhooks;

pub use events::{EventHandler, InboundEvent, PendingEventWorker};
pub use matchers::{MatchError, RoutineMatchers};
pub use webhooks::{WebhookAnswer, WebhookHandler, WebhookRefused, WebhookRequest};
