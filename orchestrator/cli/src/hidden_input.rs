//! A line of input that the terminal does not show.

use std::io::{self, BufRead, Write};

use rustix::termios::{LocalModes, OptionalActions, Termios, tcgetattr, tcsetattr};
use secrecy::zeroize::Zeroizing;

use super::exit::CliError;

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
