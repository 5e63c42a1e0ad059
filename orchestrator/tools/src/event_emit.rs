//! `event_emit`: an event of a system, which may fire routines of the owner.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::{Value, json};

use super::builtin::{object, spec};
use base::clock::Clock;
use store::{EventName, NewRoutineEvent, Store};

pub(super) const NAME: &str = "event_emit";

/// Maximum length of a source and a type.
const MAX_NAME_BYTES: usize = 128;
/// Maximum size of a payload as JSON.
const MAX_PAYLOAD_BYTES: usize = 256 * 1024;
/// Who sends Gantry's own events.
const RESERVED_SOURCE: &str = "gantry";

pub(super) struct EventEmit {
    pub(super) store: Store,
    pub(super) clock: Clock,
}

impl Tool for EventEmit {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "source": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES, "description": "Who sends it."},
            "event_type": {"type": "string", "minLength": 1, "maxLength": MAX_NAME_BYTES, "description": "Its type, such as build.finished."},
            "payload": {"type": "object", "description": "Its content."}
        });
        let parameters = object(&["source", "event_type"], properties);
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec(NAME, "Emits an event that starts the owner's routines which wait for it.", parameters)
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let owner = invocation.context.owner.as_str().to_owned();
            let event = event(&invocation, owner.clone())?;
            let emitted = self.store.emit_routine_event(event, self.clock.now()).await.map_err(|error| {
                let error = &error as &dyn std::error::Error;
                tracing::error!(user = owner, error, "an event could not be stored");
                ToolError::new(ToolErrorKind::Failed, "the event could not be stored; try again")
            })?;
            if emitted {
                return Ok(ToolOutput::success(json!({"emitted": true})));
            }
            Err(ToolError::new(ToolErrorKind::Failed, "too many events wait for the owner's routines; try again later"))
        })
    }
}

/// The event of a call.
fn event(invocation: &Invocation, user: String) -> Result<NewRoutineEvent, ToolError> {
    let invalid = |message: String| ToolError::new(ToolErrorKind::InvalidParameters, message);
    let name = |field: &str| {
        let name = invocation.arguments.get(field).and_then(Value::as_str).unwrap_or_default().trim();
        if name.is_empty() || name.len() > MAX_NAME_BYTES {
            return Err(invalid(format!("{field} must have 1 to {MAX_NAME_BYTES} bytes")));
        }
        Ok(name.to_owned())
    };
    let (source, event_type) = (name("source")?, name("event_type")?);
    if source.eq_ignore_ascii_case(RESERVED_SOURCE) {
        return Err(invalid(format!(
            "source must not be {RESERVED_SOURCE}, which is the source of Gantry's own events"
        )));
    }
    let payload = invocation.arguments.get("payload").cloned().unwrap_or_else(|| json!({}));
    if payload.to_string().len() > MAX_PAYLOAD_BYTES {
        return Err(invalid(format!("payload must have at most {MAX_PAYLOAD_BYTES} bytes as JSON")));
    }
    let cause = Some(invocation.context.work);
    Ok(NewRoutineEvent { user, name: EventName::System { source, event_type }, payload, cause })
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent::{ApprovalContext, ToolContext, ToolPolicy};
    use protocol::{CallId, EgressView, RunId, UserId, WorkId};
    use rstest::rstest;
    use tokio_util::sync::CancellationToken;

    use super::*;

    fn invocation(arguments: Value) -> Invocation {
        let context = ToolContext {
            owner: UserId("ada".to_owned()),
            work: WorkId::Run(RunId::generate()),
            approval: ApprovalContext::autonomous(),
            policy: ToolPolicy::default(),
            only: None,
            egress: EgressView::default(),
            max_children: 0,
        };
        Invocation {
            call_id: CallId::from("t1"),
            arguments,
            context: Arc::new(context),
            stop: CancellationToken::new(),
        }
    }

    #[rstest]
    #[case(json!({"source": "ci", "event_type": "build.finished"}), None)]
    #[case(json!({"source": " ", "event_type": "a"}), Some("source must have"))]
    #[case(json!({"source": "a", "event_type": "b".repeat(129)}), Some("event_type must have"))]
    #[case(json!({"source": "Gantry", "event_type": "job.completed"}), Some("must not be gantry"))]
    #[case(json!({"source": "a", "event_type": "b", "payload": {"c": "d".repeat(300_000)}}), Some("payload must have"))]
    fn events_are_checked(#[case] arguments: Value, #[case] refused: Option<&str>) {
        match (event(&invocation(arguments), "ada".to_owned()), refused) {
            (Ok(event), None) => assert_eq!(event.payload, json!({})),
            (Err(error), Some(expected)) => assert!(error.0.message.contains(expected), "{}", error.0.message),
            (outcome, _) => panic!("{outcome:?}"),
        }
    }
}
