//! The orchestrator: accepts jobs, makes containers match the database, and holds the credentials of the model providers.
//!
//! Layers, highest first; a module imports only from lower layers: `cli` · `app` · `http` · `routine` · `chat`, `host_jobs` · `tools` ·
//! `mcp` · `dispatch` · `hooks` · `llm`, `auth`, `egress`, `workspace` · `secrets` · `store` · `domain`, `engine` · the crates `agent` and
//! `protocol`. `clock`, `config`, `digest`, `failpoint`, `key_file`, `per_user_semaphore`, `rate_limit` and `telemetry` are available to all.

pub mod app;
pub mod auth;
pub mod chat;
pub mod cli;
pub mod clock;
pub mod config;
pub mod digest;
pub mod dispatch;
pub mod domain;
pub mod egress;
pub mod engine;
pub mod failpoint;
pub mod hooks;
pub mod host_jobs;
pub mod http;
pub mod key_file;
pub mod llm;
pub mod mcp;
pub mod per_user_semaphore;
pub mod rate_limit;
pub mod routine;
pub mod secrets;
pub mod store;
pub mod telemetry;
pub mod tools;
pub mod workspace;
