//! Texts with placeholders: `{{last_message}}` and the like, checked when a script is loaded, filled when a rule
//! answers. Never evaluates anything: a placeholder is a name, what fills it is text.

use regex::Captures;

/// A text with placeholders.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Template {
    segments: Vec<Segment>,
}

#[derive(Debug, Clone, PartialEq, Eq)]
enum Segment {
    Text(String),
    Placeholder(Placeholder),
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Placeholder {
    LastMessage,
    ToolResult,
    ToolName,
    Prompt,
    JobTitle,
    Turn,
    Group(usize),
    NamedGroup(String),
}

/// The values of the placeholders of one answer.
#[derive(Debug, Default)]
pub struct Values<'a> {
    /// The newest message that is not a system message.
    pub last_message: &'a str,
    /// The matched tool result, else the newest.
    pub tool_result: &'a str,
    pub tool_name: &'a str,
    /// The first user message.
    pub prompt: &'a str,
    pub job_title: &'a str,
    /// The number of the model call.
    pub turn: u32,
    /// The captures of the rule's regex.
    pub captures: Option<Captures<'a>>,
}

impl Template {
    /// Reads a template; the error is the name of a placeholder that does not exist.
    pub(super) fn parse(text: &str) -> Result<Self, String> {
        let mut segments = Vec::new();
        let mut plain = String::new();
        let mut rest = text;
        while let Some(at) = rest.find("{{") {
            let (before, after) = (&rest[..at], &rest[at + 2..]);
            if let Some(before) = before.strip_suffix('\\') {
                plain.push_str(before);
                plain.push_str("{{");
                rest = after;
                continue;
            }
            plain.push_str(before);
            let name = after.split_once("}}").map(|(inside, _)| inside).filter(|inside| is_name(inside.trim()));
            let Some(inside) = name else {
                plain.push_str("{{");
                rest = after;
                continue;
            };
            if !plain.is_empty() {
                segments.push(Segment::Text(std::mem::take(&mut plain)));
            }
            segments.push(Segment::Placeholder(Placeholder::parse(inside.trim())?));
            rest = &after[inside.len() + 2..];
        }
        plain.push_str(rest);
        if !plain.is_empty() {
            segments.push(Segment::Text(plain));
        }
        Ok(Self { segments })
    }

    /// The text with its placeholders filled; what is not there is empty.
    pub fn render(&self, values: &Values<'_>) -> String {
        let mut out = String::new();
        for segment in &self.segments {
            match segment {
                Segment::Text(text) => out.push_str(text),
                Segment::Placeholder(placeholder) => placeholder.fill(values, &mut out),
            }
        }
        out
    }

    /// Whether it is the empty text.
    pub fn is_empty(&self) -> bool {
        self.segments.is_empty()
    }

    pub(super) fn placeholders(&self) -> impl Iterator<Item = &Placeholder> {
        self.segments.iter().filter_map(|segment| match segment {
            Segment::Placeholder(placeholder) => Some(placeholder),
            Segment::Text(_) => None,
        })
    }
}

/// Only what looks like a name is a placeholder, so that programs with braces in them can be written plainly.
fn is_name(inside: &str) -> bool {
    inside.starts_with(|first: char| first.is_ascii_lowercase())
        && inside.chars().all(|c| c.is_ascii_alphanumeric() || c == '_' || c == '.')
}

impl Placeholder {
    fn parse(name: &str) -> Result<Self, String> {
        Ok(match name {
            "last_message" => Self::LastMessage,
            "tool_result" => Self::ToolResult,
            "tool_name" => Self::ToolName,
            "prompt" => Self::Prompt,
            "job_title" => Self::JobTitle,
            "turn" => Self::Turn,
            _ => match name.strip_prefix("match.").filter(|group| !group.is_empty()) {
                Some(group) => group.parse().map_or_else(|_| Self::NamedGroup(group.to_owned()), Self::Group),
                None => return Err(name.to_owned()),
            },
        })
    }

    fn fill(&self, values: &Values<'_>, out: &mut String) {
        let captures = values.captures.as_ref();
        match self {
            Self::LastMessage => out.push_str(values.last_message),
            Self::ToolResult => out.push_str(values.tool_result),
            Self::ToolName => out.push_str(values.tool_name),
            Self::Prompt => out.push_str(values.prompt),
            Self::JobTitle => out.push_str(values.job_title),
            Self::Turn => out.push_str(&values.turn.to_string()),
            Self::Group(index) => {
                out.push_str(captures.and_then(|found| found.get(*index)).map_or("", |group| group.as_str()));
            }
            Self::NamedGroup(name) => {
                out.push_str(captures.and_then(|found| found.name(name)).map_or("", |group| group.as_str()));
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("plain", "plain")]
    #[case("{{last_message}}!", "hello!")]
    #[case("{{ prompt }}, {{turn}}", "begin, 3")]
    #[case("d = {{ 'a': 1 }}", "d = {{ 'a': 1 }}")]
    #[case("f\"{{{turn}}}\"", "f\"{{{turn}}}\"")]
    #[case(r"\{{turn}}", "{{turn}}")]
    #[case("{{turn", "{{turn")]
    #[case("{{job_title}}", "")]
    #[case("{{match.1}}", "")]
    fn placeholders_are_filled_and_other_braces_left_alone(#[case] template: &str, #[case] expected: &str) {
        let values = Values { last_message: "hello", prompt: "begin", turn: 3, ..Values::default() };
        assert_eq!(Template::parse(template).unwrap().render(&values), expected);
    }

    #[rstest]
    #[case("{{last_mesage}}", "last_mesage")]
    #[case("{{match}}", "match")]
    #[case("{{match.}}", "match.")]
    fn an_unknown_name_is_refused(#[case] template: &str, #[case] name: &str) {
        assert_eq!(Template::parse(template), Err(name.to_owned()));
    }

    proptest! {
        #[test]
        fn text_without_double_braces_is_itself(text in "[^{]*") {
            prop_assert_eq!(Template::parse(&text).unwrap().render(&Values::default()), text);
        }

        #[test]
        fn no_text_makes_it_panic(text in "\\PC*") {
            let _ = Template::parse(&text);
        }
    }
}
