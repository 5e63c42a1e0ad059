//! Progress of a transfer, shown on the last line of a terminal.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use super::output::Format;

/// Update interval. Faster transfers show no progress.
const UPDATE_INTERVAL: Duration = Duration::from_millis(250);
const MB: u64 = 1024 * 1024;

/// The progress of one transfer.
pub(super) struct Progress {
    total: Option<u64>,
    done: u64,
    last_shown: Option<Instant>,
    is_visible: bool,
}

impl Progress {
    /// Progress of `total` bytes, if known.
    pub(super) fn new(total: Option<u64>, format: Format) -> Self {
        let seen = format == Format::Text && std::io::stderr().is_terminal();
        Self { total, done: 0, last_shown: seen.then(Instant::now), is_visible: false }
    }

    /// Adds transferred bytes.
    pub(super) fn add(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.last_shown.is_some_and(|at| at.elapsed() >= UPDATE_INTERVAL) {
            // Standard error may be closed.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", self.line());
            (self.last_shown, self.is_visible) = (Some(Instant::now()), true);
        }
    }

    fn line(&self) -> String {
        match self.total.filter(|total| *total > 0) {
            Some(total) => {
                let percent = self.done.min(total).saturating_mul(100) / total;
                format!("{} of {} MiB, {percent} %", self.done / MB, total / MB)
            }
            None => format!("{} MiB", self.done / MB),
        }
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        if self.is_visible {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn progress_shows_the_amount_and_the_total() {
        let at = |total, done| Progress { total, done, last_shown: None, is_visible: false }.line();
        assert_eq!(at(Some(10 * MB), 5 * MB), "5 of 10 MiB, 50 %");
        assert_eq!(at(None, 3 * MB), "3 MiB");
        assert_eq!(at(Some(0), 0), "0 MiB");
        assert_eq!(at(Some(MB), 2 * MB), "2 of 1 MiB, 100 %");
    }
}
