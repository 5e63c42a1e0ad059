//! What a server answers, without the protocol's own types.

use rmcp::model::{CallToolResult, ContentBlock, ResourceContents, Tool};
use serde_json::Value;

use super::redaction::Redaction;

/// Base64 has four characters for three bytes.
const BASE64_CHARS: usize = 4;
const BASE64_BYTES: usize = 3;
/// Longer media types are not shown. The longest registered ones have some 80 characters.
const MAX_MEDIA_TYPE_BYTES: usize = 80;

/// A tool as a server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedTool {
    /// The server's own name of the tool.
    pub name: String,
    pub definition: Value,
}

/// The answer to a call.
#[derive(Debug, Clone, PartialEq)]
pub struct Answer {
    pub parts: Vec<AnswerPart>,
    pub structured: Option<Value>,
    /// Whether the tool reports a failure.
    pub is_error: bool,
}

#[derive(Debug, Clone, PartialEq, Eq)]
pub enum AnswerPart {
    Text(String),
    /// Anything else, which is not passed on.
    Other {
        kind: &'static str,
        media_type: Option<String>,
        bytes: usize,
    },
}

impl ListedTool {
    /// A tool of the protocol; none if it cannot be read. A name with a secret is no longer one that a tool can have.
    pub(super) fn of(tool: &Tool, redaction: &Redaction) -> Option<Self> {
        let mut definition = serde_json::to_value(tool).ok()?;
        redaction.json(&mut definition);
        Some(Self { name: redaction.text(&tool.name), definition })
    }
}

impl Answer {
    /// An answer of the protocol.
    pub(super) fn of(result: CallToolResult, redaction: &Redaction) -> Self {
        let mut structured = result.structured_content;
        if let Some(structured) = &mut structured {
            redaction.json(structured);
        }
        Self {
            parts: result.content.into_iter().map(|content| part(content, redaction)).collect(),
            structured,
            is_error: result.is_error.unwrap_or(false),
        }
    }
}

fn part(content: ContentBlock, redaction: &Redaction) -> AnswerPart {
    let media_type = |text: Option<&str>| media_type(&redaction.text(text?));
    let other = |kind, media_type, bytes| AnswerPart::Other { kind, media_type, bytes };
    let decoded = |text: &str| text.len() / BASE64_CHARS * BASE64_BYTES;
    match content {
        ContentBlock::Text(text) => AnswerPart::Text(redaction.text(&text.text)),
        ContentBlock::Image(image) => other("image", media_type(Some(&image.mime_type)), decoded(&image.data)),
        ContentBlock::Audio(audio) => other("audio", media_type(Some(&audio.mime_type)), decoded(&audio.data)),
        ContentBlock::Resource(resource) => match resource.resource {
            // GitHub's server, for one, answers with the text of a file so.
            ResourceContents::TextResourceContents { uri, text, .. } => {
                AnswerPart::Text(redaction.text(&format!("[resource {uri}]\n{text}")))
            }
            ResourceContents::BlobResourceContents { mime_type, blob, .. } => {
                other("resource", media_type(mime_type.as_deref()), decoded(&blob))
            }
            _ => other("resource", None, 0),
        },
        ContentBlock::ResourceLink(link) => {
            let name = link.title.as_deref().unwrap_or(&link.name);
            AnswerPart::Text(redaction.text(&format!("[link to {name}: {}]", link.uri)))
        }
        _ => other("content", None, 0),
    }
}

/// A media type as it may be shown; a server can write anything there.
fn media_type(text: &str) -> Option<String> {
    let allowed = |c: char| c.is_ascii_alphanumeric() || matches!(c, '/' | '+' | '-' | '.');
    let is_shown = text.len() <= MAX_MEDIA_TYPE_BYTES && !text.is_empty() && text.chars().all(allowed);
    is_shown.then(|| text.to_owned())
}
