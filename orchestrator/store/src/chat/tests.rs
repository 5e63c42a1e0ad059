//! Tests of threads on a real database.

use std::time::Duration;

use agent::ApprovalRequest;
use protocol::{CallId, GateDecision, JobReason, ResolveGate};
use serde_json::json;

use super::*;
use domain::{gate::GateResolver, job::sample};

use crate::{
    GateAnswer, GateOutcome, GateTarget, Store,
    tests::{raw, walks},
};

async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn entry() -> AuditEntry {
    AuditEntry::by_operator("chat.send", sample::now())
}

async fn sent(store: &Store, user: &str) -> ThreadId {
    let message = SentMessage {
        user: user.to_owned(),
        thread: ThreadRef::main(),
        content: "hello".to_owned(),
        delivery: Delivery::Queue,
        key: None,
        audit: entry(),
    };
    let sent = store.send_chat_message(message).await.unwrap();
    let Sent::Stored(receipt) = sent else { panic!("{sent:?}") };
    receipt.thread_id
}

fn parked(run: &str, worked: Duration) -> ParkedTurn {
    let request = ApprovalRequest {
        call_id: CallId::from("c1"),
        tool: "http".to_owned(),
        arguments: json!({}),
        redacted_input: json!({}),
        reasoning: String::new(),
        can_be_remembered: true,
    };
    ParkedTurn { transcript: "[]".to_owned(), run: run.to_owned(), request, worked }
}

#[tokio::test]
async fn a_turn_that_goes_on_knows_how_long_it_has_worked() {
    let (_directory, store) = fresh().await;
    let thread = sent(&store, "ada").await;
    let now = sample::now();
    let mut turn = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
    assert_eq!(turn.worked, Duration::ZERO);
    let run = serde_json::to_string(&agent::Run::new()).unwrap();
    for minutes in [10, 14] {
        let worked = Duration::from_mins(minutes);
        assert!(store.park_chat_turn(turn.key, parked(&run, worked), now).await.unwrap());
        let by = GateResolver { user: "ada".to_owned(), is_admin: false };
        let decision =
            ResolveGate { decision: GateDecision::Approve, reason: None, scope: None, parameters_digest: None };
        let answer = GateAnswer { by, decision, entry: entry() };
        let resolved = store.resolve_gate(GateTarget::Thread(thread), answer).await.unwrap();
        assert!(matches!(resolved, GateOutcome::Resolved(_)), "{resolved:?}");
        turn = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
        assert_eq!((turn.worked, turn.key.turn), (worked, 1));
    }
    assert!(store.finish_chat_turn(turn.key, TurnEnd::default(), now).await.unwrap());
    sent(&store, "ada").await;
    let next = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
    assert_eq!((next.worked, next.key.turn), (Duration::ZERO, 2));
    store.close().await;
}

#[tokio::test]
async fn the_threads_of_some_users_do_not_hide_those_of_others() {
    let (directory, store) = fresh().await;
    let now = sample::now();
    for user in ["ada", "bob"] {
        let thread = sent(&store, user).await;
        let many = "WITH RECURSIVE n (n) AS (SELECT 1 UNION ALL SELECT n + 1 FROM n WHERE n < 1500) \
                    INSERT INTO chat_threads (id, user_id, state, created_at, updated_at) \
                    SELECT randomblob(16), user_id, 'idle', created_at, updated_at FROM chat_threads, n WHERE id = $1";
        sqlx::query(many).bind(thread).execute(&mut raw(&directory).await).await.unwrap();
    }
    let queued = "INSERT INTO chat_messages (id, thread_id, role, data, due, at) \
                  SELECT randomblob(16), id, 'user', '{}', TRUE, $1 FROM chat_threads";
    sqlx::query(queued).bind(now - chrono::TimeDelta::hours(1)).execute(&mut raw(&directory).await).await.unwrap();
    sent(&store, "cleo").await;
    let runnable = store.runnable_chat_threads(16).await.unwrap();
    let of = |user: &str| runnable.iter().filter(|(_, owner)| owner == user).count();
    assert_eq!((of("ada"), of("bob"), of("cleo")), (16, 16, 1));
    assert_eq!(runnable.last().map(|(_, user)| user.as_str()), Some("cleo"), "the others have waited longer");
    store.close().await;
}

#[tokio::test]
async fn no_step_of_the_engine_walks_over_threads_or_transcripts() {
    let (_directory, store) = fresh().await;
    let selected = ["chat_messages_queued", "waiting", "subquery"];
    for statement in turns::OF_A_STEP.into_iter().chain([messages::QUEUED_OF_USER]) {
        assert_eq!(walks(&store, statement, &selected).await, Vec::<String>::new(), "{statement}");
    }
    store.close().await;
}

#[tokio::test]
async fn the_bytes_of_a_user_are_those_of_the_rows() {
    const COUNTED: &str = "SELECT IFNULL((SELECT SUM(LENGTH(CAST(data AS BLOB))) FROM chat_messages), 0) \
        + IFNULL((SELECT SUM(IFNULL(LENGTH(CAST(transcript AS BLOB)), 0) + IFNULL(LENGTH(CAST(run AS BLOB)), 0)) \
        FROM chat_transcripts), 0), (SELECT SUM(bytes) FROM chat_threads), (SELECT bytes FROM user_bytes WHERE user_id = 'ada' AND kind = 'chats')";
    let (directory, store) = fresh().await;
    let check = async || {
        let (rows, threads, user): (i64, Option<i64>, i64) =
            sqlx::query_as(COUNTED).fetch_one(&mut raw(&directory).await).await.unwrap();
        assert_eq!((threads.unwrap_or_default(), user), (rows, rows));
        rows
    };
    let now = sample::now();
    let thread = sent(&store, "ada").await;
    assert!(check().await > 0);
    let turn = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
    store.park_chat_turn(turn.key, parked("{\"é\": 1}", Duration::ZERO), now).await.unwrap();
    let parked = check().await;
    let waiting = store.waiting_chat_turn(thread).await.unwrap().unwrap();
    assert!(store.stop_waiting_chat_turn(waiting.key, waiting.gate, vec![], now).await.unwrap());
    assert!(!store.stop_waiting_chat_turn(waiting.key, waiting.gate, vec![], now).await.unwrap(), "once");
    assert!(check().await != parked);
    sent(&store, "ada").await;
    let turn = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
    let error = TurnError { reason: JobReason::Internal, message: "no".to_owned(), drops_lines: false };
    let end = TurnEnd { transcript: Some("[1, 2, 3]".to_owned()), error: Some(error), notice: None };
    store.finish_chat_turn(turn.key, end, now).await.unwrap();
    check().await;
    let caller = ThreadCaller { user: "ada".to_owned(), sees_all: false };
    store.delete_chat_thread(&caller, &ThreadRef::Id(thread), &entry()).await.unwrap();
    assert_eq!(check().await, 0);
    store.close().await;
}
