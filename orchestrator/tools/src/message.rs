//! `message`: a notification to the owner of the work.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{NotificationKind, ToolErrorKind};
use serde_json::{Value, json};

use super::builtin::{object, spec};
use base::clock::Clock;
use store::{NewNotification, Store};

pub(super) const NAME: &str = "message";

/// Longest notification; more belongs into the result or a file.
const MAX_MESSAGE_BYTES: usize = 16 * 1024;

pub(super) struct Message {
    pub(super) store: Store,
    pub(super) clock: Clock,
}

impl Tool for Message {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "content": {"type": "string", "minLength": 1, "description": "What to tell the owner."},
            "channel": {"type": "string", "maxLength": 64, "description": "Where to; the owner's default when left out."}
        });
        ToolSpec {
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec(NAME, "Sends a notification to the person who owns this work.", object(&["content"], properties))
        }
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
    let work = invocation.context.work;
    NewNotification {
        user: invocation.context.owner.as_str().to_owned(),
        kind: NotificationKind::Message,
        title: if work.job().is_some() { None } else { Some("Message".to_owned()) },
        text: content.to_owned(),
        routine: None,
        job: work.job(),
        run: work.run(),
        // Only a job's worker repeats a call.
        call_id: work.job().map(|_| invocation.call_id.as_str().to_owned()),
        channel: invocation.arguments.get("channel").and_then(Value::as_str).map(str::to_owned),
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent::{ApprovalContext, ToolContext, ToolPolicy};
    use protocol::{CallId, EgressView, JobState, RunId, ThreadId, UserId, WorkId};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use domain::job::sample;
    use store::NotificationFilter;

    fn invocation(work: WorkId, text: &str) -> Invocation {
        let context = ToolContext {
            owner: UserId("ada".to_owned()),
            work,
            approval: ApprovalContext::autonomous(),
            policy: ToolPolicy::default(),
            only: None,
            egress: EgressView::default(),
            max_children: 0,
        };
        let arguments = json!({"content": text});
        Invocation {
            call_id: CallId::from("t1"),
            arguments,
            context: Arc::new(context),
            stop: CancellationToken::new(),
        }
    }

    #[tokio::test]
    async fn a_message_reaches_its_owner_wherever_it_is_sent() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let job = sample::job(JobState::Pending);
        let (id, title) = (job.id, job.brief.title.clone());
        store.create_job(job, None, None).await.unwrap();
        let run = RunId::generate();
        let tool = Message { store: store.clone(), clock: Clock::system() };
        let works = [
            (WorkId::Job(id), "of a job"),
            (WorkId::Run(run), "of a run"),
            (WorkId::Thread(ThreadId::nil()), "of a thread"),
        ];
        for (work, content) in works {
            assert!(tool.call(invocation(work, content)).await.unwrap().success);
        }
        let filter = NotificationFilter { user: "ada".to_owned(), limit: 10, ..NotificationFilter::default() };
        let sent: Vec<_> = store
            .notifications(&filter)
            .await
            .unwrap()
            .into_iter()
            .rev()
            .filter_map(|(_, one)| one)
            .map(|one| (one.text, one.title, one.job_id, one.run_id))
            .collect();
        let generic = || "Message".to_owned();
        let expected = [
            ("of a job".to_owned(), title, Some(id), None),
            ("of a run".to_owned(), generic(), None, Some(run)),
            ("of a thread".to_owned(), generic(), None, None),
        ];
        assert_eq!(sent, expected);
        let too_long = "x".repeat(MAX_MESSAGE_BYTES + 1);
        let refused = tool.call(invocation(WorkId::Job(id), &too_long)).await.unwrap_err();
        assert_eq!(refused.0.kind, ToolErrorKind::InvalidParameters);
        store.close().await;
    }
}
