//! Tests of the instance's events on a real database.

use chrono::TimeDelta;
use futures_util::FutureExt as _;
use protocol::{ChatContent, JobReason, JobState, NotificationKind};
use serde_json::json;
use sqlx::ConnectOptions as _;
use tempfile::TempDir;
use tokio::task::JoinSet;

use super::*;
use domain::{
    chat::ThreadRef,
    job::{JobRecord, sample},
};

use crate::{
    AuditEntry, Delivery, NewNotification, RetentionLimits, Sent, SentMessage, ThreadCaller, ThreadChange, TurnEnd,
    options,
};

async fn fresh() -> (TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&url(&directory)).await.unwrap();
    (directory, store)
}

fn url(directory: &TempDir) -> String {
    format!("sqlite://{}/gantry.db", directory.path().display())
}

async fn raw(directory: &TempDir) -> SqliteConnection {
    options(&url(directory)).unwrap().connect().await.unwrap()
}

fn job_of(user: &str) -> JobRecord {
    sample::job(JobState::Pending).with_brief(|brief| brief.user_id = user.to_owned())
}

fn notification(user: &str) -> NewNotification {
    NewNotification {
        user: user.to_owned(),
        kind: NotificationKind::Message,
        title: Some("a title".to_owned()),
        text: "a text".to_owned(),
        routine: None,
        job: None,
        run: None,
        call_id: None,
        channel: None,
    }
}

fn of(user: &str) -> InstanceEventFilter {
    InstanceEventFilter { user: Some(user.to_owned()), ..InstanceEventFilter::default() }
}

fn of_kinds(kinds: &[InstanceEventKind]) -> InstanceEventFilter {
    InstanceEventFilter { kinds: kinds.to_vec(), ..InstanceEventFilter::default() }
}

/// The cursors of a page.
async fn cursors(store: &Store, filter: &InstanceEventFilter, after: i64) -> Vec<i64> {
    let page = store.instance_events(filter, after, 200).await.unwrap();
    assert!(!page.has_more());
    page.items.iter().map(|event| event.cursor).collect()
}

#[tokio::test]
async fn one_cursor_orders_the_events_of_jobs_and_all_others() {
    let (directory, store) = fresh().await;
    assert_eq!(store.last_cursor().await.unwrap(), 0);
    // Before the first event of a job.
    store.notify(notification("ada"), sample::now()).await.unwrap();
    store.create_job(job_of("bob"), None, None).await.unwrap();
    store.notify(notification("bob"), sample::now()).await.unwrap();
    store.create_job(job_of("ada"), None, None).await.unwrap();
    let all = InstanceEventFilter::default();
    assert_eq!(cursors(&store, &all, 0).await, [1, 2, 3, 4, 5, 6]);
    let of_each = (cursors(&store, &of("ada"), 0).await, cursors(&store, &of("bob"), 0).await);
    assert_eq!(of_each, (vec![1, 5, 6], vec![2, 3, 4]));
    assert_eq!(cursors(&store, &of_kinds(&[InstanceEventKind::State]), 0).await, [2, 5]);
    assert_eq!(cursors(&store, &of_kinds(&[InstanceEventKind::Job]), 0).await, [3, 6]);
    assert_eq!(cursors(&store, &of_kinds(&[InstanceEventKind::Notification]), 1).await, [4]);
    let both = [InstanceEventKind::Notification, InstanceEventKind::State];
    assert_eq!(cursors(&store, &of_kinds(&both), 1).await, [2, 4, 5]);
    let of_thread = InstanceEventFilter { thread: Some(ThreadId::nil()), ..all };
    assert_eq!(cursors(&store, &of_thread, 0).await, Vec::<i64>::new());
    // A cursor is never assigned twice, whatever is deleted.
    for statement in ["DELETE FROM events", "DELETE FROM instance_events"] {
        sqlx::query(statement).execute(&mut raw(&directory).await).await.unwrap();
    }
    store.notify(notification("ada"), sample::now()).await.unwrap();
    assert_eq!((store.last_cursor().await.unwrap(), store.first_cursor_after(0).await.unwrap()), (7, 7));
    store.close().await;
}

#[tokio::test]
async fn subscribers_are_notified_of_the_events_that_concern_them() {
    let (_directory, store) = fresh().await;
    let job = job_of("ada");
    let subscribe = |topic| store.event_notifier().subscribe(topic);
    let mut of_job = subscribe(Topic::Job(job.id));
    let [mut ada, mut bob] = ["ada", "bob"].map(|user| subscribe(Topic::User(user.to_owned())));
    let mut all = subscribe(Topic::AllUsers);
    let mut notified = || {
        let subscriptions = [&mut of_job, &mut ada, &mut bob, &mut all];
        subscriptions.map(|subscription| subscription.changed().now_or_never().is_some())
    };
    store.create_job(job, None, None).await.unwrap();
    assert_eq!(notified(), [true, true, false, true]);
    store.notify(notification("bob"), sample::now()).await.unwrap();
    assert_eq!(notified(), [false, false, true, true]);
    assert_eq!(notified(), [false; 4]);
    store.close().await;
}

