//! A server's list of tools: each tool is read by itself, so that one which cannot be read hides no other.

use std::ops::Range;

use rmcp::model::Tool;
use serde::Deserialize;
use serde_json::{Map, Value, json, value::RawValue};

use super::redaction::Redaction;

/// A tool as a server lists it.
#[derive(Debug, Clone, PartialEq)]
pub struct ListedTool {
    /// The server's own name of the tool, or its place in the list if it has none: `#3`.
    pub name: String,
    /// The definition, or why it cannot be read.
    pub definition: Result<Value, &'static str>,
}

/// A page of a list.
pub(super) struct Page {
    pub(super) tools: Vec<ListedTool>,
    pub(super) next_cursor: Option<String>,
}

#[derive(Deserialize)]
#[serde(rename_all = "camelCase")]
struct RawPage<'p> {
    #[serde(borrow)]
    tools: Vec<&'p RawValue>,
    #[serde(borrow)]
    next_cursor: Option<&'p RawValue>,
}

/// The name of a tool, however deeply its definition is nested.
#[derive(Deserialize)]
struct Named {
    name: String,
}

impl Page {
    /// Reads a page, whose tools get these places in the list; none if it is not a page.
    pub(super) fn of(page: &str, places: Range<usize>, redaction: &Redaction) -> Option<Self> {
        let RawPage { tools, next_cursor } = serde_json::from_str(page).ok()?;
        Some(Self {
            tools: places.zip(tools).map(|(place, tool)| ListedTool::of(tool.get(), place, redaction)).collect(),
            next_cursor: next_cursor.and_then(|cursor| serde_json::from_str(cursor.get()).ok()),
        })
    }
}

impl ListedTool {
    /// A name with a secret is no longer one that a tool can have.
    fn of(tool: &str, place: usize, redaction: &Redaction) -> Self {
        let name = serde_json::from_str(tool).map(|Named { name }| redaction.text(&name));
        let definition = definition(tool).map(|mut definition| {
            redaction.json(&mut definition);
            definition
        });
        Self { name: name.unwrap_or_else(|_| format!("#{}", place + 1)), definition }
    }
}

fn definition(tool: &str) -> Result<Value, &'static str> {
    if !tool.starts_with('{') {
        return Err("its definition is not an object");
    }
    let mut fields: Map<String, Value> = serde_json::from_str(tool).map_err(|error| {
        let is_deep = error.to_string().starts_with("recursion limit");
        if is_deep { "its definition is nested too deeply" } else { "its definition cannot be read" }
    })?;
    if !fields.get("name").is_some_and(Value::is_string) {
        return Err("it has no name");
    }
    match fields.get("inputSchema") {
        None => return Err("it has no parameter schema"),
        Some(Value::Object(_)) => {}
        Some(_) => return Err("its parameter schema is not an object"),
    }
    if fields.get("execution").is_some_and(|execution| execution["taskSupport"] == "required") {
        return Err("it only runs as a task of the protocol, which is not supported");
    }
    fields.retain(|name, value| is_readable(name, value));
    let tool: Result<Tool, _> = serde_json::from_value(Value::Object(fields));
    // With the fields of the protocol only: others change nothing that a definition was approved for.
    tool.and_then(serde_json::to_value).map_err(|_| "its definition cannot be read")
}

/// Whether a field is as the protocol has it. A tool can be used without its annotations, icons and title.
fn is_readable(name: &str, value: &Value) -> bool {
    match name {
        "name" | "inputSchema" => true,
        _ => {
            let mut tool = json!({"name": "", "inputSchema": {}});
            tool[name] = value.clone();
            serde_json::from_value::<Tool>(tool).is_ok()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent::safety::LeakDetector;
    use rstest::rstest;

    use super::*;
    use crate::credentials::Credentials;

    fn redaction() -> Redaction {
        let user = LeakDetector::new([]).unwrap();
        Redaction::new("srv".to_owned(), Arc::new(Credentials::default()), Arc::new(user))
    }

    fn read(tool: &str) -> ListedTool {
        let page = Page::of(&format!("{{\"tools\":[{tool}]}}"), 6..7, &redaction()).unwrap();
        page.tools.into_iter().next().unwrap()
    }

    #[rstest]
    #[case::null("null", "#7", "its definition is not an object")]
    #[case::a_list("[\"a\"]", "a", "its definition is not an object")]
    #[case::no_name(r#"{"inputSchema":{}}"#, "#7", "it has no name")]
    #[case::a_number(r#"{"name":5,"inputSchema":{}}"#, "#7", "it has no name")]
    #[case::no_schema(r#"{"name":"a"}"#, "a", "it has no parameter schema")]
    #[case::null_schema(r#"{"name":"a","inputSchema":null}"#, "a", "its parameter schema is not an object")]
    #[case::half_a_character(
        r#"{"name":"a","description":"\ud800","inputSchema":{}}"#,
        "a",
        "its definition cannot be read"
    )]
    fn a_tool_that_cannot_be_read_has_a_reason(#[case] tool: &str, #[case] name: &str, #[case] reason: &'static str) {
        assert_eq!(read(tool), ListedTool { name: name.to_owned(), definition: Err(reason) });
    }

    #[test]
    fn a_deep_definition_keeps_its_name() {
        let deep = format!("{}{}", "[".repeat(500), "]".repeat(500));
        let tool = read(&format!("{{\"inputSchema\":{{\"enum\":{deep}}},\"name\":\"a\"}}"));
        assert_eq!((tool.name.as_str(), tool.definition), ("a", Err("its definition is nested too deeply")));
    }

    #[rstest]
    #[case(r#""annotations":{"readOnlyHint":"yes"}"#)]
    #[case(r#""annotations":true,"title":5,"icons":{},"description":["a"]"#)]
    #[case(r#""outputSchema":5,"_meta":"x","unknown":{"a":null}"#)]
    #[case(r#""annotations":null,"title":null"#)]
    fn fields_that_cannot_be_read_are_left_out(#[case] fields: &str) {
        let tool = read(&format!("{{\"name\":\"a\",{fields},\"inputSchema\":{{\"type\":\"object\"}}}}"));
        assert_eq!(tool.definition, Ok(json!({"name": "a", "inputSchema": {"type": "object"}})));
    }

    #[test]
    fn a_page_has_places_and_a_cursor() {
        let page = |text: &str| Page::of(text, 0..2, &redaction());
        let read = page(r#"{"tools":[null,null,null],"nextCursor":"x","_meta":{}}"#).unwrap();
        assert_eq!((read.tools.len(), read.next_cursor.as_deref()), (2, Some("x")));
        assert_eq!(page(r#"{"tools":[],"nextCursor":5}"#).unwrap().next_cursor, None);
        assert!(page(r#"{"content":[]}"#).is_none() && page(r#"{"tools":{}}"#).is_none());
    }
}
