//! The `gantry` binary: the daemon and the command line.

use std::process::ExitCode;

/// Each model call brings a whole conversation of small strings and frees it again, from several threads: glibc's allocator
/// spent a fifth of a turn on that.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

fn main() -> ExitCode {
    orchestrator::cli::main(&orchestrator::config::Environment::from_process())
}
