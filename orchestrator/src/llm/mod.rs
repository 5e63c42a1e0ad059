//! The gateway: the only way to a model. Contents only.

pub mod script;
