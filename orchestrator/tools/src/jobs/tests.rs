//! The job tools called from a chat thread and from a run of a routine. Calls of jobs are stories of the whole
//! orchestrator.

use std::sync::Arc;

use agent::{ApprovalContext, ApprovalRequirement, Invocation, Tool, ToolContext, ToolError, ToolOutput, ToolPolicy};
use chrono::DateTime;
use protocol::{
    CallId, EgressView, JobId, JobReason, JobState, RunId, Source, ThreadId, ToolErrorKind, UserId, WorkId,
};
use serde_json::{Value, json};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{JobAccess, job_tools};
use base::clock::{Clock, ManualClock};
use dispatch::{AttemptRegistry, SubmitScene};
use domain::job::JobRecord;
use store::AuditFilter;

struct Scene {
    submit: SubmitScene,
    tools: Vec<Box<dyn Tool>>,
}

impl Scene {
    async fn new() -> Self {
        let clock = Clock::Manual(ManualClock::at(DateTime::UNIX_EPOCH));
        let submit = SubmitScene::at(clock.clone()).await;
        let access = JobAccess {
            submitter: Arc::clone(&submit.submitter),
            attempts: AttemptRegistry::new(clock, TaskTracker::new()),
            drain: CancellationToken::new(),
        };
        Self { submit, tools: job_tools(&access).into() }
    }

    /// A call with its own id, by `owner`.
    async fn call_as(&self, owner: &str, work: WorkId, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        self.call_again(JobId::generate().to_string(), owner, work, (name, arguments)).await
    }

    async fn call_again(
        &self,
        call_id: String,
        owner: &str,
        work: WorkId,
        (name, arguments): (&str, Value),
    ) -> Result<ToolOutput, ToolError> {
        let context = ToolContext {
            owner: UserId(owner.to_owned()),
            work,
            approval: ApprovalContext::autonomous(),
            policy: ToolPolicy::default(),
            only: None,
            egress: EgressView::default(),
            max_children: 0,
        };
        let (context, stop) = (Arc::new(context), CancellationToken::new());
        self.tool(name).call(Invocation { call_id: CallId(call_id), arguments, context, stop }).await
    }

    /// A call in a thread of ada's.
    async fn call(&self, name: &str, arguments: Value) -> Result<ToolOutput, ToolError> {
        self.call_as("ada", WorkId::Thread(ThreadId::nil()), name, arguments).await
    }

    fn tool(&self, name: &str) -> &dyn Tool {
        self.tools.iter().find(|tool| tool.spec().definition.name == name).unwrap().as_ref()
    }

    async fn create(&self) -> JobId {
        let output = self.call("create_job", json!({"prompt": "work", "title": "A title"})).await.unwrap();
        assert_eq!(output.content["state"], "pending");
        serde_json::from_value(output.content["job_id"].clone()).unwrap()
    }

    async fn job(&self, id: JobId) -> JobRecord {
        self.submit.submitter.store.job(id).await.unwrap().unwrap()
    }
}

fn kind(result: &Result<ToolOutput, ToolError>) -> Option<ToolErrorKind> {
    result.as_ref().err().map(|error| error.0.kind)
}

#[tokio::test]
async fn a_thread_creates_jobs_of_its_owner_once_for_each_call() {
    let scene = Scene::new().await;
    let thread = WorkId::Thread(ThreadId::nil());
    let call = ("create_job", json!({"prompt": "work", "limits": {"max_tokens": 5}, "title": "A title"}));
    let first = scene.call_again("c1".to_owned(), "ada", thread, call.clone()).await.unwrap();
    let again = scene.call_again("c1".to_owned(), "ada", thread, call.clone()).await.unwrap();
    assert_eq!(again, first);
    let id: JobId = serde_json::from_value(first.content["job_id"].clone()).unwrap();
    let brief = scene.job(id).await.brief;
    assert_eq!((brief.user_id.as_str(), brief.title.as_str(), brief.limits.max_tokens), ("ada", "A title", 5));
    assert_eq!((brief.source, brief.parent_id, brief.depth), (Source::Tool, None, 0));
    let listed = scene.call("list_jobs", json!({})).await.unwrap().content;
    assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
    let other = ("create_job", json!({"prompt": "other"}));
    let reused = scene.call_again("c1".to_owned(), "ada", thread, other.clone()).await;
    assert_eq!(kind(&reused), Some(ToolErrorKind::InvalidParameters));
    let elsewhere = WorkId::Thread(ThreadId::generate());
    assert!(scene.call_again("c1".to_owned(), "ada", elsewhere, other).await.is_ok(), "another thread's call");
    let all = AuditFilter { limit: 10, ..AuditFilter::default() };
    let entries = scene.submit.submitter.store.audit(&all).await.unwrap();
    let actions: Vec<_> =
        entries.into_iter().filter_map(|(_, one)| one).map(|one| (one.role.as_str(), one.action)).collect();
    assert_eq!(actions, [("agent", "job.create".to_owned()), ("agent", "job.create".to_owned())]);
}

