//! Tags that models wrap thinking and calls in. Pure.

/// Maximum length of a tag in bytes: a name and one attribute.
const MAX_TAG_BYTES: usize = 256;

const THINKING: [&str; 7] = ["think", "thinking", "thought", "thoughts", "reasoning", "reflection", "scratchpad"];

/// The two bars of the marks of models.
const BARS: [char; 2] = ['|', '\u{ff5c}'];

const WRAPPERS: [&str; 7] =
    ["tool_call", "tool_calls", "function_call", "function_calls", "tool_use", "tool_calling", "toolcall"];

/// What is around the tags of Kimi K3.
pub(super) const XTML_OPEN: &str = "<|open|>";
const XTML_CLOSE: &str = "<|close|>";
const XTML_END: &str = "<|sep|>";

/// One tag in a text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct Tag {
    /// The tag's kind.
    pub(super) kind: TagKind,
    /// The name as written, to find the closing tag.
    pub(super) name: String,
    /// Offset of the text after the tag.
    pub(super) end: usize,
}

/// The kind of a tag.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum TagKind {
    /// Thinking starts.
    ThinkingOpen,
    /// Thinking ends.
    ThinkingClose,
    /// Calls follow, or one as JSON.
    WrapperOpen,
    /// A call of this tool follows: `<invoke name="…">`, `<function=…>`.
    CallOpen {
        /// The tool.
        tool: String,
    },
    /// The end of one of the last two.
    CallClose,
    /// A value of a call follows: `<parameter name="…">`, `<parameter=…>`.
    ParameterOpen {
        /// Its key.
        key: String,
        /// Whether the tag says that it is JSON.
        is_json: bool,
    },
    /// A key of a call follows, and then its value in another tag: `<arg_key>`.
    KeyOpen,
    /// The value of that key follows: `<arg_value>`.
    ValueOpen,
    /// The end of one of the last three.
    ParameterClose,
}

impl Tag {
    /// Whether it closes `open`.
    pub(super) fn closes(&self, open: &Self) -> bool {
        matches!(self.kind, TagKind::ThinkingClose | TagKind::CallClose) && self.name == open.name
    }
}

/// The tag at `at`, if it is one of the known ones.
pub(super) fn tag_at(text: &str, at: usize) -> Option<Tag> {
    let here = text.get(at..).filter(|here| here.starts_with('<'))?;
    if here.starts_with(XTML_OPEN) || here.starts_with(XTML_CLOSE) {
        return xtml_at(here).map(|tag| Tag { end: at + tag.end, ..tag });
    }
    let window = &text.as_bytes()[at + 1..text.len().min(at + MAX_TAG_BYTES)];
    let length = window.iter().position(|byte| *byte == b'>' || *byte == b'<').filter(|end| window[*end] == b'>')?;
    let inner = text.get(at + 1..=at + length)?;
    let end = at + length + 2;
    // `<|tool_call|>` and `<|/tool_call|>` are variants of the same tags, `<|tool_call>` and `<tool_call|>` Gemma's.
    let plain = inner.trim_start_matches(BARS);
    let has_bar = plain.len() < inner.len();
    let (closing, plain) = plain.strip_prefix('/').map_or((false, plain), |rest| (true, rest));
    let plain = without_dialect(plain.trim_start_matches(BARS));
    let inner = plain.trim_end_matches(BARS);
    let closing = closing || (!has_bar && inner.len() < plain.len());
    let name_length = inner.bytes().take_while(|byte| byte.is_ascii_alphanumeric() || b"_:-".contains(byte)).count();
    let (name, rest) = inner.split_at(name_length);
    let plain = name.rsplit(':').next()?.to_ascii_lowercase();
    let rest = rest.trim().trim_end_matches('/').trim_end();
    let kind = kind(&plain, rest, closing)?;
    Some(Tag { kind, name: name.to_ascii_lowercase(), end })
}

/// `<|open|>call tool="name" index="1"<|sep|>`, `<|open|>argument key="key" type="string"<|sep|>` and their ends,
/// `<|close|>call<|sep|>`.
fn xtml_at(here: &str) -> Option<Tag> {
    let (closing, inner) = match here.strip_prefix(XTML_OPEN) {
        Some(inner) => (false, inner),
        None => (true, here.strip_prefix(XTML_CLOSE)?),
    };
    let length = inner.bytes().take(MAX_TAG_BYTES).position(|byte| byte == b'<')?;
    let after = inner[length..].strip_prefix(XTML_END)?;
    let (name, rest) = inner[..length].split_once(' ').unwrap_or((&inner[..length], ""));
    let kind = match (name, closing) {
        // Where marks are lost, the name of the section is before it.
        (name, false) if name.ends_with("call") => TagKind::CallOpen { tool: attribute(rest, "tool")? },
        ("argument", false) => {
            TagKind::ParameterOpen { key: attribute(rest, "key")?, is_json: !rest.contains("type=\"string\"") }
        }
        ("argument", true) => TagKind::ParameterClose,
        // Sections of calls and of text: like the ends of calls, their tags are no text.
        ("call", true) | ("tools" | "response" | "message", _) => TagKind::CallClose,
        _ => kind(name, rest, closing)?,
    };
    Some(Tag { kind, name: name.to_owned(), end: here.len() - after.len() })
}

fn kind(name: &str, rest: &str, closing: bool) -> Option<TagKind> {
    if THINKING.contains(&name) && rest.is_empty() {
        return Some(if closing { TagKind::ThinkingClose } else { TagKind::ThinkingOpen });
    }
    let wrapper = WRAPPERS.contains(&name);
    match (name, closing) {
        _ if wrapper && closing => Some(TagKind::CallClose),
        _ if wrapper && rest.is_empty() => Some(TagKind::WrapperOpen),
        ("function" | "invoke", true) => Some(TagKind::CallClose),
        ("parameter" | "arg_key" | "arg_value", true) => Some(TagKind::ParameterClose),
        ("arg_key", false) => Some(TagKind::KeyOpen),
        ("arg_value", false) => Some(TagKind::ValueOpen),
        ("parameter", false) => {
            Some(TagKind::ParameterOpen { key: attribute(rest, "name")?, is_json: rest.contains("string=\"false\"") })
        }
        ("function" | "invoke" | "tool_call" | "function_call", false) => {
            Some(TagKind::CallOpen { tool: attribute(rest, "name")? })
        }
        _ => None,
    }
}

/// The tag without the name of its markup, which `DeepSeek` puts before each: `<｜DSML｜invoke name="…">`.
fn without_dialect(inner: &str) -> &str {
    let rest = inner.strip_prefix("DSML").unwrap_or(inner);
    if rest.starts_with(BARS) { rest.trim_start_matches(BARS) } else { inner }
}

/// The value of `=value` or `name="value"`. There may be further attributes after quotes.
fn attribute(rest: &str, name: &str) -> Option<String> {
    let value = rest.strip_prefix(name).unwrap_or(rest).trim_start().strip_prefix('=')?.trim();
    let quoted = ['"', '\''].into_iter().find_map(|quote| Some(value.strip_prefix(quote)?.split(quote).next()?.trim()));
    let value = quoted.unwrap_or_else(|| value.trim_matches(['"', '\'']));
    (!value.is_empty()).then(|| value.to_owned())
}
