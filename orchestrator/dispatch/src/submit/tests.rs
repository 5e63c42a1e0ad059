//! Jobs are created without HTTP: the idempotency key, the workspace, the row, the failures.

use std::time::Duration;

use futures_util::FutureExt as _;
use protocol::{InputFile, JobReason, JobState, LimitsRequest, RestartRequest, StateCounts};

use super::*;

use crate::test_util::{ProbedEngine, SubmitScene};

impl SubmitScene {
    async fn new() -> Self {
        Self::with_sandbox(|engine, clock| Sandbox::new(engine, clock)).await
    }

    async fn with_sandbox(sandbox: impl FnOnce(Arc<ProbedEngine>, Clock) -> (Sandbox, crate::Prober)) -> Self {
        Self::build(Clock::system(), sandbox).await
    }

    async fn create(&self, request: CreateJob, key: Option<&IdempotencyKey>) -> Result<Submitted, SubmitError> {
        self.submitter.submit_request("ada".to_owned(), submission(key), request).await
    }

    /// What is in the directory of all workspaces.
    fn workspace_entries(&self) -> Vec<String> {
        let entries = std::fs::read_dir(self.root.path().join("workspaces")).into_iter().flatten();
        entries.map(|entry| entry.unwrap().file_name().into_string().unwrap()).collect()
    }

    /// Whether the dispatcher was woken since the last call.
    fn is_woken(&self) -> bool {
        self.waker.woken().now_or_never().is_some()
    }
}

#[tokio::test]
async fn a_cost_limit_on_a_model_without_a_price_is_refused() {
    let scene = SubmitScene::new().await;
    let limits = Some(LimitsRequest { max_cost_usd: Some(1.0), ..LimitsRequest::default() });
    let refused = scene.create(CreateJob { limits, ..request() }, None).await;
    assert!(matches!(refused, Err(SubmitError::Unpriced(unpriced)) if unpriced.model == "model"));
    assert!(scene.workspace_entries().is_empty() && !scene.is_woken());
}

fn submission(key: Option<&IdempotencyKey>) -> Submission {
    Submission { source: Source::Api, key: key.cloned(), audit: None, thread: None }
}

fn key(digest: &str) -> IdempotencyKey {
    IdempotencyKey { user: "ada".to_owned(), key: "k".to_owned(), digest: digest.to_owned() }
}

fn request() -> CreateJob {
    let file =
        InputFile { path: "notes.txt".to_owned(), content: Some("hi".to_owned()), content_base64: None, mode: None };
    CreateJob { prompt: "work".to_owned(), files: vec![file], ..CreateJob::default() }
}

fn new_job(request: CreateJob, accepted: Accepted) -> NewJob {
    NewJob::new("ada".to_owned(), request, accepted)
}

fn created(outcome: Result<Submitted, SubmitError>) -> JobRecord {
    match outcome.unwrap() {
        Submitted::Created(job) => *job,
        other @ Submitted::Replayed { .. } => panic!("{other:?}"),
    }
}

#[tokio::test]
async fn a_created_job_is_stored_with_its_files_and_wakes_the_dispatcher() {
    let scene = SubmitScene::new().await;
    assert!(!scene.is_woken());
    let job = created(scene.create(request(), None).await);
    assert_eq!((job.brief.user_id.as_str(), job.brief.source), ("ada", Source::Api));
    assert_eq!(scene.submitter.store.job(job.id).await.unwrap().map(|stored| stored.brief), Some(job.brief));
    assert_eq!(scene.workspace_entries(), [job.id.to_string()], "the workspace and no mark");
    let notes = scene.submitter.workspaces.path(job.id).join("notes.txt");
    assert_eq!(std::fs::read_to_string(notes).unwrap(), "hi");
    assert!(scene.is_woken());
}

#[tokio::test]
async fn a_repeated_key_replays_the_first_response_and_leaves_no_workspace() {
    let scene = SubmitScene::new().await;
    let job = created(scene.create(request(), Some(&key("a"))).await);
    let Submitted::Replayed { status, body } = scene.create(request(), Some(&key("a"))).await.unwrap() else {
        panic!("created twice")
    };
    assert!(status == 201 && body.contains(&job.id.to_string()), "{status} {body}");
    assert!(matches!(scene.create(request(), Some(&key("b"))).await, Err(SubmitError::KeyReused)));
    // Two submissions at once: both pass the first lookup.
    let accepted = request::check(&request(), &scene.submitter.ceiling).unwrap();
    let new = new_job(request(), accepted);
    let again = scene.submitter.submit_validated(new, submission(Some(&key("a")))).await.unwrap();
    assert!(matches!(again, Submitted::Replayed { .. }));
    assert_eq!(scene.workspace_entries(), [job.id.to_string()]);
}

