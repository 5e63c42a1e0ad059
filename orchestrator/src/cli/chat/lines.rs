//! The lines of standard input.

use std::io::{BufRead as _, IsTerminal as _};

use tokio::sync::mpsc;

/// Reads lines while others wait for something else.
pub(super) struct Lines {
    lines: mpsc::Receiver<String>,
}

impl Lines {
    /// Starts to read. In a separate thread, because the process must be able to end while a read waits.
    pub(super) fn of_standard_input() -> Self {
        let (sender, lines) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in std::io::stdin().lock().lines().map_while(Result::ok) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<String> {
        self.lines.recv().await
    }
}

/// Whether a person types the lines.
pub(super) fn are_typed() -> bool {
    std::io::stdin().is_terminal()
}
