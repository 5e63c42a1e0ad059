//! Escapes text from jobs for terminals.
//!
//! Text from a job must not move the cursor, set a title or change the text direction.

use protocol::is_invisible;

/// Replaces control characters and invisible ones by visible ones, except newlines and tabs.
pub(crate) fn escape_control_chars(text: &str) -> String {
    text.replace("\r\n", "\n").chars().map(|c| if matches!(c, '\n' | '\t') { c } else { visible(c) }).collect()
}

/// Like `escape_control_chars`, on one line.
pub fn one_line(text: &str) -> String {
    text.replace("\r\n", "\n").chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { visible(c) }).collect()
}

/// Truncates to `max` characters and marks the cut.
pub(crate) fn truncate(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

/// Breaks a text at spaces into lines of at most `width` columns, which begin after `indent` of them. `None`: one line.
pub(crate) fn wrapped(text: &str, indent: usize, width: Option<usize>) -> String {
    let Some(width) = width.map(|width| width.saturating_sub(indent)) else { return text.to_owned() };
    let mut lines = vec![String::new()];
    for word in text.split(' ') {
        match lines.last_mut() {
            Some(line) if line.is_empty() || line.chars().count() + 1 + word.chars().count() <= width => {
                if !line.is_empty() {
                    line.push(' ');
                }
                line.push_str(word);
            }
            _ => lines.push(word.to_owned()),
        }
    }
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

/// The lines of a text, of which those that are too long are [`wrapped`]. They keep their own indentation.
pub(crate) fn wrapped_lines(text: &str, indent: usize, width: Option<usize>) -> String {
    let wrap = |line: &str| {
        if width.is_none_or(|width| indent + line.chars().count() <= width) {
            return line.to_owned();
        }
        let spaces = line.len() - line.trim_start_matches(' ').len();
        format!("{}{}", &line[..spaces], wrapped(&line[spaces..], indent + spaces, width))
    };
    let lines: Vec<_> = text.split('\n').map(wrap).collect();
    lines.join(&format!("\n{}", " ".repeat(indent)))
}

fn visible(c: char) -> char {
    match c {
        // Scripts and emoji need these joiners.
        '\u{200c}' | '\u{200d}' => c,
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        // C1 controls and line separators.
        '\u{80}'..='\u{9f}' | '\u{2028}' | '\u{2029}' => '\u{fffd}',
        // Bidirectional marks, and what a person who approves a call would not see.
        c if is_invisible(c) => '\u{fffd}',
        other => other,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("plain\ttext\nå", "plain\ttext\nå")]
    #[case("a\r\nb\rc", "a\nb␍c")]
    #[case("\x1b[2J\x1b]0;title\x07", "␛[2J␛]0;title␇")]
    #[case("\u{9b}31m\u{202e}txt", "\u{fffd}31m\u{fffd}txt")]
    #[case("a\u{200b}b\u{e0041}c 👩\u{200d}💻\u{fe0f}", "a\u{fffd}b\u{fffd}c 👩\u{200d}💻\u{fe0f}")]
    fn control_characters_become_visible(#[case] text: &str, #[case] escaped: &str) {
        assert_eq!(escape_control_chars(text), escaped);
    }

    #[rstest]
    #[case("one two three", None, "one two three")]
    #[case("one two three", Some(9), "one two\n  three")]
    #[case("one two three", Some(8), "one\n  two\n  three")]
    #[case("extraordinary", Some(4), "extraordinary")]
    #[case("", Some(4), "")]
    fn long_texts_are_broken_at_spaces(#[case] text: &str, #[case] width: Option<usize>, #[case] wanted: &str) {
        assert_eq!(wrapped(text, 2, width), wanted);
    }

    #[test]
    fn the_lines_of_a_text_are_broken_separately() {
        assert_eq!(wrapped_lines("one two\n  three\n\nfour", 2, Some(6)), "one\n  two\n    three\n  \n  four");
        assert_eq!(wrapped_lines("  a  b\n  one two", 2, Some(8)), "  a  b\n    one\n    two");
        assert_eq!(wrapped_lines("one two\nthree", 7, None), "one two\n       three");
    }

    proptest! {
        #[test]
        fn no_control_characters_remain(text in any::<String>()) {
            prop_assert!(escape_control_chars(&text).chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
            prop_assert!(one_line(&text).chars().all(|c| !c.is_control()));
        }
    }
}
