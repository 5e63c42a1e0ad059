//! The `gantry` binary: the daemon and the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestrator::cli::main(&orchestrator::Environment::from_process())
}
