//! Line endings of texts: lines are compared and edited without them, and are written with them.
//!
//! Pure. A line ends with `\n` or `\r\n`; a `\r` elsewhere is a part of the line.

/// A line of a text.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct TextLine<'a> {
    /// The line without its ending.
    pub(crate) content: &'a str,
    /// `\n` or `\r\n`. Empty for a new line, and for a last one that has none.
    ending: &'a str,
    /// Whether an edit has put it there.
    pub(crate) is_edited: bool,
}

impl<'a> TextLine<'a> {
    /// A line that gets the ending of the text that it is inserted into.
    pub(crate) fn new(content: &'a str) -> Self {
        Self { content, ending: "", is_edited: true }
    }

    /// The line with the ending of the one that it replaces, if that one is in the text.
    pub(crate) fn in_place_of(self, replaced: Option<&Self>) -> Self {
        Self { ending: replaced.map_or("", |replaced| replaced.ending), ..self }
    }

    /// The same line, as one that an edit has put there.
    pub(crate) fn edited(self) -> Self {
        Self { is_edited: true, ..self }
    }

    fn split(line: &'a str) -> Self {
        let content = without_ending(line);
        Self { content, ending: &line[content.len()..], is_edited: false }
    }
}

/// A line without its ending.
pub(crate) fn without_ending(line: &str) -> &str {
    line.strip_suffix('\n').map_or(line, |line| line.strip_suffix('\r').unwrap_or(line))
}

/// A text as lines that can be replaced.
#[derive(Debug)]
pub(crate) struct TextLines<'a> {
    pub(crate) lines: Vec<TextLine<'a>>,
    /// Whether the last line has an ending.
    pub(crate) has_final_newline: bool,
    /// The ending of new lines: the one that most lines of the text have, `\n` in doubt.
    new_ending: &'static str,
}

impl<'a> TextLines<'a> {
    pub(crate) fn split(text: &'a str) -> Self {
        let lines: Vec<_> = text.split_inclusive('\n').map(TextLine::split).collect();
        let crlf = lines.iter().filter(|line| line.ending == "\r\n").count();
        let lf = lines.iter().filter(|line| line.ending == "\n").count();
        let new_ending = if crlf > lf { "\r\n" } else { "\n" };
        Self { lines, has_final_newline: text.is_empty() || text.ends_with('\n'), new_ending }
    }

    /// The text. Lines that were in the text before keep their endings.
    pub(crate) fn join(&self) -> String {
        let mut text = String::new();
        for (index, line) in self.lines.iter().enumerate() {
            text.push_str(line.content);
            if index + 1 < self.lines.len() || self.has_final_newline {
                text.push_str(if line.ending.is_empty() { self.new_ending } else { line.ending });
            }
        }
        text
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::unix("a\nb\n", "a\nb\nnew\n")]
    #[case::windows("a\r\nb\r\n", "a\r\nb\r\nnew\r\n")]
    #[case::mostly_windows("a\r\nb\n\r\n", "a\r\nb\n\r\nnew\r\n")]
    #[case::as_many_of_each("a\r\nb\n", "a\r\nb\nnew\n")]
    #[case::without_final_newline("a\r\nb", "a\r\nb\r\nnew")]
    #[case::inner_carriage_return("a\rb\n", "a\rb\nnew\n")]
    #[case::empty("", "new\n")]
    fn a_new_line_gets_the_ending_of_most_lines(#[case] text: &str, #[case] expected: &str) {
        let mut text = TextLines::split(text);
        text.lines.push(TextLine::new("new"));
        assert_eq!(text.join(), expected);
    }

    proptest! {
        #[test]
        fn a_text_without_changes_stays_as_it_is(text in "([a\r]{0,3}(\r\n|\n|)){0,6}") {
            prop_assert_eq!(TextLines::split(&text).join(), text);
        }
    }
}
