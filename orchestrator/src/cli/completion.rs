//! `gantry completion`: scripts for shells.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{
    args::Cli,
    exit::{CliError, Exit},
    output::Output,
};

/// Its arguments.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct CompletionArgs {
    /// The shell
    shell: Shell,
}

pub(super) fn run(args: CompletionArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gantry", &mut script);
    output.raw(&script)?;
    Ok(Exit::Fine)
}
