//! Stories of the real worker binary against an orchestrator that a test scripts.

mod orchestrator;
mod stories;
