//! What belongs to the caller: settings, secrets and notifications. Contents only.

pub(super) mod notifications;
pub(super) mod secrets;
pub(super) mod settings;
