//! HTTP: the edge that every request passes. Contents only.

mod completion;
pub mod extract;
pub mod layers;
pub mod metrics;
pub mod problem;
pub mod public;
pub mod server;
pub mod worker;
