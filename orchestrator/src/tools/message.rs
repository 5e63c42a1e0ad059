//! `message`: a notification to the job's owner.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOrigin, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::{Value, json};

use super::builtin::spec;
use crate::{
    clock::Clock,
    store::{NewNotification, Store},
};

/// Longest notification; more belongs into the result or a file.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;

pub(super) struct Message {
    pub(super) store: Store,
    pub(super) clock: Clock,
}

impl Tool for Message {
    fn spec(&self) -> ToolSpec {
        let parameters = json!({
            "type": "object",
            "properties": {
                "content": {"type": "string", "minLength": 1, "description": "What to tell the owner."},
                "channel": {"type": "string", "maxLength": 64, "description": "Where to; the owner's default when left out."}
            },
            "required": ["content"],
            "additionalProperties": false
        });
        spec("message", "Sends a notification to the person who owns this work.", parameters)
    }

    fn approval(&self, _arguments: &Value) -> ApprovalRequirement {
        ApprovalRequirement::UnlessAutoApproved
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let ToolOrigin::Job(job) = invocation.context.origin else {
                return Err(ToolError::new(ToolErrorKind::NotAuthorized, "only a job can send a message"));
            };
            let content = invocation.arguments.get("content").and_then(Value::as_str).unwrap_or_default();
            if content.len() > MAX_MESSAGE_BYTES {
                let message = format!("content must be at most {MAX_MESSAGE_BYTES} bytes");
                return Err(ToolError::new(ToolErrorKind::InvalidParameters, message));
            }
            let channel = invocation.arguments.get("channel").and_then(Value::as_str);
            let notification = NewNotification { job, call_id: invocation.call_id.as_str(), channel, content };
            self.store.notify(&notification, self.clock.now()).await.map_err(|error| {
                tracing::error!(job.id = %job, error = &error as &dyn std::error::Error, "a message could not be stored");
                ToolError::new(ToolErrorKind::Failed, "the message could not be stored; try again")
            })?;
            Ok(ToolOutput::success(json!({"sent": true})))
        })
    }
}
