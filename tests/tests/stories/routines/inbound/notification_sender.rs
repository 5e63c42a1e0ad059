//! Posts of notifications to webhooks.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering},
};

use axum::{
    Router,
    body::Bytes,
    http::{HeaderMap, StatusCode},
};
use base64::{Engine as _, prelude::BASE64_STANDARD};
use orchestrator::{clock::ManualClock, engine::ReadinessReason};
use protocol::{DeliveryStatus, Notification, NotificationDelivery, NotificationKind, Page};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{Reply, User, World};
use tokio::{io::AsyncReadExt as _, net::TcpListener, task::JoinSet};

use super::{ENCODED_KEY, ENCODED_SECRET, create, mac};

/// A post as it arrived.
#[derive(Debug, Clone, PartialEq)]
struct Post {
    id: String,
    body: Value,
}

/// A server that answers the posts with these statuses, one after the other, and with the last one from then on; 0 is
/// no answer.
struct Receiver {
    address: String,
    posts: Arc<Mutex<Vec<Post>>>,
    _server: JoinSet<()>,
}

impl Receiver {
    async fn start(statuses: &'static [u16]) -> Self {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap().to_string();
        let posts = Arc::<Mutex<Vec<Post>>>::default();
        let received = Arc::clone(&posts);
        let handle = move |headers: HeaderMap, body: Bytes| {
            let received = Arc::clone(&received);
            async move {
                let header = |name: &str| headers[name].to_str().unwrap().to_owned();
                let (id, timestamp) = (header("webhook-id"), header("webhook-timestamp"));
                let digest = mac(ENCODED_KEY, &[id.as_bytes(), b".", timestamp.as_bytes(), b".", &body]);
                assert_eq!(header("webhook-signature"), format!("v1,{}", BASE64_STANDARD.encode(digest)));
                let number = {
                    let mut posts = received.lock().unwrap();
                    posts.push(Post { id, body: serde_json::from_slice(&body).unwrap() });
                    posts.len()
                };
                let status = statuses[(number - 1).min(statuses.len() - 1)];
                if status == 0 {
                    std::future::pending::<()>().await;
                }
                StatusCode::from_u16(status).unwrap()
            }
        };
        let mut server = JoinSet::new();
        server.spawn(async move { drop(axum::serve(listener, Router::new().fallback(handle)).await) });
        Self { address, posts, _server: server }
    }

    fn posts(&self) -> Vec<Post> {
        self.posts.lock().unwrap().clone()
    }
}

/// A routine whose runs fail at once, since no sandbox is ready.
async fn failing(user: &User, receiver: &Receiver) -> String {
    failing_as(user, "fails", receiver).await
}

async fn failing_as(user: &User, name: &str, receiver: &Receiver) -> String {
    let url = format!("http://{}/hook?token=x", receiver.address);
    let notify = json!({"notify": {"channel": "ops", "webhook_url": url, "webhook_secret": ENCODED_SECRET}});
    let routine = create(user, name, json!({"type": "manual"}), notify).await;
    user.post(&format!("/api/routines/{routine}/trigger"), &json!({})).await.expect(202);
    routine
}

async fn notifications(user: &User) -> Vec<Notification> {
    user.get("/api/notifications").await.expect(200).json::<Page<Notification>>().items
}

async fn until_delivery(user: &User, status: DeliveryStatus, attempts: u32) -> NotificationDelivery {
    tests::poll(&format!("the delivery to be {status}"), async || {
        let delivery = notifications(user).await.first()?.deliveries.first()?.clone();
        (delivery.status == status
            && delivery.attempts == attempts
            && (status != DeliveryStatus::Pending || delivery.next_attempt_at.is_some()))
        .then_some(delivery)
    })
    .await
}

#[tokio::test]
async fn a_notification_is_posted_signed_and_tried_again() {
    let receiver = Receiver::start(&[503, 204]).await;
    let time = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
    let world = World::builder()
        .clock(&time)
        .not_ready(ReadinessReason::EngineUnreachable)
        .set("GANTRY_NOTIFY_ALLOW", &receiver.address)
        .build()
        .await;
    let ada = world.user("ada");
    failing(&ada, &receiver).await;
    let refused = until_delivery(&ada, DeliveryStatus::Pending, 1).await;
    assert_eq!(refused.url, format!("http://{}/hook", receiver.address), "without the query");
    assert_eq!((refused.response_status, refused.error.as_deref()), (Some(503), Some("the receiver answered 503")));
    time.advance(std::time::Duration::from_secs(6));
    let accepted = until_delivery(&ada, DeliveryStatus::Delivered, 2).await;
    assert_eq!((accepted.response_status, accepted.error, accepted.next_attempt_at), (Some(204), None, None));
    let posts = receiver.posts();
    assert_eq!((posts.len(), &posts[0].id, &posts[0].body), (2, &posts[1].id, &posts[1].body));
    let notification = &notifications(&ada).await[0];
    // The only one of the failed run, whose cause is not in the routine.
    assert_eq!(
        (notification.kind, notification.channel.as_deref()),
        (NotificationKind::AutomationProblem, Some("ops"))
    );
    let events = ada.request(Method::GET, "/api/events?kind=notification").header("accept", "application/json");
    let event = Reply::of(events).await.expect(200).body["items"][0].clone();
    assert_eq!((&event["data"]["channel"], &posts[0].body["data"]["channel"]), (&json!("ops"), &json!("ops")));
    assert_eq!(
        (&posts[0].body["type"], &posts[0].body["data"]["id"]),
        (&json!("notification.automation_problem"), &json!(notification.id))
    );
    world.finish().await;
}

