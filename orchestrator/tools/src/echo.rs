//! `echo`: returns its message. For testing the path of a tool call.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::{Value, json};

use super::builtin::{object, spec};

pub(super) struct Echo;

impl Tool for Echo {
    fn spec(&self) -> ToolSpec {
        let properties = json!({"message": {"type": "string", "description": "The text to return."}});
        let parameters = object(&["message"], properties);
        spec("echo", "Returns the message.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let message = invocation.arguments.get("message").cloned().unwrap_or(Value::Null);
        Box::pin(async move { Ok(ToolOutput::success(message)) })
    }
}
