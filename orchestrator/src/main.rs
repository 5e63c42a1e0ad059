//! The `gantry` binary: the daemon and the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestrator::cli::main(&orchestrator::config::Environment::from_process())
}
