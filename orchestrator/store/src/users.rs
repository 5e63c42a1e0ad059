//! What is stored for each user: settings, and the account of what the user stores. Contents only.

pub(crate) mod settings;
pub(crate) mod user_storage;
