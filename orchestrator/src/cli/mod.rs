//! The command line: one command group per file. Contents only.

mod admin;
mod args;
mod backup;
mod chat;
mod client;
mod completion;
mod config;
mod cron;
mod doctor;
mod events;
mod exit;
mod gate;
mod input;
mod job;
mod llm;
mod mcp;
mod memory;
mod notification;
mod output;
mod pages;
mod progress;
mod render;
mod routine;
mod rpc;
mod runs;
mod secret;
mod serve;
mod settings;
mod stream;
mod text;
mod token;
mod token_records;
mod tool;
mod usage;
mod wake;

pub use args::main;
