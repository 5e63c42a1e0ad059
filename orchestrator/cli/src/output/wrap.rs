//! Breaks the long lines of a text that arrives in pieces.
//!
//! Never breaks a word, nor a line of fenced code.

/// Characters of the lines that fenced code begins and ends with, and how many of one such a line has at least.
const FENCES: [char; 2] = ['`', '~'];
const MIN_FENCE: usize = 3;

/// The lines of a text, of which those that are too long are broken at spaces. The rest of a line keeps its indentation. The
/// last word is held back until it is known where it ends.
pub(crate) struct Wrap {
    /// Columns of a line. `None`: unlimited.
    width: Option<usize>,
    /// Spaces that the line begins with.
    indent: usize,
    /// Columns of the line up to now, without the spaces and the word that are held back.
    column: usize,
    spaces: usize,
    word: String,
    /// Nothing but spaces is in the line.
    is_start: bool,
    /// What the line of the code that the text is in began with.
    fence: Option<String>,
}

impl Wrap {
    pub(crate) const fn new(width: Option<usize>) -> Self {
        Self { width, indent: 0, column: 0, spaces: 0, word: String::new(), is_start: true, fence: None }
    }

    /// A whole text behind something of `column` columns.
    pub(crate) fn text(text: &str, column: usize, width: Option<usize>) -> String {
        let mut wrap = Self { column, ..Self::new(width) };
        let begun = wrap.push(text);
        begun + &wrap.rest()
    }

    /// The next piece of the text.
    pub(crate) fn push(&mut self, piece: &str) -> String {
        if self.width.is_none() {
            return piece.to_owned();
        }
        let mut shown = String::new();
        for c in piece.chars() {
            match c {
                '\n' => {
                    self.end_word(&mut shown);
                    shown.push('\n');
                    self.line_has_ended();
                }
                ' ' if self.is_start && self.word.is_empty() => {
                    shown.push(' ');
                    self.indent += 1;
                    self.column += 1;
                }
                ' ' => {
                    self.end_word(&mut shown);
                    self.spaces += 1;
                }
                c => self.word.push(c),
            }
        }
        shown
    }

    /// What is held back.
    pub(crate) fn rest(&mut self) -> String {
        let mut shown = String::new();
        self.end_word(&mut shown);
        shown
    }

    /// Something else has begun a new line.
    pub(crate) const fn line_has_ended(&mut self) {
        (self.indent, self.column, self.spaces, self.is_start) = (0, 0, 0, true);
    }

    /// Notes that the word, which a line begins with, opens or closes fenced code.
    fn pass_fence(&mut self) {
        let Some(mark) = self.word.chars().next().filter(|mark| FENCES.contains(mark)) else { return };
        let info = self.word.trim_start_matches(mark);
        let run = &self.word[..self.word.len() - info.len()];
        match &self.fence {
            Some(fence) if info.is_empty() && run.starts_with(fence) => self.fence = None,
            None if run.len() >= MIN_FENCE && !info.contains(mark) => self.fence = Some(run.to_owned()),
            Some(_) | None => {}
        }
    }

    fn end_word(&mut self, shown: &mut String) {
        if self.word.is_empty() {
            return;
        }
        if self.is_start {
            self.pass_fence();
        }
        let length = self.word.chars().count();
        let is_too_long = self.width.is_some_and(|width| self.column + self.spaces + length > width);
        if is_too_long && !self.is_start && self.fence.is_none() {
            shown.push('\n');
            shown.push_str(&" ".repeat(self.indent));
            self.column = self.indent;
        } else {
            shown.push_str(&" ".repeat(self.spaces));
            self.column += self.spaces;
        }
        shown.push_str(&self.word);
        self.column += length;
        self.word.clear();
        (self.spaces, self.is_start) = (0, false);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::short("one two", Some(7), "one two")]
    #[case::long("one two three", Some(7), "one two\nthree")]
    #[case::word("extraordinary it is", Some(7), "extraordinary\nit is")]
    #[case::lines("one two\n\nthree four", Some(7), "one two\n\nthree\nfour")]
    #[case::item("  - one two three", Some(9), "  - one\n  two\n  three")]
    #[case::code(
        "```sh\nlet it be as it is\n```\none two three",
        Some(7),
        "```sh\nlet it be as it is\n```\none two\nthree"
    )]
    #[case::longer_fence(
        "````\n```\none two three\n````\none two three",
        Some(7),
        "````\n```\none two three\n````\none two\nthree"
    )]
    #[case::tildes("~~~\none two three\n~~~", Some(7), "~~~\none two three\n~~~")]
    #[case::inline("```x``` two three", Some(7), "```x```\ntwo\nthree")]
    #[case::spaces("a  b", Some(9), "a  b")]
    #[case::unlimited("one two three", None, "one two three")]
    fn long_lines_are_broken(#[case] text: &str, #[case] width: Option<usize>, #[case] expected: &str) {
        assert_eq!(Wrap::text(text, 0, width), expected);
    }

    #[test]
    fn a_text_begins_behind_something() {
        assert_eq!(Wrap::text("one two", 5, Some(9)), "one\ntwo");
    }

    proptest! {
        #[test]
        fn pieces_are_shown_as_their_text_is(pieces in proptest::collection::vec("[a-c` \n]{0,6}", 0..20)) {
            let mut wrap = Wrap::new(Some(8));
            let mut shown: String = pieces.iter().map(|piece| wrap.push(piece)).collect();
            shown.push_str(&wrap.rest());
            prop_assert_eq!(&shown, &Wrap::text(&pieces.concat(), 0, Some(8)));
            let words = |text: &str| text.split_whitespace().map(str::to_owned).collect::<Vec<_>>();
            prop_assert_eq!(words(&shown), words(&pieces.concat()));
        }
    }
}
