//! `json`: parses, queries and prints JSON, for models, which are not reliable at it.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::{Value, json};

use super::builtin::{object, spec};

pub(super) struct Json;

impl Tool for Json {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&["operation"], properties());
        spec("json", "Parses JSON text, gets a part of it by JSON pointer, or writes a value as JSON text.", parameters)
    }

    /// A value may be given instead of its text. It has any type, which some providers do not take.
    fn accepted_parameters(&self) -> Option<Value> {
        let mut properties = properties();
        properties["value"] = json!({});
        Some(object(&["operation"], properties))
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move { run(&invocation.arguments).map(ToolOutput::success) })
    }
}

fn properties() -> Value {
    json!({
        "operation": {"type": "string", "enum": ["parse", "query", "stringify"]},
        "text": {"type": "string", "description": "The JSON text."},
        "pointer": {"type": "string", "description": "query: a JSON pointer (RFC 6901), such as /items/0/name."},
        "pretty": {"type": "boolean", "description": "stringify: with line breaks."}
    })
}

fn run(arguments: &Value) -> Result<Value, ToolError> {
    let wrong = |message: String| ToolError::new(ToolErrorKind::InvalidParameters, message);
    let given = || match (arguments.get("text").and_then(Value::as_str), arguments.get("value")) {
        (Some(text), _) => serde_json::from_str(text)
            .map_err(|error| ToolError::new(ToolErrorKind::Failed, format!("text is not JSON: {error}"))),
        (None, Some(value)) => Ok(value.clone()),
        (None, None) => Err(wrong("give text or value".to_owned())),
    };
    match arguments.get("operation").and_then(Value::as_str) {
        Some("parse") => given(),
        Some("query") => {
            let pointer = arguments.get("pointer").and_then(Value::as_str).unwrap_or("");
            if !pointer.is_empty() && !pointer.starts_with('/') {
                return Err(wrong(format!(
                    "{pointer:?} is not a JSON pointer; it must start with /, such as /items/0"
                )));
            }
            given()?
                .pointer(pointer)
                .cloned()
                .ok_or_else(|| ToolError::new(ToolErrorKind::Failed, format!("nothing is at {pointer:?}")))
        }
        Some("stringify") => {
            let value = given()?;
            let pretty = arguments.get("pretty").and_then(Value::as_bool).unwrap_or(false);
            let text = if pretty { serde_json::to_string_pretty(&value) } else { serde_json::to_string(&value) };
            text.map(Value::String).map_err(|error| ToolError::new(ToolErrorKind::Failed, error.to_string()))
        }
        _ => Err(wrong("operation must be parse, query or stringify".to_owned())),
    }
}
