//! What belongs to the caller: sign-in, secrets, settings, tools, memory and notifications. Contents only.

pub(crate) mod login;
pub(crate) mod memory;
pub(crate) mod notification;
pub(crate) mod secret;
pub(crate) mod settings;
pub(crate) mod tool;
