//! The commands that work on the installation, on the server's machine: the daemon, tokens, backups, keys, checks.

mod backup;
mod config;
mod dashboard;
mod doctor;
mod llm;
mod rotate_key;
mod serve;
mod token;
mod token_records;

use base::Environment;
use clap::Subcommand;
use cli::{CliError, Exit, Output};

pub use self::{
    config::{ConfigArgs, run as run_config},
    rotate_key::{RotateKeyArgs, run as rotate_key},
    serve::{ServeArgs, run as serve},
};

#[derive(Debug, Subcommand)]
pub enum Command {
    /// Create, list and revoke access tokens (on the server's machine)
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Back up the database while the server runs (on the server's machine)
    Backup(backup::BackupArgs),
    /// Serve a scripted model over HTTP
    #[command(subcommand)]
    Llm(llm::LlmCommand),
    /// Print a one-time link to the dashboard
    Dashboard(dashboard::DashboardArgs),
    /// Check the installation and show how to fix problems
    Doctor(doctor::DoctorArgs),
}

impl Command {
    pub async fn run(self, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
        match self {
            Self::Token(command) => token::run(command, environment, output).await,
            Self::Backup(args) => backup::run(args, environment, output).await,
            Self::Llm(command) => llm::run(command, output).await,
            Self::Dashboard(args) => dashboard::run(args, environment, output).await,
            Self::Doctor(args) => doctor::run(args, environment, output).await,
        }
    }
}

/// A log for commands: warnings and errors, unless the environment asks for more.
pub fn init_log(environment: &Environment) -> Result<(), CliError> {
    let settings = ::config::log_for_commands(environment).map_err(configuration)?;
    telemetry::init(&settings, None).map_err(configuration)
}

fn configuration(error: impl std::fmt::Display) -> CliError {
    CliError::Configuration(error.to_string())
}
