//! The orchestrator: takes jobs, makes containers match the database, holds the keys to the models.
//!
//! Floors, an import never climbs: `app` · `http`, `cli` · `dispatch`, `tools` · `llm`, `auth`, `workspace` · `store` · `domain`,
//! `engine` · then the crates `agent` and `protocol`.

pub mod app;
pub mod auth;
pub mod cli;
pub mod clock;
pub mod config;
pub mod dispatch;
pub mod domain;
pub mod engine;
pub mod failpoint;
pub mod http;
pub mod llm;
pub mod rate_limit;
pub mod store;
pub mod telemetry;
pub mod tools;
pub mod workspace;
