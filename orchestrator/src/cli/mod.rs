//! The command line: one command group per file. Contents only.

mod args;
mod backup;
mod client;
mod completion;
mod config;
mod doctor;
mod exit;
mod job;
mod llm;
mod memory;
mod output;
mod progress;
mod render;
mod serve;
mod stream;
mod text;
mod token;
mod token_records;
mod usage;

pub use args::main;
