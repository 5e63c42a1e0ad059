//! All that the command line uses and only Unix has: terminals, permissions of files, signals, and handles on directories.

mod unpack;

use std::{
    fs,
    io::{self, BufRead, Write},
    os::unix::fs::{DirBuilderExt as _, OpenOptionsExt as _, PermissionsExt as _},
    path::Path,
};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcgetwinsize, tcsetattr};
use secrecy::zeroize::Zeroizing;
use tokio::signal::unix::{Signal, SignalKind, signal};

use super::exit::CliError;
pub(super) use unpack::unpack_directory;

/// Permissions that other users have.
const OTHERS: u32 = 0o077;

/// The width in columns of the terminal on standard output.
pub(super) fn terminal_width() -> Option<usize> {
    tcgetwinsize(io::stdout()).ok().map(|size| usize::from(size.ws_col))
}

/// Creates a file that must not exist yet and that only this user can read.
pub(super) fn create_private_file(path: &Path) -> io::Result<fs::File> {
    fs::OpenOptions::new().write(true).create_new(true).mode(0o600).open(path)
}

/// Creates a directory that only this user can enter, with those above it, unless it exists.
pub(super) fn create_private_dir(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)
}

/// Whether other users can read or change a file.
pub(super) fn is_shared(path: &Path) -> io::Result<bool> {
    Ok(fs::metadata(path)?.permissions().mode() & OTHERS != 0)
}

/// Receives each SIGINT from now on, which then no longer ends the process.
pub(super) fn interrupts() -> Result<Signal, CliError> {
    signal(SignalKind::interrupt()).map_err(|error| CliError::failed("cannot listen for SIGINT", error))
}

/// Prints a prompt on standard error and reads a line from the terminal on standard input, without showing it.
pub(super) fn hidden_line(prompt: &str) -> Result<Zeroizing<String>, CliError> {
    // Standard error may be closed.
    let _ = write!(io::stderr(), "{prompt}");
    let mut line = Zeroizing::new(String::new());
    {
        let _hidden = HiddenInput::new()?;
        io::stdin().lock().read_line(&mut line).map_err(|error| CliError::failed("cannot read the terminal", error))?;
    }
    let _ = writeln!(io::stderr());
    Ok(line)
}

/// The terminal does not show what is typed until this is dropped.
struct HiddenInput {
    before: Termios,
}

impl HiddenInput {
    fn new() -> Result<Self, CliError> {
        let failed = |error| CliError::failed("cannot hide the input on this terminal", error);
        let before = tcgetattr(io::stdin()).map_err(failed)?;
        let mut hidden = before.clone();
        hidden.local_modes.remove(LocalModes::ECHO);
        tcsetattr(io::stdin(), OptionalActions::Flush, &hidden).map_err(failed)?;
        Ok(Self { before })
    }
}

impl Drop for HiddenInput {
    fn drop(&mut self) {
        // The terminal may be gone.
        let _ = tcsetattr(io::stdin(), OptionalActions::Flush, &self.before);
    }
}