#[tokio::test]
async fn invalid_requests_name_their_fields() {
    let scene = Scene::new().await;
    for (arguments, field) in [
        (json!({"prompt": " "}), "prompt: "),
        (json!({"prompt": "work", "limits": {"memory_mb": 1}}), "limits.memory_mb: "),
        (json!({"prompt": "work", "limits": {"memory_mb": -1}}), "limits: "),
        (json!({"prompt": "work", "tools": ["no such"]}), "tools[0]: "),
    ] {
        let refused = scene.call("create_job", arguments).await.unwrap_err();
        assert_eq!(refused.0.kind, ToolErrorKind::InvalidParameters);
        assert!(refused.0.message.starts_with(field), "{}", refused.0.message);
    }
    assert_eq!(scene.call("list_jobs", json!({})).await.unwrap().content, json!({"items": []}));
}

#[tokio::test]
async fn a_thread_follows_prompts_and_cancels_the_jobs_of_its_owner() {
    let scene = Scene::new().await;
    let id = scene.create().await;
    let named = json!({"job_id": id});
    let status = scene.call("job_status", named.clone()).await.unwrap().content;
    assert_eq!(
        (&status["state"], &status["title"], &status["usage"]["llm_calls"]),
        (&json!("pending"), &json!("A title"), &json!(0))
    );
    let events = scene.call("job_events", named.clone()).await.unwrap().content;
    assert_eq!((&events["items"][0]["kind"], &events["items"][0]["seq"]), (&json!("state"), &json!(1)));
    assert_eq!(events["next_after"], Value::Null);
    let prompt = ("job_prompt", json!({"job_id": id, "content": "and this"}));
    let thread = WorkId::Thread(ThreadId::nil());
    let sent = scene.call_again("p1".to_owned(), "ada", thread, prompt.clone()).await.unwrap();
    assert_eq!(scene.call_again("p1".to_owned(), "ada", thread, prompt).await.unwrap(), sent);
    let delivered = scene.submit.submitter.store.next_prompt(id, None, DateTime::UNIX_EPOCH).await.unwrap().unwrap();
    assert_eq!(
        (json!(delivered.prompt_id), delivered.content.as_str()),
        (sent.content["prompt_id"].clone(), "and this")
    );
    let cancelled = scene.call("cancel_job", named.clone()).await.unwrap().content;
    assert_eq!(cancelled["state"], "cancelled");
    assert_eq!(scene.call("cancel_job", named.clone()).await.unwrap().content["state"], "cancelled");
    assert_eq!(scene.job(id).await.reason(), Some(JobReason::CancelledByUser));
    let late = scene.call("job_prompt", json!({"job_id": id, "content": "late"})).await;
    assert_eq!(kind(&late), Some(ToolErrorKind::Failed));
    let ended = scene.call("create_job", json!({"prompt": "work"})).await.unwrap().content["job_id"].clone();
    for (state, expected) in [("cancelled", json!(id)), ("pending", ended)] {
        let listed = scene.call("list_jobs", json!({"state": state})).await.unwrap().content;
        assert_eq!(listed["items"].as_array().map(Vec::len), Some(1), "{listed}");
        assert_eq!(listed["items"][0]["job_id"], expected);
    }
}

#[tokio::test]
async fn other_users_and_runs_reach_no_job() {
    let scene = Scene::new().await;
    let id = scene.create().await;
    let (thread, run) = (WorkId::Thread(ThreadId::nil()), WorkId::Run(RunId::generate()));
    for (owner, work, id) in [
        ("bob", thread, json!(id)),
        ("ada", run, json!(id)),
        ("ada", thread, json!(JobId::generate())),
        ("ada", thread, json!("no id")),
    ] {
        for name in ["job_status", "job_events", "cancel_job", "job_prompt"] {
            let arguments = json!({"job_id": id, "content": "hi"});
            let refused = scene.call_as(owner, work, name, arguments).await;
            assert_eq!(kind(&refused), Some(ToolErrorKind::NotFound), "{name} {id} {refused:?}");
        }
    }
    let created = scene.call_as("ada", run, "create_job", json!({"prompt": "work"})).await;
    assert_eq!(kind(&created), Some(ToolErrorKind::NotAuthorized));
    for (owner, work) in [("bob", thread), ("ada", run)] {
        let listed = scene.call_as(owner, work, "list_jobs", json!({})).await.unwrap().content;
        assert_eq!(listed, json!({"items": []}));
    }
    assert_eq!(scene.job(id).await.state(), JobState::Pending);
}

#[tokio::test]
async fn only_what_changes_jobs_asks_a_person() {
    let scene = Scene::new().await;
    let mut required: Vec<(String, ApprovalRequirement)> =
        scene.tools.iter().map(|tool| tool.spec()).map(|spec| (spec.definition.name, spec.approval)).collect();
    required.sort_by(|one, other| one.0.cmp(&other.0));
    let asks: Vec<&str> = required
        .iter()
        .filter(|(_, requirement)| *requirement == ApprovalRequirement::UnlessAutoApproved)
        .map(|(name, _)| name.as_str())
        .collect();
    assert_eq!(asks, ["cancel_job", "create_job", "job_prompt"]);
    assert!(required.iter().all(|(_, requirement)| *requirement != ApprovalRequirement::Always));
}