#[tokio::test]
async fn a_receiver_that_hangs_delays_no_posts_to_others() {
    let (hanging, healthy) = (Receiver::start(&[0]).await, Receiver::start(&[204]).await);
    let world = World::builder()
        .not_ready(ReadinessReason::EngineUnreachable)
        .set("GANTRY_NOTIFY_ALLOW", format!("{},{}", hanging.address, healthy.address))
        .build()
        .await;
    let users = ["ada", "bob", "cleo", "dan", "eve"].map(|name| world.user(name));
    for number in 0..12 {
        for user in &users {
            failing_as(user, &format!("fails-{number}"), &hanging).await;
        }
    }
    tests::until("the posts that hang", async || hanging.posts().len() == 4).await;
    let fay = world.user("fay");
    failing(&fay, &healthy).await;
    until_delivery(&fay, DeliveryStatus::Delivered, 1).await;
    assert_eq!((hanging.posts().len(), healthy.posts().len()), (4, 1), "none has timed out yet");
    world.finish().await;
}

#[tokio::test]
async fn a_post_that_the_process_does_not_survive_is_unknown() {
    let receiver = Receiver::start(&[0]).await;
    let mut world = World::builder()
        .not_ready(ReadinessReason::EngineUnreachable)
        .set("GANTRY_NOTIFY_ALLOW", &receiver.address)
        .build()
        .await;
    let ada = world.user("ada");
    failing(&ada, &receiver).await;
    tests::until("the post", async || receiver.posts().len() == 1).await;
    world.restart().await;
    let ada = world.user("ada");
    let unknown = until_delivery(&ada, DeliveryStatus::Unknown, 1).await;
    assert_eq!(unknown.next_attempt_at, None);
    assert_eq!(receiver.posts().len(), 1, "it is not made again");
    world.finish().await;
}

/// A server that reads each post and closes the connection without an answer.
async fn closing() -> (Receiver, Arc<AtomicUsize>) {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let (address, posts) = (listener.local_addr().unwrap().to_string(), Arc::<AtomicUsize>::default());
    let (received, mut server) = (Arc::clone(&posts), JoinSet::new());
    server.spawn(async move {
        loop {
            let (mut connection, _) = listener.accept().await.unwrap();
            let mut read = Vec::new();
            while !read.ends_with(b"}") {
                assert_ne!(connection.read_buf(&mut read).await.unwrap(), 0);
            }
            received.fetch_add(1, Ordering::Relaxed);
        }
    });
    (Receiver { address, posts: Arc::default(), _server: server }, posts)
}

#[tokio::test]
async fn a_post_that_is_not_answered_is_unknown_and_not_repeated() {
    let (receiver, posts) = closing().await;
    let time = ManualClock::at("2026-11-23T12:00:00Z".parse().unwrap());
    let world = World::builder()
        .clock(&time)
        .not_ready(ReadinessReason::EngineUnreachable)
        .set("GANTRY_NOTIFY_ALLOW", &receiver.address)
        .build()
        .await;
    let ada = world.user("ada");
    failing(&ada, &receiver).await;
    let unknown = until_delivery(&ada, DeliveryStatus::Unknown, 1).await;
    assert_eq!((unknown.next_attempt_at, unknown.response_status), (None, None));
    assert!(unknown.error.is_some());
    assert_eq!(posts.load(Ordering::Relaxed), 1);
    world.finish().await;
}

#[tokio::test]
async fn a_post_that_reaches_no_server_is_tried_again() {
    let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
    let address = listener.local_addr().unwrap().to_string();
    drop(listener);
    let receiver = Receiver { address, posts: Arc::default(), _server: JoinSet::new() };
    let world = World::builder()
        .not_ready(ReadinessReason::EngineUnreachable)
        .set("GANTRY_NOTIFY_ALLOW", &receiver.address)
        .build()
        .await;
    let ada = world.user("ada");
    failing(&ada, &receiver).await;
    let refused = until_delivery(&ada, DeliveryStatus::Pending, 1).await;
    assert!(refused.error.is_some_and(|error| error.contains("cannot be reached")));
    world.finish().await;
}

#[tokio::test]
async fn notifications_are_posted_only_where_the_operator_allows() {
    let world = World::builder().set("GANTRY_NOTIFY_ALLOW", "hooks.example").build().await;
    let ada = world.user("ada");
    let body = |url: &str| {
        json!({
            "name": "n", "trigger": {"type": "manual"}, "notify": {"webhook_url": url},
            "action": {"type": "full_job", "title": "t", "description": "d", "limits": {}, "egress": {}},
        })
    };
    for url in ["https://other.example/", "http://127.0.0.1:1/", "ftp://hooks.example/", "not a URL"] {
        let refused = ada.post("/api/routines", &body(url)).await.expect(422);
        assert_eq!(refused.fields(), ["notify.webhook_url"], "{:#}", refused.body);
    }
    let created = ada.post("/api/routines", &body("https://hooks.example/a")).await.expect(201);
    assert!(created.body["notify"]["webhook_secret"].as_str().is_some_and(|secret| secret.starts_with("whsec_")));
    world.finish().await;
}
