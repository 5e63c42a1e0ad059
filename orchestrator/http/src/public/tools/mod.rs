//! The tools of a user, and the decisions about them. Contents only.

pub(super) mod list;
pub(super) mod permission;
pub(super) mod policy;
