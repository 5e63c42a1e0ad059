//! Notifications: what an agent tells its owner outside a conversation.

use std::time::Duration;

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{
    AuditRecord, ErrorCode, Notification, NotificationId, NotificationKind, NotificationPage, NotificationsRead, Page,
};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{ManualWorker, Reply, User, World, install::program};

async fn list(user: &User, query: &str) -> Vec<Notification> {
    let page: Page<Notification> = user.get(&format!("/api/notifications{query}")).await.expect(200).json();
    page.items
}

fn texts(notifications: &[Notification]) -> Vec<&str> {
    notifications.iter().map(|one| one.text.as_str()).collect()
}

async fn send(worker: &ManualWorker, call: &str, content: &str) {
    let reply = worker.tool("message", call, json!({"content": content})).await.expect(200).body;
    assert_eq!(reply["success"], json!(true), "{reply:#}");
}

#[tokio::test]
async fn a_message_of_a_job_is_a_notification_to_its_owner() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let id = ada.create(json!({"prompt": "work", "title": "The nightly report"})).await;
    let worker = world.manual_worker(id).await;
    send(&worker, "t1", "first").await;
    send(&worker, "t1", "first").await;
    send(&worker, "t2", "second").await;
    let found = list(&ada, "").await;
    assert_eq!(texts(&found), ["second", "first"], "newest first, and each call once");
    let first = &found[1];
    assert_eq!((first.kind, first.title.as_str()), (NotificationKind::Message, "The nightly report"));
    assert_eq!((first.job_id, first.run_id, first.routine_id, first.read_at), (Some(id), None, None, None));
    let shown = ada.get("/api/notifications").await.expect(200).body["items"][0].clone();
    let fields: Vec<&str> = shown.as_object().unwrap().keys().map(String::as_str).collect();
    let expected = [
        "id",
        "kind",
        "title",
        "text",
        "routine_id",
        "run_id",
        "job_id",
        "gate_id",
        "thread_id",
        "channel",
        "created_at",
        "read_at",
        "deliveries",
    ];
    assert_eq!((fields, &shown["deliveries"]), (expected.to_vec(), &json!([])));
    // Another user's notification is like a missing one, for an admin too.
    let path = format!("/api/notifications/{}/read", first.id);
    for other in [&bob, &root] {
        assert_eq!(list(other, "").await, []);
        other.post(&path, &json!({})).await.problem(ErrorCode::NotFound);
    }
    world.someone("ada", Role::Viewer).post(&path, &json!({})).await.problem(ErrorCode::Forbidden);
    ada.post(&format!("/api/notifications/{}/read", NotificationId::nil()), &json!({}))
        .await
        .problem(ErrorCode::NotFound);
    let read: Notification = ada.post(&path, &json!({})).await.expect(200).json();
    assert!(read.read_at.is_some());
    assert_eq!(ada.post(&path, &json!({})).await.expect(200).json::<Notification>(), read, "it stays as it is");
    assert_eq!(texts(&list(&ada, "?unread=true").await), ["second"]);
    assert_eq!(list(&ada, "").await[1], read);
    let suffix = read.id.to_string()[28..].to_owned();
    assert_eq!(list(&ada, &format!("?id={suffix}")).await, [read]);
    let page: Page<AuditRecord> = root.get("/api/audit?action=notification.read").await.expect(200).json();
    let rows: Vec<_> = page.items.iter().rev().map(|row| (row.user.as_str(), row.code.as_deref())).collect();
    let missing = Some("not_found");
    assert_eq!(
        rows,
        [("bob", missing), ("root", missing), ("ada", Some("forbidden")), ("ada", missing), ("ada", None)]
    );
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn notifications_are_listed_in_pages_and_kept_90_days() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = World::builder().clock(&time).set("GANTRY_RECORD_RETENTION_DAYS", 1).build().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    for n in 0..5 {
        send(&worker, &format!("t{n}"), &format!("number {n}")).await;
    }
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let (mut cursor, mut seen) = (String::new(), vec![]);
    loop {
        let page: Page<Notification> = ada.get(&format!("/api/notifications?limit=2{cursor}")).await.expect(200).json();
        seen.push(page.items.into_iter().map(|one| one.text).collect::<Vec<_>>());
        let Some(next) = page.next_cursor else { break };
        cursor = format!("&cursor={next}");
    }
    assert_eq!(seen, [vec!["number 4", "number 3"], vec!["number 2", "number 1"], vec!["number 0"]]);
    for query in ["?limit=0", "?unread=perhaps", "?cursor=x", "?id=zzzz", "?colour=blue"] {
        ada.get(&format!("/api/notifications{query}")).await.problem(ErrorCode::Invalid);
    }
    time.advance(Duration::from_hours(89 * 24));
    world.restart().await;
    let ada = world.user("ada");
    tests::until("the sweep of the job's records", async || ada.events(id).await.len() <= 2).await;
    assert_eq!(list(&ada, "").await.len(), 5, "they outlive the job's records");
    time.advance(Duration::from_hours(25));
    world.restart().await;
    let ada = world.user("ada");
    tests::until("the sweep of notifications", async || list(&ada, "").await.is_empty()).await;
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_lists_notifications_and_marks_them_as_read() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create(json!({"prompt": "work", "title": "The nightly report"})).await;
    let worker = world.manual_worker(id).await;
    send(&worker, "t1", "look\nat this").await;
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let run = async |arguments: &[&str]| program::run(arguments, &environment).await;
    let listed: Value = run(&["--json", "notification", "ls", "--unread"]).await.json();
    let notification = listed["items"][0]["id"].as_str().unwrap().to_owned();
    let text = run(&["notification", "ls"]).await.stdout;
    assert!(
        text.contains("The nightly report") && text.contains("    at this") && text.contains(&notification[28..]),
        "{text}"
    );
    let read = run(&["notification", "read", "latest"]).await;
    assert_eq!((read.code, read.stdout), (Some(0), format!("{notification} read")));
    assert_eq!(run(&["--json", "notification", "list", "--unread"]).await.json()["items"], json!([]));
    assert_eq!(run(&["notification", "read", &NotificationId::nil().to_string()]).await.code, Some(4));
    worker.finish("done").await;
    world.finish().await;
}

