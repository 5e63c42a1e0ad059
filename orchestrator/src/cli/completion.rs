//! `gantry completion`: shell completion scripts.

use clap::{Args, CommandFactory};
use clap_complete::Shell;

use super::{
    args::Cli,
    exit::{CliError, Exit},
    output::{Format, Output},
};

/// Arguments of the command.
#[derive(Debug, Clone, Copy, Args)]
pub(super) struct CompletionArgs {
    /// Shell
    shell: Shell,
}

pub(super) fn run(args: CompletionArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut script = Vec::new();
    clap_complete::generate(args.shell, &mut Cli::command(), "gantry", &mut script);
    match output.format {
        Format::Text => output.raw(&script)?,
        Format::Json => {
            let text = String::from_utf8_lossy(&script);
            output.json(&serde_json::json!({"shell": args.shell.to_string(), "script": text}))?;
        }
    }
    Ok(Exit::Success)
}
