//! Routines: changed and fired for every caller, the waker of their tasks, and the jobs of full-job runs. Contents only.

pub(crate) mod editor;
pub(crate) mod run_jobs;
pub(crate) mod waker;
