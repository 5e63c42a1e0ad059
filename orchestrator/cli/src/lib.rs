//! The command line as a client of a server: one command group per file. It knows the API alone, and no part of the server.
//! Contents only.

mod admin;
mod archive;
mod audit;
mod chat;
mod claims;
mod client;
mod commands;
mod completion;
pub mod connection;
mod contexts;
mod cron;
mod emit;
mod events;
mod exit;
mod gate;
mod ids;
mod input;
mod job;
mod login;
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
mod server_checks;
mod settings;
mod stream;
mod summary;
mod table;
mod text;
mod tool;
#[cfg(unix)]
mod unix;
mod usage;
mod wake;

pub use client::Client;
pub use commands::{COMMANDS, Command, LoginCommand};
pub use completion::{CompletionArgs, answer_shell};
pub use exit::{CliError, Exit};
pub use output::{Format, Output, Paint, width};
pub use secret::{SecretCommand, run as run_secret};
pub use server_checks::{Check, Verdict, checks as server_checks};
pub use table::{Column, TableArgs, View, table};
pub use text::one_line;