#[tokio::test]
async fn messages_and_states_of_a_thread_are_events_until_the_thread_is_deleted() {
    let (_directory, store) = fresh().await;
    let now = sample::now();
    let entry = AuditEntry { user: "ada".to_owned(), ..AuditEntry::by_operator("chat.send", now) };
    let message = SentMessage {
        user: "ada".to_owned(),
        thread: ThreadRef::main(),
        content: "hello".to_owned(),
        delivery: Delivery::Queue,
        key: None,
        audit: entry.clone(),
    };
    let Sent::Stored(receipt) = store.send_chat_message(message).await.unwrap() else { panic!("it is stored") };
    let thread = receipt.thread_id;
    let turn = store.begin_chat_turn(thread, now).await.unwrap().unwrap();
    let reply = ChatContent::Assistant { content: "hi".to_owned() };
    assert!(store.record_in_chat_turn(turn.key, reply, now).await.unwrap().is_some());
    assert!(store.finish_chat_turn(turn.key, TurnEnd::default(), now).await.unwrap());
    store.notify(notification("ada"), now).await.unwrap();
    let of_thread = InstanceEventFilter { thread: Some(thread), ..of("ada") };
    let page = store.instance_events(&of_thread, 0, 10).await.unwrap();
    let shown: Vec<_> = page
        .items
        .iter()
        .map(|event| {
            let event = serde_json::to_value(event).unwrap();
            assert_eq!((&event["user_id"], &event["thread_id"]), (&json!("ada"), &json!(thread)));
            assert_eq!(event["data"]["thread_id"], json!(thread));
            let what = if event["kind"] == "thread_state" { "state" } else { "content" };
            (event["kind"].as_str().unwrap().to_owned(), event["data"][what].as_str().unwrap().to_owned())
        })
        .collect();
    let expected =
        [("chat_message", "hello"), ("thread_state", "processing"), ("chat_message", "hi"), ("thread_state", "idle")];
    assert_eq!(shown, expected.map(|(kind, what)| (kind.to_owned(), what.to_owned())));
    let caller = ThreadCaller { user: "ada".to_owned(), sees_all: false };
    let deleted = store.delete_chat_thread(&caller, &ThreadRef::Id(thread), &entry).await.unwrap();
    assert_eq!(deleted, ThreadChange::Done(thread));
    assert_eq!(cursors(&store, &of_thread, 0).await, Vec::<i64>::new());
    assert_eq!(cursors(&store, &of("ada"), 0).await, [5]);
    store.close().await;
}

/// Creates a job or sends a notification, and now and then fails after the event was written.
async fn write(store: Store, writer: u32, n: u32) {
    let user = if writer.is_multiple_of(2) { "ada" } else { "bob" };
    match (writer + n) % 3 {
        0 => drop(store.create_job(job_of(user), None, None).await.unwrap()),
        1 => store.notify(notification(user), sample::now()).await.unwrap(),
        _ => {
            let failed = store.write(transaction!(|tx| {
                crate::notifications::insert(tx, notification(user), sample::now()).await?;
                Err::<(), _>(StoreError::WriterFailed)
            }));
            failed.await.unwrap_err();
        }
    }
}

#[tokio::test]
async fn a_reader_beside_eight_writers_misses_nothing_and_sees_nothing_twice() {
    const WRITES: u32 = 60;
    let (_directory, store) = fresh().await;
    let mut changes = store.event_notifier().subscribe(Topic::AllUsers);
    let mut writers = JoinSet::new();
    for writer in 0..8 {
        let store = store.clone();
        writers.spawn(async move {
            for n in 0..WRITES {
                write(store.clone(), writer, n).await;
            }
        });
    }
    // A third of the writes fails and leaves no event; a third leaves two.
    let expected: Vec<i64> = (1..=i64::from(8 * WRITES)).collect();
    let (mut seen, mut after, mut is_over) = (vec![], 0, false);
    loop {
        // Each page begins where the one before ended, as for a reader that reconnects after every event.
        let page = store.instance_events(&InstanceEventFilter::default(), after, 1).await.unwrap();
        seen.extend(page.items.iter().map(|event| event.cursor));
        after = page.read_to;
        if page.has_more() {
            continue;
        }
        if is_over {
            break;
        }
        tokio::select! {
            () = changes.changed() => {}
            ended = writers.join_next() => match ended {
                Some(ended) => ended.unwrap(),
                None => is_over = true,
            },
        }
    }
    assert_eq!(seen, expected);
    let [ada, bob] = [cursors(&store, &of("ada"), 320).await, cursors(&store, &of("bob"), 320).await];
    let mut both = [ada, bob].concat();
    both.sort_unstable();
    assert_eq!(both, expected[320..]);
    store.close().await;
}

