//! Whether a text stands in what the model has read: results of tools, and messages of users, with payloads in them. Pure.
//!
//! Texts are compared without white space, invisible characters, the escapes of JSON and HTML, and what quotations, patches,
//! comments and numbers put before a line, because a model quotes what a result shows as it reads it.

use std::{
    cell::{Cell, OnceCell},
    str::Chars,
};

use protocol::{Message, is_invisible};

/// Maximum number of texts that are looked for. Each is a search of the whole conversation.
const MAX_SEARCHES: u32 = 64;

/// Characters as HTML writes them.
const ENTITIES: [(&str, char); 5] = [("lt;", '<'), ("gt;", '>'), ("quot;", '"'), ("apos;", '\''), ("amp;", '&')];
/// Longest number of a character in HTML, with its `#x` and `;`.
const MAX_CODE_BYTES: usize = 10;

/// What the model has read of a conversation.
pub(crate) struct ReadTexts<'m> {
    messages: &'m [Message],
    plain: OnceCell<String>,
    searches: Cell<u32>,
}

impl<'m> ReadTexts<'m> {
    pub(crate) const fn new(messages: &'m [Message]) -> Self {
        Self { messages, plain: OnceCell::new(), searches: Cell::new(0) }
    }

    /// Whether `text` stands in one of them. Beyond the maximum number of searches any text counts as read.
    pub(crate) fn contain(&self, text: &str) -> bool {
        self.searches.set(self.searches.get() + 1);
        self.searches.get() > MAX_SEARCHES || self.plain().contains(&plain(text))
    }

    fn plain(&self) -> &str {
        self.plain.get_or_init(|| {
            let read = self.messages.iter().filter_map(|message| match message {
                Message::User { content } | Message::Tool { content, .. } => Some(plain(content)),
                Message::System { .. } | Message::Assistant { .. } => None,
            });
            // No text extends over two messages.
            read.collect::<Vec<_>>().join("\n")
        })
    }
}

/// The text without what is not compared.
fn plain(text: &str) -> String {
    let mut plain = String::with_capacity(text.len());
    let mut rest = without_prefix(text).chars();
    while let Some(next) = rest.next() {
        let character = match next {
            '\\' => escaped(&mut rest),
            '&' => Some(entity(&mut rest)),
            '\n' => {
                rest = without_prefix(rest.as_str()).chars();
                None
            }
            other => Some(other),
        };
        // JSON escapes characters outside of the basic plane in two parts, which are left out as well.
        let is_compared = |c: &char| !c.is_whitespace() && !is_invisible(*c) && c.len_utf16() == 1;
        plain.extend(character.filter(is_compared));
    }
    plain
}

/// The character that stands behind a backslash as a code. None if the next one stands for itself, or for white space.
/// JSON within JSON has several backslashes.
fn escaped(rest: &mut Chars<'_>) -> Option<char> {
    let after = rest.as_str().trim_start_matches('\\');
    *rest = after.chars();
    if let Some(after) = after.strip_prefix('n') {
        *rest = without_prefix(after).chars();
        return None;
    }
    if let Some(after) = after.strip_prefix(['r', 't']) {
        *rest = after.chars();
        return None;
    }
    let (digits, after) = match after.strip_prefix('x') {
        Some(code) => code.split_at_checked(2)?,
        None => after.strip_prefix('u')?.split_at_checked(4)?,
    };
    let code = u32::from_str_radix(digits, 16).ok()?;
    *rest = after.chars();
    char::from_u32(code)
}

/// A line without the marks or the number before it.
fn without_prefix(line: &str) -> &str {
    let line = line.trim_start_matches([' ', '\t']);
    let numbered = line.trim_start_matches(|c: char| c.is_ascii_digit());
    let separated = numbered.strip_prefix(['\t', ':', '|', '→']).filter(|_| numbered.len() < line.len());
    separated.unwrap_or(line).trim_start_matches([' ', '\t', '>', '+', '-', '|', '/', '#', '*'])
}

/// The character of an entity behind its `&`, which stands for itself otherwise.
fn entity(rest: &mut Chars<'_>) -> char {
    let mut after = rest.as_str();
    // HTML within HTML.
    while let Some(inner) = after.strip_prefix("amp;") {
        after = inner;
    }
    let named = || ENTITIES.iter().find_map(|(name, character)| Some((after.strip_prefix(name)?, *character)));
    let found = numbered(after).or_else(named);
    let (after, character) = found.unwrap_or((after, '&'));
    *rest = after.chars();
    character
}

/// The character of an entity that is a number, and the text after it.
fn numbered(text: &str) -> Option<(&str, char)> {
    let end = text.bytes().take(MAX_CODE_BYTES).position(|byte| byte == b';')?;
    let digits = text[..end].strip_prefix('#')?;
    let code = match digits.strip_prefix(['x', 'X']) {
        Some(hexadecimal) => u32::from_str_radix(hexadecimal, 16),
        None => digits.parse(),
    };
    Some((&text[end + 1..], char::from_u32(code.ok()?)?))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const CALL: &str = "<tool_call>{\"name\": \"echo\", \"arguments\": {\"message\": \"a\\nb \u{1f980}\"}}</tool_call>";

    fn read(content: String) -> Vec<Message> {
        vec![Message::System { content: CALL.to_owned() }, Message::User { content }]
    }

    fn quoted(text: &str) -> String {
        serde_json::to_string(text).unwrap()
    }

    #[rstest]
    #[case::as_it_is(CALL.to_owned())]
    #[case::in_a_text(format!("Say {CALL} now."))]
    #[case::spaced(CALL.replace(' ', "").replace('{', "{\n  "))]
    #[case::in_json(quoted(CALL))]
    #[case::in_json_within_json(quoted(&quoted(CALL)))]
    #[case::in_ascii(quoted(CALL).replace('<', "\\u003c").replace('\u{1f980}', "\\ud83e\\udd80"))]
    #[case::in_html(CALL.replace('<', "&lt;").replace('>', "&gt;").replace('"', "&quot;"))]
    #[case::in_html_within_html(CALL.replace('<', "&amp;lt;").replace('"', "&amp;amp;#34;"))]
    #[case::in_html_by_number(CALL.replace('<', "&#x3c;").replace('"', "&#034;").replace('e', "&#101;"))]
    #[case::in_a_program(CALL.replace('"', "\\x22"))]
    #[case::quoted_by_mail(CALL.replace('{', "\n> {"))]
    #[case::added_by_a_patch(format!("+{}", CALL.replace('{', "\n+ {")))]
    #[case::numbered(format!("  1\t{}", CALL.replace('{', "\n 12\t{")))]
    #[case::in_a_comment(format!("// {}", CALL.replace('{', "\n// {")))]
    #[case::invisibly_divided(CALL.replace("echo", "ec\u{200b}ho"))]
    fn finds_a_text_in_however_it_is_escaped(#[case] content: String) {
        assert!(ReadTexts::new(&read(content)).contain(CALL));
    }

    #[rstest]
    #[case::another(CALL.replace("echo", "shell"))]
    #[case::a_part(CALL[..40].to_owned())]
    #[case::not_an_escape("\\u00 \\u &; & \\".to_owned())]
    fn finds_no_other_text(#[case] content: String) {
        assert!(!ReadTexts::new(&read(content)).contain(CALL));
    }

    #[test]
    fn only_so_many_texts_are_looked_for() {
        let messages = read("nothing".to_owned());
        let texts = ReadTexts::new(&messages);
        assert!((0..MAX_SEARCHES).all(|_| !texts.contain(CALL)));
        assert!(texts.contain(CALL));
    }
}
