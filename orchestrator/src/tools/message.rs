//! `message`: a notification to the owner of the work.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOrigin, ToolOutput, ToolSpec};
use protocol::{NotificationKind, ToolErrorKind};
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
            let content = invocation.arguments.get("content").and_then(Value::as_str).unwrap_or_default();
            if content.len() > MAX_MESSAGE_BYTES {
                let message = format!("content must be at most {MAX_MESSAGE_BYTES} bytes");
                return Err(ToolError::new(ToolErrorKind::InvalidParameters, message));
            }
            let owner = invocation.context.owner.as_str();
            self.store.notify(notification(&invocation, content), self.clock.now()).await.map_err(|error| {
                tracing::error!(
                    user = owner,
                    error = &error as &dyn std::error::Error,
                    "a message could not be stored"
                );
                ToolError::new(ToolErrorKind::Failed, "the message could not be stored; try again")
            })?;
            Ok(ToolOutput::success(json!({"sent": true})))
        })
    }
}

/// The notification of a call. Its title is the job's, where a job sends it.
fn notification(invocation: &Invocation, content: &str) -> NewNotification {
    let (job, run) = match invocation.context.origin {
        ToolOrigin::Job(job) => (Some(job), None),
        ToolOrigin::Run(run) => (None, Some(run)),
        ToolOrigin::Thread(_) => (None, None),
    };
    NewNotification {
        user: invocation.context.owner.as_str().to_owned(),
        kind: NotificationKind::Message,
        title: if job.is_some() { None } else { Some("Message".to_owned()) },
        text: content.to_owned(),
        job,
        run,
        // Only a job's worker repeats a call.
        call_id: job.map(|_| invocation.call_id.as_str().to_owned()),
        channel: invocation.arguments.get("channel").and_then(Value::as_str).map(str::to_owned),
    }
}
