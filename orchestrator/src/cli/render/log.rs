//! The output of a command while it runs: whole lines, the first ones of each call unless in detail.
//!
//! Pure. Never escapes: the caller does.

use protocol::LogStream;

/// A line without an end is shown when it is this long, in bytes.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// The lines that were shown of the calls that run.
#[derive(Debug, Default)]
pub(super) struct LogLines {
    /// The beginnings of lines that have not ended: of standard output and standard error.
    unfinished: [String; 2],
    /// Lines since the last call ended.
    count: usize,
    shown: usize,
}

impl LogLines {
    /// Takes a piece of output and returns the lines to show, at most `max_lines` of a call.
    pub(super) fn add(&mut self, stream: LogStream, piece: &str, max_lines: usize) -> Vec<String> {
        let unfinished = &mut self.unfinished[usize::from(stream == LogStream::Stderr)];
        unfinished.push_str(piece);
        let end = match unfinished.rfind('\n') {
            Some(end) => end + 1,
            None if unfinished.len() >= MAX_LINE_BYTES => unfinished.len(),
            None => return Vec::new(),
        };
        let rest = unfinished.split_off(end);
        let whole = std::mem::replace(unfinished, rest);
        self.show(whole.lines(), max_lines)
    }

    /// Returns the lines that have not ended.
    pub(super) fn flush(&mut self, max_lines: usize) -> Vec<String> {
        let unfinished = std::mem::take(&mut self.unfinished);
        self.show(unfinished.iter().filter(|line| !line.is_empty()).map(String::as_str), max_lines)
    }

    /// A call has ended. Returns how many lines there were since the last one, and how many of them were shown.
    pub(super) fn end_call(&mut self) -> (usize, usize) {
        (std::mem::take(&mut self.count), std::mem::take(&mut self.shown))
    }

    fn show<'a>(&mut self, lines: impl Iterator<Item = &'a str>, max_lines: usize) -> Vec<String> {
        let mut new = Vec::new();
        for line in lines {
            self.count += 1;
            if self.shown < max_lines {
                self.shown += 1;
                new.push(line.to_owned());
            }
        }
        new
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_are_whole_and_the_first_ones_of_a_call() {
        let mut lines = LogLines::default();
        let mut add = |stream, piece| lines.add(stream, piece, 3);
        assert!(add(LogStream::Stdout, "on").is_empty());
        assert_eq!(add(LogStream::Stderr, "warning\n"), ["warning"]);
        assert_eq!(add(LogStream::Stdout, "e\ntwo\nthree\nfo"), ["one", "two"]);
        assert!(lines.flush(3).is_empty());
        assert_eq!(lines.end_call(), (5, 3));
        assert!(lines.add(LogStream::Stdout, "last", 3).is_empty());
        assert_eq!(lines.flush(3), ["last"]);
        assert_eq!(lines.add(LogStream::Stdout, &"x".repeat(MAX_LINE_BYTES), 3).len(), 1);
    }
}
