//! HTTP: the edge that every request passes. Contents only.

pub mod extract;
pub mod layers;
pub mod problem;
