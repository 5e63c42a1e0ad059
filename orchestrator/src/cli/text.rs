//! Text of a job made harmless for a terminal.
//!
//! Owns the rule that nothing a job wrote moves a cursor, sets a title, or turns the reading direction.

/// Control characters become visible ones; line ends and tabs stay.
pub(super) fn escape_control_chars(text: &str) -> String {
    text.replace("\r\n", "\n").chars().map(|c| if matches!(c, '\n' | '\t') { c } else { visible(c) }).collect()
}

/// The same on one line.
pub(super) fn one_line(text: &str) -> String {
    text.replace("\r\n", "\n").chars().map(|c| if matches!(c, '\n' | '\t') { ' ' } else { visible(c) }).collect()
}

/// At most `max` characters, with a mark where it was cut.
pub(super) fn cut(text: &str, max: usize) -> String {
    match text.char_indices().nth(max) {
        Some((end, _)) => format!("{}…", &text[..end]),
        None => text.to_owned(),
    }
}

fn visible(c: char) -> char {
    match c {
        '\0'..='\x1f' => char::from_u32(0x2400 + u32::from(c)).unwrap_or('\u{fffd}'),
        '\x7f' => '\u{2421}',
        // The second set of controls, marks that turn the direction of what follows, and line separators.
        '\u{80}'..='\u{9f}'
        | '\u{61c}'
        | '\u{200e}'
        | '\u{200f}'
        | '\u{2028}'..='\u{202e}'
        | '\u{2066}'..='\u{2069}' => '\u{fffd}',
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
    fn escapes_are_shown_not_obeyed(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(escape_control_chars(text), shown);
    }

    proptest! {
        #[test]
        fn nothing_that_a_terminal_obeys_is_left(text in any::<String>()) {
            prop_assert!(escape_control_chars(&text).chars().all(|c| !c.is_control() || matches!(c, '\n' | '\t')));
            prop_assert!(one_line(&text).chars().all(|c| !c.is_control()));
        }
    }
}
