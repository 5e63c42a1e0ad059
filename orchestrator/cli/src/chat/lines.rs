//! The lines of standard input, and which errors concern only one of them.

use std::io::{self, BufRead, IsTerminal as _};

use protocol::{ErrorCode, GateDecision};
use tokio::sync::mpsc;

use crate::exit::CliError;

#[derive(Debug)]
pub(super) enum Line {
    Text(String),
    /// The line with this number is not UTF-8.
    NotUtf8(u64),
    /// The line with this number cannot be read, nor can those after it.
    Failed(u64, io::Error),
}

/// Reads lines while others wait for something else.
pub(super) struct Lines {
    lines: mpsc::Receiver<Line>,
}

impl Lines {
    /// Starts to read. In a separate thread, because the process must be able to end while a read waits.
    pub(super) fn of_standard_input() -> Self {
        let (sender, lines) = mpsc::channel(1);
        std::thread::spawn(move || {
            for line in lines_of(std::io::stdin().lock()) {
                if sender.blocking_send(line).is_err() {
                    return;
                }
            }
        });
        Self { lines }
    }

    /// The next line; `None` at the end.
    pub(super) async fn next(&mut self) -> Option<Line> {
        self.lines.recv().await
    }
}

/// The lines up to the end, or to the first that cannot be read.
fn lines_of(input: impl BufRead) -> impl Iterator<Item = Line> {
    let mut is_over = false;
    input.split(b'\n').zip(1..).map_while(move |(line, number)| {
        if is_over {
            return None;
        }
        let mut line = match line {
            Ok(line) => line,
            Err(error) => {
                is_over = true;
                return Some(Line::Failed(number, error));
            }
        };
        line.pop_if(|last| *last == b'\r');
        Some(String::from_utf8(line).map_or(Line::NotUtf8(number), Line::Text))
    })
}

/// Whether a person types the lines.
pub(super) fn are_typed() -> bool {
    std::io::stdin().is_terminal()
}

/// The decision about a call that a line is. `None`: it is none.
pub(super) fn decision_of(line: &str) -> Option<GateDecision> {
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Some(GateDecision::Approve),
        "n" | "no" => Some(GateDecision::Deny),
        "a" | "always" => Some(GateDecision::Always),
        _ => None,
    }
}

/// Whether the server refuses this line, and may accept another one.
pub(super) fn is_about_one_line(error: &CliError) -> bool {
    let CliError::Refused(problem) = error else { return false };
    problem.code == ErrorCode::HookDenied || matches!(problem.status, 400 | 409 | 413 | 422 | 429)
}

#[cfg(test)]
mod tests {
    use std::io::{BufReader, Read};

    use super::*;

    struct Broken;

    impl Read for Broken {
        fn read(&mut self, _: &mut [u8]) -> io::Result<usize> {
            Err(io::Error::other("broken"))
        }
    }

    fn read(input: impl Read) -> Vec<String> {
        lines_of(BufReader::new(input)).map(|line| format!("{line:?}")).collect()
    }

    #[test]
    fn a_line_that_is_no_text_is_named_and_the_others_are_read() {
        let lines = read(&b"one\r\n\n\xff\xfe\nlast"[..]);
        assert_eq!(lines, [r#"Text("one")"#, r#"Text("")"#, "NotUtf8(3)", r#"Text("last")"#]);
        let lines = read(b"one\n".chain(Broken));
        assert_eq!(lines.len(), 2, "{lines:?}");
        assert!(lines[1].starts_with("Failed(2"), "{lines:?}");
    }
}
