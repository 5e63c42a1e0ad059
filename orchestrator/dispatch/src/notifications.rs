//! Posts of notifications to webhooks: where they may go, which is next, and the task that sends them. Contents only.

pub(crate) mod destinations;
pub(crate) mod sender;
pub(crate) mod slots;