#[tokio::test]
async fn notifications_are_marked_as_read_up_to_the_last_that_was_seen() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    for (call, text) in [("t1", "first"), ("t2", "second"), ("t3", "third")] {
        send(&worker, call, text).await;
    }
    let page: NotificationPage = ada.get("/api/notifications?limit=1").await.expect(200).json();
    assert_eq!((texts(&page.items), page.unread_count), (vec!["third"], 3));
    let seen = list(&ada, "").await[1].id;
    let body = json!({"up_to": seen});
    world.user("bob").post("/api/notifications/read", &body).await.expect(200);
    let read: NotificationsRead = ada.post("/api/notifications/read", &body).await.expect(200).json();
    assert_eq!(read.count, 2);
    let again: NotificationsRead = ada.post("/api/notifications/read", &body).await.expect(200).json();
    assert_eq!(again.count, 0);
    let page: NotificationPage = ada.get("/api/notifications?unread=true").await.expect(200).json();
    assert_eq!((texts(&page.items), page.unread_count), (vec!["third"], 1));
    let events = ada.request(Method::GET, "/api/events?kind=notifications_read").header("accept", "application/json");
    let events = Reply::of(events).await.expect(200).body;
    assert_eq!(events["items"].as_array().unwrap().len(), 1, "{events}");
    assert_eq!(events["items"][0]["data"], json!({"notification_id": null, "up_to": seen, "unread_count": 1}));
    worker.finish("done").await;
    world.finish().await;
}
