//! Model calls of jobs on a real database.

use protocol::{CallId, Execution, FinishReason, JobId, JobState, Limits};

use super::*;
use domain::job::sample;

struct Scene {
    directory: tempfile::TempDir,
    store: Store,
    job: JobId,
    now: DateTime<Utc>,
}

impl Scene {
    async fn new() -> Self {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let mut scene = Self { directory, store, job: JobId::nil(), now: sample::now() };
        scene.job = scene.add_job().await;
        scene
    }

    /// A running job with a budget.
    async fn add_job(&self) -> JobId {
        let store = &self.store;
        let mut job = sample::job(JobState::InProgress);
        job.brief_mut().limits = Limits { max_tokens: 1_000, ..Limits::default() };
        let id = job.id;
        store.create_job(job, None, None).await.unwrap();
        // A new row is at no attempt yet.
        store
            .write_one(transaction!(|tx| {
                let begin = sqlx::query("UPDATE jobs SET attempt = 1 WHERE id = $1").bind(id);
                begin.execute(&mut tx.db).await?;
                Ok(())
            }))
            .await
            .unwrap();
        id
    }

    fn key(&self, call_id: &str) -> CallKey {
        CallKey { execution: Execution::new(self.job, 1), call_id: CallId(call_id.to_owned()) }
    }

    fn call(&self, call_id: &str) -> NewCall {
        NewCall {
            key: self.key(call_id),
            request_digest: "digest".to_owned(),
            at: self.now,
            provider: "primary".to_owned(),
            model: "m".to_owned(),
            user: "ada".to_owned(),
            estimate: CallEstimate {
                prompt_tokens: 100,
                max_output_tokens: 50,
                prices: Some((1_000_000, 2_000_000)),
                prompt_price: Some(1_000_000),
            },
            max_answers: 2,
            max_calls: 16,
            budget: Some(DayLimits::default()),
        }
    }

    async fn open(&self, call_id: &str) -> OpenedCall {
        self.store.open_model_call(&self.call(call_id)).await.unwrap()
    }

    async fn reserved(&self, call_id: &str) -> Reserved {
        match self.open(call_id).await {
            OpenedCall::Open { reserved, .. } => reserved,
            other => panic!("{other:?}"),
        }
    }

    async fn usage(&self) -> (u64, u64, u64) {
        let usage = self.store.job(self.job).await.unwrap().unwrap().usage;
        (usage.llm_calls, usage.input_tokens, usage.output_tokens)
    }

    fn answered(&self, call_id: &str, reserved: Reserved) -> CallRow {
        let usage = TokenUsage { input_tokens: 90, output_tokens: 10, ..TokenUsage::default() };
        let completion = Completion {
            content: "done".to_owned(),
            tool_calls: vec![],
            reasoning: None,
            native: None,
            finish_reason: FinishReason::Stop,
            usage,
            notice: None,
            text_tool_calls: None,
        };
        CallRow { usage, answer: Ok(completion), ..CallRow::aborted(&self.call(call_id), reserved, self.now) }
    }
}

#[tokio::test]
async fn a_call_interrupted_by_a_crash_is_charged_its_prompt_once_and_repeated() {
    let scene = Scene::new().await;
    scene.reserved("c1").await;
    assert_ne!(scene.store.reserved().await.unwrap(), (0, 0));
    assert_eq!(scene.store.close_abandoned_calls(scene.now).await.unwrap(), 1);
    assert_eq!(scene.store.close_abandoned_calls(scene.now).await.unwrap(), 0, "a second start finds nothing");
    assert_eq!(scene.store.reserved().await.unwrap(), (0, 0));
    assert_eq!(scene.usage().await, (1, 100, 0));
    let [(_, shown)] = scene.store.model_calls(scene.job, None, 10).await.unwrap().try_into().unwrap();
    assert!(shown.unwrap().error.unwrap().starts_with("aborted: "));
    let reserved = scene.reserved("c1").await;
    scene.store.close_model_call(&scene.answered("c1", reserved)).await.unwrap();
    assert_eq!(scene.usage().await, (1, 190, 10), "one call, with what both tries took");
    let [(_, shown)] = scene.store.model_calls(scene.job, None, 10).await.unwrap().try_into().unwrap();
    let shown = shown.unwrap();
    assert_eq!((shown.error, shown.usage.input_tokens, shown.cost_usd), (None, 190, Some(0.0002)));
    scene.store.close().await;
}

#[tokio::test]
async fn a_repetition_that_is_not_made_leaves_the_interrupted_call_counted() {
    let scene = Scene::new().await;
    scene.reserved("c1").await;
    scene.store.close_abandoned_calls(scene.now).await.unwrap();
    let reserved = scene.reserved("c1").await;
    scene.store.release_model_call(&scene.call("c1").key, "ada", &reserved).await.unwrap();
    assert_eq!(scene.usage().await, (1, 100, 0));
    let [(_, shown)] = scene.store.model_calls(scene.job, None, 10).await.unwrap().try_into().unwrap();
    assert!(shown.unwrap().error.unwrap().starts_with("aborted: "));
    // A further one that is made counts once.
    let reserved = scene.reserved("c1").await;
    scene.store.close_model_call(&scene.answered("c1", reserved)).await.unwrap();
    assert_eq!(scene.usage().await, (1, 190, 10));
    scene.store.close().await;
}