#[tokio::test]
async fn a_commit_that_fails_leaves_no_workspace_and_wakes_no_one() {
    let scene = SubmitScene::new().await;
    let accepted = request::check(&request(), &scene.submitter.ceiling).unwrap();
    let new = new_job(request(), accepted);
    let workspaces = scene.root.path().join("workspaces");
    let commit = move |store: Store, record: JobRecord| async move {
        assert!(workspaces.join(record.id.to_string()).join("notes.txt").exists(), "files come before the row");
        store.close().await;
        store.create_job(record, None, None).await
    };
    let failed = scene.submitter.submit_with_commit(new, Source::Tool, commit).await;
    assert!(matches!(failed, Err(SubmitError::Store(_))), "{failed:?}");
    assert_eq!(scene.workspace_entries(), Vec::<String>::new());
    assert!(!scene.is_woken());
}

#[tokio::test]
async fn without_a_sandbox_or_with_an_invalid_request_nothing_is_stored() {
    let scene = SubmitScene::with_sandbox(|engine, clock| Sandbox::disabled(engine, clock)).await;
    let refused = scene.create(request(), Some(&key("a"))).await;
    assert!(matches!(refused, Err(SubmitError::SandboxUnavailable { .. })), "{refused:?}");
    let invalid = scene.create(CreateJob::default(), None).await;
    assert!(matches!(invalid, Err(SubmitError::Rejected(_))), "{invalid:?}");
    assert_eq!(scene.workspace_entries(), Vec::<String>::new());
    let counts = scene.submitter.store.summary(None, scene.submitter.clock.now().date_naive()).await.unwrap();
    assert_eq!(counts.states, StateCounts::default());
}

#[tokio::test]
async fn a_restart_continues_a_failed_job_for_its_owner() {
    let scene = SubmitScene::new().await;
    let earlier = created(scene.create(request(), None).await);
    let restart = |job: JobRecord| {
        let submitter = Arc::clone(&scene.submitter);
        async move { submitter.restart(submission(None), &job, RestartRequest::default()).await }
    };
    let refused = restart(earlier.clone()).await;
    assert!(matches!(refused, Err(SubmitError::NotRestartable(JobState::Pending))), "{refused:?}");
    let now = scene.submitter.clock.now();
    let failed = earlier.fail(now, JobReason::Internal, "broken".to_owned()).unwrap().job;
    let job = created(restart(failed.clone()).await);
    assert_eq!((job.brief.restarted_from, &job.brief.user_id), (Some(failed.id), &failed.brief.user_id));
    assert!(job.brief.task().starts_with("work\n\n[Note: "), "{}", job.brief.task());
    assert!(scene.submitter.workspaces.path(job.id).join("notes.txt").exists());
    let other = RestartRequest { prompt: Some("another task".to_owned()) };
    let other = created(scene.submitter.restart(submission(None), &failed, other).await);
    assert_eq!((other.brief.title.as_str(), job.brief.title.as_str()), ("another task", "work"), "derived titles");
    // The note of the first restart is replaced.
    let failed_again = job.fail(now, JobReason::Internal, "broken".to_owned()).unwrap().job;
    let again = created(restart(failed_again).await);
    assert_eq!((again.brief.prompt.as_str(), again.brief.task().matches("[Note: ").count()), ("work", 1));
}

#[tokio::test]
async fn a_job_that_may_be_committed_keeps_its_workspace() {
    let scene = SubmitScene::new().await;
    let (request, accepted) = scene.submitter.check(request()).await.unwrap();
    let job = new_job(request, accepted);
    let commit = |store: Store, record: JobRecord| async move {
        store.create_job(record, None, None).await?;
        // The answer is lost.
        Err(StoreError::WriterFailed)
    };
    let lost = scene.submitter.submit_with_commit(job, Source::Api, commit).await;
    assert!(matches!(lost, Err(SubmitError::Store(StoreError::WriterFailed))), "{lost:?}");
    let (store, workspaces) = (&scene.submitter.store, &scene.submitter.workspaces);
    workspaces.remove_abandoned(store, Duration::ZERO).await;
    let [workspace] = &scene.workspace_entries()[..] else { panic!("{:?}", scene.workspace_entries()) };
    let id: protocol::JobId = workspace.parse().expect("the workspace without its mark");
    assert_eq!(std::fs::read_to_string(workspaces.path(id).join("notes.txt")).unwrap(), "hi");
    assert!(store.job(id).await.unwrap().is_some());
}