#[tokio::test]
async fn a_read_among_the_events_of_others_is_bounded_and_continues_where_it_ended() {
    let (directory, store) = fresh().await;
    let job = job_of("bob");
    let id = *job.id.as_uuid();
    store.create_job(job, None, None).await.unwrap();
    let flood = format!(
        "WITH RECURSIVE n (n) AS (SELECT 2 UNION ALL SELECT n + 1 FROM n WHERE n <= {}) \
         INSERT INTO events (job_id, seq, attempt, at, kind, data) SELECT $1, n, 1, $2, 'log', '{{}}' FROM n",
        2 * MAX_SCANNED
    );
    let flood = sqlx::query(sqlx::AssertSqlSafe(flood)).bind(id).bind(sample::now());
    flood.execute(&mut raw(&directory).await).await.unwrap();
    store.notify(notification("ada"), sample::now()).await.unwrap();
    let (mut after, mut reads) = (0, vec![]);
    loop {
        let page = store.instance_events(&of("ada"), after, 10).await.unwrap();
        reads.push((page.items.len(), page.read_to));
        if !page.has_more() {
            break;
        }
        after = page.read_to;
    }
    assert_eq!(reads, [(0, MAX_SCANNED), (0, 2 * MAX_SCANNED), (1, 2 * MAX_SCANNED + 3)]);
    // A range of cursors without events costs no read.
    for statement in ["DELETE FROM events", "DELETE FROM instance_events WHERE kind = 'job'"] {
        sqlx::query(statement).execute(&mut raw(&directory).await).await.unwrap();
    }
    let page = store.instance_events(&of("ada"), 0, 10).await.unwrap();
    assert_eq!((page.items.len(), page.has_more()), (1, false));
    let with_objects = InstanceEventFilter {
        with_job: Some(JobId::from_uuid(id)),
        with_thread: Some(ThreadId::nil()),
        kinds: vec![InstanceEventKind::Job, InstanceEventKind::State],
        ..of("ada")
    };
    for filter in
        [of("ada"), with_objects.clone(), InstanceEventFilter { kinds: vec![InstanceEventKind::Cron], ..with_objects }]
    {
        let statement = statement(&filter, 7, 9, 10);
        let steps = crate::tests::plan(&store, statement.sql().as_str()).await;
        assert!(steps.iter().any(|step| step.starts_with("SEARCH events USING INTEGER PRIMARY KEY")), "{steps:?}");
        assert!(steps.iter().all(|step| !step.starts_with("SCAN") && !step.contains("TEMP B-TREE")), "{steps:?}");
    }
    store.close().await;
}

#[tokio::test]
async fn an_event_that_makes_no_sense_hides_no_other() {
    let (directory, store) = fresh().await;
    for _ in 0..5 {
        store.notify(notification("ada"), sample::now()).await.unwrap();
    }
    for broken in ["kind = 'from_the_future' WHERE cursor = 2", "at = 'soon' WHERE cursor = 3"] {
        let update = sqlx::AssertSqlSafe(format!("UPDATE instance_events SET {broken}"));
        sqlx::query(update).execute(&mut raw(&directory).await).await.unwrap();
    }
    assert_eq!(cursors(&store, &of("ada"), 0).await, [1, 4, 5]);
    for limit in [1, 2, 3] {
        let (mut read, mut after) = (vec![], 0);
        loop {
            let page = store.instance_events(&of("ada"), after, limit).await.unwrap();
            read.extend(page.items.iter().map(|event| event.cursor));
            after = page.read_to;
            if !page.has_more() {
                break;
            }
        }
        assert_eq!(read, [1, 4, 5], "{limit} at a time");
    }
    store.close().await;
}

#[tokio::test]
async fn the_largest_deleted_cursor_is_known() {
    let (_directory, store) = fresh().await;
    let now = sample::now();
    let job = job_of("ada");
    let id = job.id;
    store.create_job(job, None, None).await.unwrap();
    store.notify(notification("ada"), now).await.unwrap();
    store.transition(id, now, None, move |job| job.fail(now, JobReason::Internal, String::new())).await.unwrap();
    store.notify(notification("ada"), now + TimeDelta::days(2)).await.unwrap();
    let all = InstanceEventFilter::default();
    assert_eq!(cursors(&store, &all, 0).await, [1, 2, 3, 4, 5, 6, 7]);
    let limits = RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    let trimmed = store.trim(&limits, now + TimeDelta::days(1)).await;
    assert!(trimmed.rows.is_empty(), "a day is not over: {trimmed:?}");
    let trimmed = store.trim(&limits, now + TimeDelta::days(2)).await;
    assert!(trimmed.rows_of("jobs") > 0 && trimmed.rows_of("instance_events") == 3, "{trimmed:?}");
    let page = store.instance_events(&all, 0, 10).await.unwrap();
    let kept: Vec<i64> = page.items.iter().map(|event| event.cursor).collect();
    // The job's result and its final state stay.
    assert_eq!((kept, page.trimmed), (vec![4, 5, 7], 6));
    store.close().await;
}
