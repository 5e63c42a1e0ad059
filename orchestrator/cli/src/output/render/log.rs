//! The output of a command while it runs: whole lines, the first ones of each call unless in detail.
//!
//! Pure. Never escapes: the caller does.

use std::collections::BTreeMap;

use protocol::{CallId, LogStream};

/// A line without an end is shown when it is this long, in bytes.
const MAX_LINE_BYTES: usize = 8 * 1024;

/// The output of the calls that run, and of what is no call.
#[derive(Debug, Default)]
pub(super) struct LogLines {
    calls: BTreeMap<Option<CallId>, CallLines>,
}

#[derive(Debug, Default)]
struct CallLines {
    /// The beginnings of lines that have not ended: of standard output and standard error.
    unfinished: [String; 2],
    count: usize,
    shown: usize,
}

impl LogLines {
    /// Takes a piece of output and returns the lines to show, at most `max_lines` of a call.
    pub(super) fn add(
        &mut self,
        call: Option<&CallId>,
        stream: LogStream,
        piece: &str,
        max_lines: usize,
    ) -> Vec<String> {
        self.calls.entry(call.cloned()).or_default().add(stream, piece, max_lines)
    }

    /// Returns the lines that have not ended.
    pub(super) fn flush(&mut self, max_lines: usize) -> Vec<String> {
        self.calls.values_mut().flat_map(|lines| lines.flush(max_lines)).collect()
    }

    /// A call has ended. Returns how many lines it had, and how many of them were shown.
    pub(super) fn end_call(&mut self, call: &CallId) -> (usize, usize) {
        let lines = self.calls.remove(&Some(call.clone())).unwrap_or_default();
        (lines.count, lines.shown)
    }
}

impl CallLines {
    fn add(&mut self, stream: LogStream, piece: &str, max_lines: usize) -> Vec<String> {
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

    fn flush(&mut self, max_lines: usize) -> Vec<String> {
        let unfinished = std::mem::take(&mut self.unfinished);
        self.show(unfinished.iter().filter(|line| !line.is_empty()).map(String::as_str), max_lines)
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

    fn call(id: &str) -> CallId {
        CallId(id.to_owned())
    }

    #[test]
    fn lines_are_whole_and_the_first_ones_of_a_call() {
        let mut lines = LogLines::default();
        let mut add = |stream, piece| lines.add(Some(&call("a")), stream, piece, 3);
        assert!(add(LogStream::Stdout, "on").is_empty());
        assert_eq!(add(LogStream::Stderr, "warning\n"), ["warning"]);
        assert_eq!(add(LogStream::Stdout, "e\ntwo\nthree\nfo"), ["one", "two"]);
        assert!(lines.flush(3).is_empty());
        assert_eq!(lines.end_call(&call("a")), (5, 3));
        assert!(lines.add(Some(&call("a")), LogStream::Stdout, "last", 3).is_empty());
        assert_eq!(lines.flush(3), ["last"]);
        assert_eq!(lines.add(None, LogStream::Stdout, &"x".repeat(MAX_LINE_BYTES), 3).len(), 1);
    }

    #[test]
    fn calls_at_the_same_time_are_counted_apart() {
        let mut lines = LogLines::default();
        let mut add = |id, piece| lines.add(Some(&call(id)), LogStream::Stdout, piece, 2);
        assert_eq!(add("a", "1\n2\n3\nfou"), ["1", "2"]);
        assert_eq!(add("b", "one\n"), ["one"]);
        assert!(add("a", "r\n").is_empty());
        assert_eq!(lines.end_call(&call("a")), (4, 2));
        assert_eq!(lines.end_call(&call("b")), (1, 1));
        assert_eq!(lines.end_call(&call("b")), (0, 0));
    }
}
