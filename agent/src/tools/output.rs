//! Tool output as text that is safe to show: no escape sequences, no control characters, bounded. Pure.

use std::{borrow::Cow, fmt::Write as _, sync::LazyLock};

use regex::Regex;
use serde_json::Value;

use crate::safety::visible;

/// Maximum length of a call's output in bytes, the note about the cut included.
pub const MAX_OUTPUT_BYTES: usize = 100_000;

/// Maximum length of a text that is scanned for what must not be shown, in bytes: ten times what is kept, since
/// cleaning may shorten a text. What follows is dropped unread, so that the work for an output of any size is bounded.
const MAX_SCANNED_BYTES: usize = 10 * MAX_OUTPUT_BYTES;

/// Length from which the beginning of an escape sequence is taken for text, in bytes.
const MAX_ESCAPE_BYTES: usize = 256;

/// Space reserved for the note that tells how much was cut.
const NOTE_BYTES: usize = 64;

/// Terminal escape sequences: CSI, OSC, the other string sequences, two-character ones, and CSI as one C1 character.
/// Every class stops at the next escape, so a search is linear in the text.
static ESCAPES: LazyLock<Regex> = LazyLock::new(|| {
    let pattern = [
        r"\x1b\[[0-?]*[ -/]*[@-~]",
        r"\x1b\][^\x07\x1b]*(?:\x07|\x1b\\)",
        r"\x1b[PX^_][^\x1b]*\x1b\\",
        r"\x1b[ -/]*[0-OQ-WYZ\\`-~]",
        r"\u{9b}[0-?]*[ -/]*[@-~]",
    ];
    Regex::new(&pattern.join("|")).expect("a constant pattern")
});

/// Renders a tool's content: text as it is, other JSON in its compact form.
pub(super) fn render(content: Value) -> String {
    match content {
        Value::String(text) => text,
        // The display of a value is its compact JSON.
        json => json.to_string(),
    }
}

/// Removes escape sequences, control characters and invisible characters. Line breaks and tabs stay. `false`: the text
/// was too long to be scanned, and only its beginning is returned.
pub(super) fn sanitize(mut text: String) -> (String, bool) {
    let is_complete = text.len() <= MAX_SCANNED_BYTES;
    text.truncate(text.floor_char_boundary(MAX_SCANNED_BYTES));
    if text.contains(is_hidden) {
        text = overwrite_lines(&ESCAPES.replace_all(&text, "")).into_owned();
        text.retain(|c| !is_hidden(c));
    }
    if let Cow::Owned(without) = visible(&text) {
        text = without;
    }
    (text, is_complete)
}

/// Cleans a part of an output that continues, for display, like the output of a finished call.
pub fn sanitize_piece(text: String) -> String {
    sanitize(text).0
}

/// Whether a text that begins with an escape character could be the beginning of an escape sequence that is not
/// complete.
pub fn is_incomplete_escape(text: &str) -> bool {
    text.len() <= MAX_ESCAPE_BYTES && ESCAPES.find(text).is_none_or(|found| found.start() > 0)
}

/// Caps a text that had `total` bytes as the tool gave it. `true`: it was cut, here or before.
pub(super) fn cap(mut text: String, total: usize, is_complete: bool) -> (String, bool) {
    if text.len() <= MAX_OUTPUT_BYTES && is_complete {
        return (text, false);
    }
    text.truncate(text.floor_char_boundary(MAX_OUTPUT_BYTES - NOTE_BYTES));
    // Writing into a string cannot fail.
    let _ = write!(text, "\n[truncated: {total} bytes in total]");
    (text, true)
}

/// Control characters.
fn is_hidden(c: char) -> bool {
    c.is_control() && c != '\n' && c != '\t'
}

/// Treats a carriage return as a terminal does: what follows it replaces the line, as progress displays rely on.
fn overwrite_lines(text: &str) -> Cow<'_, str> {
    if !text.contains('\r') {
        return Cow::Borrowed(text);
    }
    let last_version = |line: &str| {
        let (line, end) = line.strip_suffix('\n').map_or((line, ""), |line| (line, "\n"));
        let visible = line.rsplit('\r').find(|version| !version.is_empty()).unwrap_or_default();
        format!("{visible}{end}")
    };
    Cow::Owned(text.split_inclusive('\n').map(last_version).collect())
}
