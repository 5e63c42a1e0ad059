//! `echo`: says back what it is told. For trying the way to a tool.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::host::spec;

pub(super) struct Echo;

impl Tool for Echo {
    fn spec(&self) -> ToolSpec {
        let parameters = json!({
            "type": "object",
            "properties": {"message": {"type": "string", "description": "What to say back."}},
            "required": ["message"],
            "additionalProperties": false
        });
        spec("echo", "Says the message back.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let message = invocation.arguments.get("message").cloned().unwrap_or(Value::Null);
        Box::pin(async move { Ok(ToolOutput { content: message, success: true }) })
    }
}
