//! The command line as a client of a server: one command group per file. It knows the API alone, and no part of the server.
//! Contents only.

mod account;
mod admin;
mod automation;
mod chat;
mod client;
mod commands;
mod completion;
mod events;
mod exit;
mod ids;
mod input;
mod job;
mod output;
#[cfg(unix)]
mod unix;
mod usage;

pub use account::secret::{SecretCommand, run as run_secret};
pub use client::{
    Client, connection,
    server_checks::{Check, Verdict, checks as server_checks},
    zones::parse_zone_name,
};
pub use commands::{Command, LoginCommand, server_commands};
pub use completion::{CompletionArgs, answer_shell};
pub use exit::{CliError, Exit};
pub use input::one_of;
pub use output::{Column, Format, Output, Paint, TableArgs, View, one_line, table, width};
