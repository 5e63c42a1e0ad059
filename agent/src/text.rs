//! Shortening of texts, and what is added to a person's. Pure.

/// Begins what is added to a person's text.
const CONTEXT: &str = "\n\n<context>\n";
const CONTEXT_END: &str = "\n</context>";

/// A person's text, and what the model is told with it.
pub fn with_context(text: &str, context: &str) -> String {
    format!("{text}{CONTEXT}{context}{CONTEXT_END}")
}

/// A person's text without what was added to it, and that.
pub fn split_context(content: &str) -> (&str, Option<&str>) {
    let added = content.strip_suffix(CONTEXT_END).and_then(|content| content.rsplit_once(CONTEXT));
    added.map_or((content, None), |(text, context)| (text, Some(context)))
}

/// The text, or its head and tail with a note of how much was left out: at most `max_bytes` bytes, cut between
/// characters.
pub fn elide(text: &str, max_bytes: usize) -> String {
    if text.len() <= max_bytes {
        return text.to_owned();
    }
    // The note is longest when everything is left out.
    let room = max_bytes.saturating_sub(note(text.len()).len());
    if room == 0 {
        return text[..text.floor_char_boundary(max_bytes)].to_owned();
    }
    let head = &text[..text.floor_char_boundary(room.div_ceil(2))];
    let tail = &text[text.ceil_char_boundary(text.len() - room / 2)..];
    format!("{head}{}{tail}", note(text.len() - head.len() - tail.len()))
}

fn note(left_out: usize) -> String {
    format!("\n[… {left_out} bytes left out …]\n")
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_elided_text_fits_and_keeps_its_ends(text in "\\PC{0,300}", max in 0_usize..400) {
            let short = elide(&text, max);
            prop_assert!(short.len() <= max.max(text.len().min(max)), "{} of {max}", short.len());
            prop_assert!(short == text || short.len() < text.len() + 40);
            prop_assert!(max < 60 || short.chars().next() == text.chars().next());
            prop_assert!(max < 60 || short.chars().last() == text.chars().last());
        }
    }
}
