//! Tests of notifications on a real database.

use protocol::JobState;

use super::*;
use domain::job::sample;

use crate::RetentionLimits;

async fn fresh() -> (tempfile::TempDir, Store) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    (directory, store)
}

fn to(user: &str, text: &str) -> NewNotification {
    NewNotification {
        user: user.to_owned(),
        kind: NotificationKind::Message,
        title: Some("a title".to_owned()),
        text: text.to_owned(),
        routine: None,
        job: None,
        run: None,
        call_id: None,
        channel: None,
    }
}

async fn texts(store: &Store, filter: NotificationFilter) -> Vec<String> {
    let found = store.notifications(&NotificationFilter { limit: 50_000, ..filter }).await.unwrap();
    found.into_iter().filter_map(|(_, one)| one).map(|one| one.text).collect()
}

fn of(user: &str) -> NotificationFilter {
    NotificationFilter { user: user.to_owned(), ..NotificationFilter::default() }
}

#[tokio::test]
async fn a_call_that_is_made_again_sends_no_second_notification() {
    let (_directory, store) = fresh().await;
    let jobs = [sample::job(JobState::Pending), sample::job(JobState::Pending)];
    let (now, title) = (jobs[0].brief.created_at, jobs[0].brief.title.clone());
    let ids = [jobs[0].id, jobs[1].id];
    for job in jobs {
        store.create_job(job, None, None).await.unwrap();
    }
    for (job, call) in [(0, "c1"), (0, "c1"), (0, "c2"), (1, "c1"), (0, "c1")] {
        let call_id = Some(call.to_owned());
        let sent = NewNotification { title: None, job: Some(ids[job]), call_id, ..to("ada", &format!("{job} {call}")) };
        store.notify(sent, now).await.unwrap();
    }
    assert_eq!(texts(&store, of("ada")).await, ["1 c1", "0 c2", "0 c1"]);
    let found = store.notifications(&NotificationFilter { limit: 1, ..of("ada") }).await.unwrap();
    let newest = found[0].1.as_ref().unwrap();
    assert_eq!((newest.title.as_str(), newest.job_id), (title.as_str(), Some(ids[1])));
    // Without a call, each is another one.
    for _ in 0..2 {
        store.notify(to("bob", "again"), now).await.unwrap();
    }
    assert_eq!(texts(&store, of("bob")).await, ["again", "again"]);
    store.close().await;
}

#[tokio::test]
async fn notifications_are_kept_90_days_whatever_becomes_of_their_job() {
    let (_directory, store) = fresh().await;
    let job = sample::job(JobState::Pending);
    let (id, now) = (job.id, job.brief.created_at);
    store.create_job(job, None, None).await.unwrap();
    store.notify(NewNotification { job: Some(id), ..to("ada", "of a job") }, now).await.unwrap();
    store.notify(to("ada", "a day later"), now + TimeDelta::days(1)).await.unwrap();
    store
        .transition(id, now, None, move |job| job.fail(now, protocol::JobReason::Internal, String::new()))
        .await
        .unwrap();
    let limits = RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    let trimmed = store.trim(&limits, now + TimeDelta::days(2)).await;
    assert!(trimmed.rows_of("jobs") > 0 && trimmed.rows_of("notifications") == 0, "{trimmed:?}");
    let trimmed = store.trim(&limits, now + LIFETIME).await;
    assert_eq!(trimmed.rows_of("notifications"), 0, "90 days are not over");
    let trimmed = store.trim(&limits, now + LIFETIME + TimeDelta::seconds(1)).await;
    assert_eq!(trimmed.rows_of("notifications"), 1);
    assert_eq!(texts(&store, of("ada")).await, ["a day later"]);
    store.close().await;
}

#[tokio::test]
async fn a_user_keeps_the_newest_10_000() {
    let (_directory, store) = fresh().await;
    let now = sample::now();
    store.notify(to("ada", "the first"), now).await.unwrap();
    store.notify(to("bob", "of bob"), now).await.unwrap();
    store
        .execute(
            "WITH RECURSIVE n (i) AS (SELECT 1 UNION ALL SELECT i + 1 FROM n WHERE i < 11500) \
             INSERT INTO notifications (id, user_id, text, created_at) \
             SELECT unhex(printf('ff%030x', i)), 'ada', 'number ' || i, '2999-01-01T00:00:00+00:00' FROM n",
        )
        .await
        .unwrap();
    let limits = RetentionLimits { days: 1, audit_days: 1, max_mb: 0 };
    assert_eq!(store.trim(&limits, now).await.rows_of("notifications"), 1_501);
    let kept = texts(&store, of("ada")).await;
    assert_eq!((kept.len(), kept[0].as_str(), kept[9_999].as_str()), (10_000, "number 11500", "number 1501"));
    assert_eq!(texts(&store, of("bob")).await, ["of bob"]);
    store.close().await;
}

#[tokio::test]
async fn a_list_is_filtered_and_a_read_notification_stays_read() {
    let (_directory, store) = fresh().await;
    let now = sample::now();
    for text in ["one", "two", "three"] {
        store.notify(to("ada", text), now).await.unwrap();
    }
    let all = store.notifications(&NotificationFilter { limit: 10, ..of("ada") }).await.unwrap();
    let two = all[1].0;
    let entry = |seconds| AuditEntry::by_operator("notification.read", now + TimeDelta::seconds(seconds));
    assert_eq!(store.mark_notification_read("bob", two, &entry(0)).await.unwrap(), MarkedRead::NotOwner);
    assert_eq!(
        store.mark_notification_read("ada", NotificationId::nil(), &entry(0)).await.unwrap(),
        MarkedRead::NotFound
    );
    for seconds in [1, 2] {
        let MarkedRead::Done(read) = store.mark_notification_read("ada", two, &entry(seconds)).await.unwrap() else {
            panic!("it is ada's")
        };
        assert_eq!(read.read_at, Some(now + TimeDelta::seconds(1)));
    }
    assert_eq!(texts(&store, NotificationFilter { unread: true, ..of("ada") }).await, ["three", "one"]);
    assert_eq!(texts(&store, NotificationFilter { before: Some(two), ..of("ada") }).await, ["one"]);
    let digits = two.to_string().replace('-', "");
    for part in [&digits[..], &digits[20..]] {
        assert_eq!(texts(&store, NotificationFilter { id_part: Some(part.to_owned()), ..of("ada") }).await, ["two"]);
    }
    assert_eq!(texts(&store, of("bob")).await, Vec::<String>::new());
    store.close().await;
}
