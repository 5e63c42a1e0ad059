//! The body of a model call as the orchestrator reads it.
//!
//! Owns that tool definitions are never taken from a worker: only the names of the tools that it wants to offer are read,
//! so that a turn of text alone can be recognised. The definitions are the orchestrator's.

use std::fmt;

use protocol::{CallId, CompletionRequest, Message, ToolChoice, ToolDefinition};
use serde::{
    Deserialize, Deserializer,
    de::{SeqAccess, Visitor},
};

/// Names that are kept; a job is never offered more tools.
const MAX_NAMES: usize = 512;
/// Longer names name no tool (protocol: names of tools).
const MAX_NAME_BYTES: usize = 128;

/// `POST …/llm/complete` and `…/llm/complete_with_tools`.
#[derive(Debug, Deserialize)]
pub(super) struct CallBody {
    pub(super) call_id: CallId,
    messages: Vec<Message>,
    #[serde(default)]
    tools: ToolNames,
    #[serde(default)]
    tool_choice: ToolChoice,
    #[serde(default)]
    max_tokens: Option<u64>,
    #[serde(default)]
    temperature: Option<f64>,
}

/// The names in a list of tool definitions.
#[derive(Debug, Default)]
struct ToolNames(Vec<String>);

impl CallBody {
    /// Whether it offers a tool.
    pub(super) const fn names_tools(&self) -> bool {
        !self.tools.0.is_empty()
    }

    /// The request with the definitions of `known` that it names.
    pub(super) fn into_request(self, known: impl FnOnce() -> Vec<ToolDefinition>) -> CompletionRequest {
        let ToolNames(names) = self.tools;
        let mut tools = if names.is_empty() { Vec::new() } else { known() };
        tools.retain(|tool| names.contains(&tool.name));
        CompletionRequest {
            call_id: self.call_id,
            messages: self.messages,
            tools,
            tool_choice: self.tool_choice,
            max_tokens: self.max_tokens,
            temperature: self.temperature,
        }
    }
}

impl<'de> Deserialize<'de> for ToolNames {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        /// Everything else in a definition is skipped unread.
        #[derive(Deserialize)]
        struct Named {
            name: String,
        }
        struct Names;
        impl<'de> Visitor<'de> for Names {
            type Value = ToolNames;

            fn expecting(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                f.write_str("a list of tools with their names")
            }

            fn visit_seq<A: SeqAccess<'de>>(self, mut list: A) -> Result<ToolNames, A::Error> {
                let mut names = Vec::new();
                while let Some(Named { name }) = list.next_element()? {
                    if names.len() < MAX_NAMES && name.len() <= MAX_NAME_BYTES {
                        names.push(name);
                    }
                }
                Ok(ToolNames(names))
            }
        }
        deserializer.deserialize_seq(Names)
    }
}

#[cfg(test)]
mod tests {
    use protocol::ToolDomain;
    use serde_json::json;

    use super::*;

    fn known() -> Vec<ToolDefinition> {
        let define =
            |name: &str| ToolDefinition::new(name, "the orchestrator's own words", json!({}), ToolDomain::Orchestrator);
        vec![define("echo"), define("time")]
    }

    fn offered(tools: &serde_json::Value) -> Vec<ToolDefinition> {
        let body = json!({"call_id": "c", "messages": [], "tools": tools});
        serde_json::from_value::<CallBody>(body).unwrap().into_request(known).tools
    }

    #[test]
    fn a_worker_names_tools_and_never_defines_them() {
        let sent = json!([
            {"name": "echo", "description": "forged", "parameters": {"a": [0, 0, 0]}, "domain": "orchestrator"},
            {"name": "unknown", "parameters": [[[[]]]]},
        ]);
        let [echo] = offered(&sent).try_into().unwrap();
        assert_eq!((echo.name.as_str(), echo.description.as_str()), ("echo", "the orchestrator's own words"));
        assert!(offered(&json!([])).is_empty());
    }

    #[test]
    fn a_list_without_end_keeps_a_bounded_number_of_names() {
        let many: Vec<_> = (0..100_000).map(|n| json!({"name": format!("n{n}")})).collect();
        let body = json!({"call_id": "c", "messages": [], "tools": many});
        assert_eq!(serde_json::from_value::<CallBody>(body).unwrap().tools.0.len(), MAX_NAMES);
    }
}
