//! The `gantry` binary: the daemon and the command line.

use std::process::ExitCode;

fn main() -> ExitCode {
    orchestrator::main(&orchestrator::Environment::from_process())
}
