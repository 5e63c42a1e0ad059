//! What moves on the last line of a terminal: the progress of a transfer, and the activity of something that is
//! followed.
//!
//! The only user of indicatif. Draws on standard error, and only if that is a terminal.

use std::{io::IsTerminal as _, time::Duration};

use indicatif::{ProgressBar, ProgressDrawTarget, ProgressStyle};

use super::{Format, Output, text::truncate};

const SPINNER_INTERVAL: Duration = Duration::from_millis(120);
/// Redraws per second of a transfer.
const REDRAWS_PER_SECOND: u8 = 8;
const SIZED: &str = "{bar:30} {binary_bytes} of {binary_total_bytes}, {percent} %, {binary_bytes_per_sec}, {eta} left";
const UNSIZED: &str = "{spinner} {binary_bytes}, {binary_bytes_per_sec}";
const ACTIVITY: &str = "{spinner} {msg}";
/// Columns of a line that its text does not use: the spinner, the mark of a cut, and the `^C` that a terminal prints
/// for Ctrl-C, which must not begin a new line.
const RESERVED_COLUMNS: usize = 7;

fn style(template: &str) -> ProgressStyle {
    ProgressStyle::with_template(template).unwrap_or_else(|_| ProgressStyle::default_bar())
}

/// The progress of one transfer.
pub(crate) struct Progress {
    bar: ProgressBar,
}

impl Progress {
    /// Progress of `total` bytes, if known.
    pub(crate) fn new(total: Option<u64>, format: Format) -> Self {
        let target = match format {
            Format::Text => ProgressDrawTarget::stderr_with_hz(REDRAWS_PER_SECOND),
            Format::Json => ProgressDrawTarget::hidden(),
        };
        let bar = ProgressBar::with_draw_target(total, target);
        bar.set_style(style(if total.is_some() { SIZED } else { UNSIZED }));
        Self { bar }
    }

    /// Adds transferred bytes.
    pub(crate) fn add(&mut self, bytes: usize) {
        self.bar.inc(bytes as u64);
    }
}

impl Drop for Progress {
    fn drop(&mut self) {
        self.bar.finish_and_clear();
    }
}

/// A line with a spinner below the output, which is redrawn until it is dropped.
pub(crate) struct LiveLine {
    /// `None`: standard error is not a terminal, or the output is JSON.
    bar: Option<ProgressBar>,
    max_chars: usize,
}

impl LiveLine {
    /// The line of a command with this output.
    pub(crate) fn new(output: &Output) -> Self {
        if output.format == Format::Json || !std::io::stderr().is_terminal() {
            return Self { bar: None, max_chars: 0 };
        }
        let bar = ProgressBar::with_draw_target(None, ProgressDrawTarget::stderr());
        bar.set_style(style(ACTIVITY));
        bar.enable_steady_tick(SPINNER_INTERVAL);
        let max_chars = output.width.map_or(usize::MAX, |width| width.saturating_sub(RESERVED_COLUMNS));
        Self { bar: Some(bar), max_chars }
    }

    /// Whether there is a line to see.
    pub(crate) const fn is_visible(&self) -> bool {
        self.bar.is_some()
    }

    /// Replaces the text, which must be escaped. It is cut at the width of the terminal.
    pub(crate) fn set(&self, text: &str) {
        if let Some(bar) = &self.bar {
            bar.set_message(truncate(text, self.max_chars));
        }
    }

    /// Prints something above the line.
    pub(crate) fn above<T>(&self, print: impl FnOnce() -> T) -> T {
        match &self.bar {
            Some(bar) => bar.suspend(print),
            None => print(),
        }
    }
}

impl Drop for LiveLine {
    fn drop(&mut self) {
        if let Some(bar) = &self.bar {
            bar.finish_and_clear();
        }
    }
}
