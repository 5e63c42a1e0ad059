//! Tool definitions as a server lists them, and what becomes of them: a tool that a model can be offered, or a refusal.
//! Pure.
//!
//! Owns the names and the digest. A name is never changed: a tool whose name is too long or unusual is refused.

use std::collections::{BTreeMap, HashSet};

use protocol::{ToolDefinition, ToolDomain};
use serde_json::Value;

use super::schema::{checked, clean_text};
use base::digest::sha256_hex;
use mcp::ListedTool;

/// Separates the server's name from the tool's.
pub(super) const SEPARATOR: &str = "__";
/// Maximum length of the whole name: the shortest limit among the model providers.
const MAX_NAME_BYTES: usize = 64;
/// Maximum number of tools of one server that are used. Large servers have some 100.
const MAX_TOOLS: usize = 128;
/// Maximum length of a description.
const MAX_DESCRIPTION_BYTES: usize = 2_000;
/// Maximum size of a schema of parameters, which a model reads.
const MAX_SCHEMA_BYTES: usize = 48 * 1024;
/// Maximum size of a definition as the server sent it: schemas of results, which no model reads, can be large.
const MAX_DEFINITION_BYTES: usize = 256 * 1024;
/// Length of a refused name in the admin's view.
const MAX_SHOWN_NAME_BYTES: usize = 100;
/// Refused tools of one server that are remembered.
const MAX_REFUSED: usize = 128;

/// A definition with a valid name.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct CheckedDefinition {
    /// The server's own name of the tool.
    pub(super) tool: String,
    /// The definition that the model reads.
    pub(super) definition: ToolDefinition,
    /// The digest of the definition as it was sent.
    pub(super) digest: String,
    pub(super) sent: String,
}

/// A tool that is not used.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct RefusedTool {
    /// Its name as it is shown.
    pub(super) name: String,
    pub(super) reason: String,
}

impl RefusedTool {
    pub(super) fn new(name: &str, reason: impl Into<String>) -> Self {
        let name = name.chars().filter(|c| !c.is_control()).collect::<String>();
        Self { name: clean_text(&name, MAX_SHOWN_NAME_BYTES), reason: reason.into() }
    }
}

/// Checks the tools that a server lists, in its order.
pub(super) fn check(server: &str, listed: &[ListedTool]) -> (Vec<CheckedDefinition>, Vec<RefusedTool>) {
    let (mut accepted, mut refused): (Vec<CheckedDefinition>, Vec<RefusedTool>) = (Vec::new(), Vec::new());
    let mut names = HashSet::new();
    for tool in listed {
        let checked = check_tool(server, tool).and_then(|checked| {
            if !names.insert(folded(&tool.name)) {
                return Err("the server lists a tool of this name, or of one that differs in case or separators only"
                    .to_owned());
            }
            if accepted.len() == MAX_TOOLS {
                return Err(format!("the server lists more than {MAX_TOOLS} tools"));
            }
            Ok(checked)
        });
        match checked {
            Ok(checked) => accepted.push(checked),
            Err(reason) if refused.len() < MAX_REFUSED => refused.push(RefusedTool::new(&tool.name, reason)),
            Err(_) => {}
        }
    }
    (accepted, refused)
}

fn check_tool(server: &str, tool: &ListedTool) -> Result<CheckedDefinition, String> {
    let sent = tool.definition.as_ref().map_err(|reason| (*reason).to_owned())?;
    let name = format!("{server}{SEPARATOR}{}", tool.name);
    let allowed = |byte: u8| byte.is_ascii_alphanumeric() || matches!(byte, b'_' | b'-');
    if tool.name.is_empty() || !tool.name.bytes().all(allowed) {
        return Err("its name has characters other than A-Z a-z 0-9 _ -".to_owned());
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(format!(
            "its name with the server's has {} characters; at most {MAX_NAME_BYTES} are accepted",
            name.len()
        ));
    }
    let schema = sent.get("inputSchema").ok_or("it has no parameter schema")?;
    let description = sent.get("description").and_then(Value::as_str).unwrap_or_default();
    let size = schema.to_string().len();
    if size > MAX_SCHEMA_BYTES {
        return Err(format!("its parameter schema has {size} bytes; at most {MAX_SCHEMA_BYTES} are accepted"));
    }
    let sent = canonical(sent);
    if sent.len() > MAX_DEFINITION_BYTES {
        return Err(format!("its definition has {} bytes; at most {MAX_DEFINITION_BYTES} are accepted", sent.len()));
    }
    let parameters = checked(schema)?;
    let description = clean_text(description, MAX_DESCRIPTION_BYTES);
    let definition = ToolDefinition::new(&name, &description, parameters, ToolDomain::Orchestrator);
    Ok(CheckedDefinition { tool: tool.name.clone(), definition, digest: sha256_hex(sent.as_bytes()), sent })
}

/// A name without its case and kind of separators.
fn folded(name: &str) -> String {
    name.replace('-', "_").to_ascii_lowercase()
}

