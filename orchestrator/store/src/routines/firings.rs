//! Firings: what fires a routine, and whether it becomes a run. Contents only.

pub(super) mod admit;
pub(super) mod claims;
pub(super) mod firing;
pub(super) mod without_run;
