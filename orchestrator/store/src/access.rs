//! What decides who may do what, and the record of who did: tokens, sessions of browsers, secrets, policies of tools,
//! the audit log. Contents only.

pub(crate) mod audit;
pub(crate) mod mcp;
pub(crate) mod secrets;
pub mod sessions;
pub mod tokens;
pub(crate) mod tool_policy;
