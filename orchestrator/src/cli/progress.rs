//! How far something long has come, on a terminal's last line and nowhere else.

use std::{
    io::{IsTerminal as _, Write as _},
    time::{Duration, Instant},
};

use super::output::Format;

/// What is done sooner needs no telling; and no oftener than this.
const EVERY: Duration = Duration::from_millis(250);
const MB: u64 = 1024 * 1024;

/// One thing's progress.
pub(super) struct Progress {
    total: Option<u64>,
    done: u64,
    last_shown: Option<Instant>,
    shown: bool,
}

impl Progress {
    /// Of so many bytes, if that is known.
    pub(super) fn of(total: Option<u64>, format: Format) -> Self {
        let seen = format == Format::Text && std::io::stderr().is_terminal();
        Self { total, done: 0, last_shown: seen.then(Instant::now), shown: false }
    }

    /// So many bytes more.
    pub(super) fn moved(&mut self, bytes: usize) {
        self.done += bytes as u64;
        if self.last_shown.is_some_and(|at| at.elapsed() >= EVERY) {
            // Standard error may be closed.
            let _ = write!(std::io::stderr(), "\r{}\x1b[K", self.line());
            (self.last_shown, self.shown) = (Some(Instant::now()), true);
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
        if self.shown {
            let _ = write!(std::io::stderr(), "\r\x1b[K");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn it_says_how_much_of_how_much() {
        let at = |total, done| Progress { total, done, last_shown: None, shown: false }.line();
        assert_eq!(at(Some(10 * MB), 5 * MB), "5 of 10 MiB, 50 %");
        assert_eq!(at(None, 3 * MB), "3 MiB");
        assert_eq!(at(Some(0), 0), "0 MiB");
        assert_eq!(at(Some(MB), 2 * MB), "2 of 1 MiB, 100 %");
    }
}