#[tokio::test]
async fn a_call_is_closed_once() {
    let scene = Scene::new().await;
    let reserved = scene.reserved("c1").await;
    let row = scene.answered("c1", reserved);
    scene.store.close_model_call(&row).await.unwrap();
    // As a write that is tried again because its answer was lost.
    scene.store.close_model_call(&row).await.unwrap();
    assert_eq!(scene.usage().await, (1, 90, 10));
    assert_eq!(scene.store.reserved().await.unwrap(), (0, 0));
    let OpenedCall::Known(known) = scene.open("c1").await else { panic!("it is recorded") };
    assert_eq!(known.answer.map(|answer| answer.content).as_deref(), Some("done"));
    scene.store.close().await;
}

#[tokio::test]
async fn a_job_has_the_kind_of_the_error_of_its_last_call() {
    let scene = Scene::new().await;
    let failed = |kind: ErrorKind| Err(CallFailure { kind, message: format!("{kind}: m") });
    let quota = Some("quota".to_owned());
    for (id, answer, expected) in [
        ("c1", Some(failed(ErrorKind::Quota)), quota),
        ("c2", None, None),
        ("c3", Some(failed(ErrorKind::Server)), Some("server".to_owned())),
    ] {
        let reserved = scene.reserved(id).await;
        let row = scene.answered(id, reserved);
        let row = CallRow { answer: answer.unwrap_or_else(|| row.answer.clone()), ..row };
        scene.store.close_model_call(&row).await.unwrap();
        let last: Option<String> = sqlx::query_scalar("SELECT last_call_error FROM jobs WHERE id = $1")
            .bind(scene.job)
            .fetch_one(&scene.store.read)
            .await
            .unwrap();
        assert_eq!(last, expected, "{id}");
    }
    scene.store.close().await;
}

/// The calls of the last answer are open when nothing reports them. The wall clock was set back before that answer.
#[tokio::test]
async fn the_last_answer_is_the_one_that_was_made_last() {
    let scene = Scene::new().await;
    for (id, at) in [("first", scene.now), ("second", scene.now - chrono::TimeDelta::hours(1))] {
        let reserved = scene.reserved(id).await;
        let mut row = CallRow { at, ..scene.answered(id, reserved) };
        if let Ok(answer) = &mut row.answer {
            answer.tool_calls = vec![protocol::ToolCall {
                id: format!("call of the {id}"),
                name: "echo".to_owned(),
                arguments: serde_json::Value::Null,
            }];
        }
        scene.store.close_model_call(&row).await.unwrap();
    }
    let transcript = scene.store.transcript(scene.job).await.unwrap();
    let [protocol::Message::Assistant { tool_calls, .. }] = transcript.as_slice() else { panic!("{transcript:?}") };
    assert_eq!(tool_calls.iter().map(|call| call.id.as_str()).collect::<Vec<_>>(), ["call of the second"]);
    scene.store.close().await;
}

#[tokio::test]
async fn calls_in_flight_count_against_the_quota_until_they_are_released() {
    let scene = Scene::new().await;
    let first = scene.reserved("c1").await;
    scene.reserved("c2").await;
    assert_eq!(scene.open("c3").await, OpenedCall::LimitReached(CallsMade::default()));
    scene.store.release_model_call(&scene.call("c1").key, "ada", &first).await.unwrap();
    assert_eq!(scene.store.model_calls(scene.job, None, 10).await.unwrap().len(), 1, "a released call leaves no row");
    assert!(matches!(scene.open("c3").await, OpenedCall::Open { .. }));
    assert_eq!(scene.usage().await, (0, 0, 0));
    scene.store.close().await;
}

#[tokio::test]
async fn a_call_of_an_attempt_that_is_over_is_not_opened() {
    let scene = Scene::new().await;
    let key = CallKey { execution: Execution::new(scene.job, 2), ..scene.key("c1") };
    let old = NewCall { key, ..scene.call("c1") };
    assert_eq!(scene.store.open_model_call(&old).await.unwrap(), OpenedCall::NotLive);
    scene.store.close().await;
}

#[tokio::test]
async fn a_call_that_cannot_be_closed_keeps_no_other_open() {
    let scene = Scene::new().await;
    let mut other = Scene { job: scene.add_job().await, ..scene };
    other.reserved("c1").await;
    let (bad, good) = (other.job, other.add_job().await);
    let mut raw = crate::tests::raw(&other.directory).await;
    sqlx::query("UPDATE jobs SET limits = '{' WHERE id = $1").bind(bad).execute(&mut raw).await.unwrap();
    other.job = good;
    other.reserved("c1").await;
    other.reserved("c2").await;
    sqlx::query("UPDATE model_calls SET attempt = -1 WHERE work_id = $1 AND call_id = 'c2'")
        .bind(good)
        .execute(&mut raw)
        .await
        .unwrap();
    assert_eq!(other.store.close_abandoned_calls(other.now).await.unwrap(), 1);
    assert_eq!(other.usage().await, (1, 100, 0));
    assert_eq!(other.store.reserved().await.unwrap(), (0, 0));
    let charged: i64 =
        sqlx::query_scalar("SELECT input_tokens FROM jobs WHERE id = $1").bind(bad).fetch_one(&mut raw).await.unwrap();
    assert_eq!(charged, 0, "nothing of what failed is left");
    other.store.close().await;
}
