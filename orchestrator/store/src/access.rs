//! What decides who may do what, and the record of who did: tokens, secrets, policies of tools, the audit log. Contents only.

pub(crate) mod audit;
pub(crate) mod mcp;
pub(crate) mod secrets;
pub mod tokens;
pub(crate) mod tool_policy;
