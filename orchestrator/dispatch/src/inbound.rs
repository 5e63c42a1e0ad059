//! What arrives from outside and fires routines: messages, events of systems, and webhook deliveries. Contents.
//!
//! `matchers` compares with `compiled_triggers`, `events` fires routines for messages and events, at once or when they
//! are pending, `webhooks` decides about deliveries, and `problems` reports what could not be compared.

mod compiled_triggers;
mod events;
mod matchers;
mod problems;
mod webhooks;

pub use events::{EventError, EventHandler, InboundEvent};
pub use matchers::{MatchError, RoutineMatchers};
pub use webhooks::{WebhookAnswer, WebhookHandler, WebhookRefused, WebhookRequest};
