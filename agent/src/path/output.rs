//! What a tool gave, as text that is safe to show: no escape sequences, no control characters, never too long. Pure.

use std::sync::LazyLock;

use regex::Regex;
use serde_json::Value;

/// Longest output that leaves the guarded path, in bytes, the note about the cut included.
pub const MAX_OUTPUT_BYTES: usize = 100_000;

/// Room for the note that says how much was cut.
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
    Regex::new(&pattern.join("|")).expect("a fixed pattern")
});

/// JSON compactly, text as it is; cleaned and capped. True: it was cut.
pub(super) fn present(content: &Value) -> (String, bool) {
    match content {
        Value::String(text) => clean(text),
        // A value's own display is its compact JSON.
        json => clean(&json.to_string()),
    }
}

/// Text cleaned and capped. True: it was cut.
pub(super) fn clean(text: &str) -> (String, bool) {
    let kept = sanitise(text);
    if kept.len() <= MAX_OUTPUT_BYTES {
        return (kept, false);
    }
    let all = kept.len();
    let mut cut = kept;
    cut.truncate(cut.floor_char_boundary(MAX_OUTPUT_BYTES - NOTE_BYTES));
    let note = format!("\n[cut here: {all} bytes in all]");
    cut.push_str(&note);
    (cut, true)
}

/// Without escape sequences and control characters; line breaks and tabs stay.
fn sanitise(text: &str) -> String {
    let hidden = |c: char| c.is_control() && c != '\n' && c != '\t';
    if !text.contains(hidden) {
        return text.to_owned();
    }
    let mut kept = ESCAPES.replace_all(text, "").into_owned();
    kept.retain(|c| !hidden(c));
    kept
}