/// JSON with sorted keys, so that another order of the same keys is no change.
fn canonical(value: &Value) -> String {
    fn sorted(value: &Value) -> Value {
        match value {
            Value::Object(fields) => {
                let fields: BTreeMap<&String, Value> = fields.iter().map(|(key, field)| (key, sorted(field))).collect();
                fields.into_iter().map(|(key, field)| (key.clone(), field)).collect()
            }
            Value::Array(items) => items.iter().map(sorted).collect(),
            other => other.clone(),
        }
    }
    sorted(value).to_string()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    fn listed(name: &str, change: impl FnOnce(&mut Value)) -> ListedTool {
        let mut definition = json!({"name": name, "description": "a tool", "inputSchema": {"type": "object"}});
        change(&mut definition);
        ListedTool { name: name.to_owned(), definition: Ok(definition) }
    }

    fn reasons(refused: &[RefusedTool]) -> Vec<&str> {
        refused.iter().map(|tool| tool.reason.as_str()).collect()
    }

    #[test]
    fn a_tool_gets_its_servers_name() {
        let tool = listed("get_issue", |definition| definition["description"] = json!("reads\u{202e} <|im_end|>"));
        let (accepted, refused) = check("git-hub", &[tool]);
        assert_eq!(refused, []);
        let definition = &accepted[0].definition;
        assert_eq!(
            (definition.name.as_str(), definition.description.as_str()),
            ("git-hub__get_issue", "reads < |im_end|>")
        );
        assert_eq!(definition.domain, ToolDomain::Orchestrator);
    }

    #[rstest]
    #[case::too_long(&"x".repeat(60), "at most 64")]
    #[case::empty("", "characters other than")]
    #[case::a_dot("a.b", "characters other than")]
    #[case::a_space("a b", "characters other than")]
    #[case::a_letter_beyond_ascii("\u{435}cho", "characters other than")]
    fn unusual_names_are_refused_and_never_changed(#[case] name: &str, #[case] expected: &str) {
        let (accepted, refused) = check("srv", &[listed(name, |_| {})]);
        assert!(accepted.is_empty());
        assert!(refused[0].reason.contains(expected), "{refused:?}");
    }

    #[test]
    fn the_longest_name_has_64_characters() {
        for (length, is_accepted) in [(59, true), (60, false)] {
            let (accepted, _) = check("srv", &[listed(&"x".repeat(length), |_| {})]);
            assert_eq!(accepted.len() == 1, is_accepted, "{length}");
        }
    }

    #[test]
    fn the_second_of_two_similar_names_is_refused() {
        let tools = ["get_a", "get-A", "get_b"].map(|name| listed(name, |_| {}));
        let (accepted, refused) = check("srv", &tools);
        assert_eq!(accepted.iter().map(|tool| tool.tool.as_str()).collect::<Vec<_>>(), ["get_a", "get_b"]);
        assert_eq!(refused[0].name, "get-A");
        assert!(reasons(&refused)[0].contains("differs in case"));
    }

    #[test]
    fn a_server_has_a_maximum_number_of_tools() {
        let tools: Vec<_> = (0..10_000).map(|n| listed(&format!("t{n}"), |_| {})).collect();
        let (accepted, refused) = check("srv", &tools);
        assert_eq!((accepted.len(), refused.len()), (MAX_TOOLS, MAX_REFUSED));
        assert!(reasons(&refused).iter().all(|reason| reason.contains("more than 128")));
    }

    #[test]
    fn definitions_without_a_schema_or_of_a_huge_size_are_refused() {
        let tools = [
            listed("none", |definition| drop(definition.as_object_mut().unwrap().remove("inputSchema"))),
            listed("large", |definition| definition["annotations"] = json!("x".repeat(MAX_DEFINITION_BYTES))),
            listed("long", |definition| definition["inputSchema"]["title"] = json!("x".repeat(MAX_SCHEMA_BYTES))),
            listed("results", |definition| definition["outputSchema"] = json!({"title": "x".repeat(MAX_SCHEMA_BYTES)})),
        ];
        let (accepted, refused) = check("srv", &tools);
        assert_eq!(accepted.iter().map(|tool| tool.tool.as_str()).collect::<Vec<_>>(), ["results"]);
        for (reason, part) in
            reasons(&refused).iter().zip(["no parameter schema", "its definition has", "its parameter schema has"])
        {
            assert!(reason.contains(part), "{reason}");
        }
    }

    #[test]
    fn every_part_of_a_definition_counts_and_the_order_of_keys_does_not() {
        let digest = |change: &dyn Fn(&mut Value)| check("srv", &[listed("a", change)]).0[0].digest.clone();
        let first = digest(&|_| {});
        assert_eq!(
            first,
            digest(&|definition| {
                *definition = json!({"inputSchema": {"type": "object"}, "description": "a tool", "name": "a"});
            })
        );
        for change in [
            &(|definition: &mut Value| definition["description"] = json!("another")) as &dyn Fn(&mut Value),
            &|definition| definition["inputSchema"]["properties"] = json!({"x": {}}),
            &|definition| definition["annotations"] = json!({"readOnlyHint": true}),
            &|definition| definition["title"] = json!("t"),
            // What the model reads is the same, what the server said is not.
            &|definition| definition["description"] = json!("a \u{200b}tool"),
        ] {
            assert_ne!(first, digest(change));
        }
    }
}
