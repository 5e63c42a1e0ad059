//! The instance's event stream: every event that its reader may see, exactly once and in order.

use std::{collections::BTreeSet, time::Duration};

use orchestrator::{auth::Role, clock::ManualClock};
use protocol::{AnyEventData, ErrorCode, InstanceEvent, InstanceEventData, JobId, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{InstanceMessage, InstanceStream, ManualWorker, Reply, User, World, install::program};
use tokio::task::JoinSet;

const PATH: &str = "/api/events";

/// All events that a user sees after a cursor, by pages.
async fn pages(user: &User, query: &str) -> Vec<InstanceEvent> {
    let (mut events, mut after) = (vec![], 0);
    loop {
        let request = user.request(Method::GET, &format!("{PATH}?limit=7&after={after}{query}"));
        let page = Reply::of(request.header("Accept", "application/json")).await.expect(200).body;
        let items: Vec<InstanceEvent> = serde_json::from_value(page["items"].clone()).unwrap();
        events.extend(items);
        match page["next_after"].as_i64() {
            Some(next) => after = next,
            None => return events,
        }
    }
}

/// Reads a stream until an event that `last` accepts, which is included.
async fn until(stream: &mut InstanceStream, last: impl Fn(&InstanceEvent) -> bool) -> Vec<InstanceEvent> {
    let mut events = vec![];
    loop {
        let event = stream.event().await;
        let is_last = last(&event);
        events.push(event);
        if is_last {
            return events;
        }
    }
}

/// The cursors of a job's own events.
fn own_cursors(events: &[InstanceEvent], id: JobId) -> Vec<i64> {
    let own = events.iter().filter(|event| event.seq.is_some() && event.subject.job_id == Some(id));
    own.map(|event| event.cursor).collect()
}

/// The last event of a job, with what it is then.
fn is_end_of(id: JobId) -> impl Fn(&InstanceEvent) -> bool {
    move |event| {
        let AnyEventData::Instance(InstanceEventData::Job(job)) = &event.data else { return false };
        job.id == id && job.state == JobState::Completed
    }
}

async fn run_job(world: &World, user: &User, messages: u64) -> JobId {
    let id = user.create_job("work").await;
    let worker = world.manual_worker(id).await;
    for n in 1..=messages {
        worker.record_message(n, &format!("line {n}")).await.expect(200);
    }
    worker.finish("done").await;
    user.wait_for_end(id).await;
    id
}

#[tokio::test]
async fn a_reader_sees_the_events_of_its_user_and_an_admin_those_of_all() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let viewer = world.someone("ada", Role::Viewer);
    let mut streams = vec![];
    for user in [&ada, &viewer, &bob, &root] {
        let mut stream = user.instance_stream(PATH, None).await;
        assert_eq!(stream.next().await, Some(InstanceMessage::Position(0)), "a new stream knows where it begins");
        streams.push(stream);
    }
    let first = run_job(&world, &ada, 2).await;
    let second = run_job(&world, &bob, 2).await;
    let [of_ada, of_viewer, of_bob, of_root] = &mut streams[..] else { panic!("four streams") };
    let ada_saw = until(of_ada, is_end_of(first)).await;
    assert!(ada_saw.iter().all(|event| event.user_id == "ada" && event.subject.job_id == Some(first)));
    assert_eq!(until(of_viewer, is_end_of(first)).await, ada_saw);
    let bob_saw = until(of_bob, is_end_of(second)).await;
    assert!(bob_saw.iter().all(|event| event.user_id == "bob" && event.subject.job_id == Some(second)));
    let root_saw = until(of_root, is_end_of(second)).await;
    assert_eq!(root_saw, [ada_saw.clone(), bob_saw.clone()].concat());
    // Of the jobs' own events the same, and as the pages.
    let own: Vec<i64> = ada.events(first).await.iter().map(|event| event.cursor).collect();
    assert_eq!(own_cursors(&ada_saw, first), own);
    for (user, saw) in [(&ada, &ada_saw), (&viewer, &ada_saw), (&bob, &bob_saw), (&root, &root_saw)] {
        assert_eq!(pages(user, "").await, *saw);
    }
    world.anonymous().get(PATH).await.problem(ErrorCode::Unauthorized);
    world.finish().await;
}

#[tokio::test]
async fn a_stream_begins_where_it_is_asked_to() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    run_job(&world, &ada, 3).await;
    let all = pages(&ada, "").await;
    let last = all.last().unwrap().cursor;
    let read = async |mut stream: InstanceStream, count: usize| {
        let mut events = vec![];
        while events.len() < count {
            events.push(stream.event().await);
        }
        events
    };
    assert_eq!(read(ada.instance_stream(&format!("{PATH}?after=0"), None).await, all.len()).await, all);
    assert_eq!(read(ada.instance_stream(PATH, Some(all[3].cursor)).await, all.len() - 4).await, all[4..]);
    // The header wins: a client that reconnects repeats the URL.
    let both = ada.instance_stream(&format!("{PATH}?after=0"), Some(all[3].cursor)).await;
    assert_eq!(read(both, 1).await, all[4..5]);
    let kinds = ada.instance_stream(&format!("{PATH}?after=0&kind=state,result"), None).await;
    let states: Vec<_> =
        all.iter().filter(|event| matches!(shown_kind(event).as_str(), "state" | "result")).cloned().collect();
    assert_eq!(read(kinds, states.len()).await, states);
    assert_eq!(pages(&ada, "&kind=state,result").await, states);
    assert_eq!(pages(&ada, "&kind=gate_required").await, []);
    // Without a position it begins with what comes next.
    let mut new = ada.instance_stream(PATH, None).await;
    assert_eq!(new.next().await, Some(InstanceMessage::Position(last)));
    let id = run_job(&world, &ada, 1).await;
    let later = until(&mut new, is_end_of(id)).await;
    assert_eq!(later, pages(&ada, "").await[all.len()..]);
    world.restart().await;
    assert_eq!(new.next().await, None, "a drain ends streams");
    // A position that a restored database does not have.
    let mut beyond = world.user("ada").instance_stream(PATH, Some(1_000_000)).await;
    assert_eq!(beyond.next().await, Some(InstanceMessage::Resync(json!({"cursor": 1}))));
    assert_eq!(beyond.event().await, all[0]);
    world.finish().await;
}

fn shown_kind(event: &InstanceEvent) -> String {
    serde_json::to_value(event).unwrap()["kind"].as_str().unwrap().to_owned()
}

#[tokio::test]
async fn invalid_positions_and_kinds_are_refused() {
    let world = World::new().await;
    let ada = world.user("ada");
    for query in ["?job=x", "?after=-1", "?after=x", "?kind=gossip", "?kind=state,gossip", "?colour=blue"] {
        ada.get(&format!("{PATH}{query}")).await.problem(ErrorCode::Invalid);
    }
    for header in ["x", "-1"] {
        let request = ada.request(Method::GET, PATH).header("Last-Event-ID", header);
        Reply::of(request).await.problem(ErrorCode::Invalid);
    }
    let page = ada.request(Method::GET, &format!("{PATH}?limit=201")).header("Accept", "application/json");
    Reply::of(page).await.problem(ErrorCode::Invalid);
    world.finish().await;
}

/// Sends `count` messages in batches of different sizes.
async fn chatter(worker: &ManualWorker, count: u64) {
    let mut sent = 0;
    while sent < count {
        let size = (sent % 4 + 1).min(count - sent);
        let message =
            |n: u64| (sent + n, "message", json!({"role": "assistant", "content": format!("line {}", sent + n)}));
        worker.send(&(1..=size).map(message).collect::<Vec<_>>()).await.expect(200);
        sent += size;
    }
}

#[tokio::test]
async fn a_reader_that_resumes_at_every_event_beside_eight_writers_misses_nothing() {
    let world = World::builder().set("GANTRY_MAX_PARALLEL_JOBS", 8).build().await;
    let root = world.someone("root", Role::Admin);
    let (mut jobs, mut workers) = (vec![], vec![]);
    for n in 0..8 {
        let user = world.user(&format!("user{n}"));
        let id = user.create_job("talk").await;
        workers.push(world.manual_worker(id).await);
        jobs.push((user, id));
    }
    let mut writers = JoinSet::new();
    for worker in workers {
        writers.spawn(async move {
            chatter(&worker, 25).await;
            worker.finish("done").await;
        });
    }
    let (mut seen, mut after, mut ended) = (Vec::<InstanceEvent>::new(), 0, BTreeSet::new());
    while ended.len() < jobs.len() {
        let event = root.instance_stream(PATH, Some(after)).await.event().await;
        after = event.cursor;
        if matches!(&event.data, AnyEventData::Instance(InstanceEventData::Job(job)) if job.state.is_finished()) {
            ended.extend(event.subject.job_id);
        }
        seen.push(event);
    }
    while let Some(done) = writers.join_next().await {
        done.unwrap();
    }
    assert!(seen.is_sorted_by(|one, next| one.cursor < next.cursor));
    for (user, id) in &jobs {
        let own: Vec<i64> = user.events(*id).await.iter().map(|event| event.cursor).collect();
        assert_eq!(own_cursors(&seen, *id), own);
        // Its owner's stream has the same, although most events are of others.
        assert_eq!(own_cursors(&pages(user, "").await, *id), own);
    }
    assert_eq!(pages(&root, "").await, seen);
    world.finish().await;
}

#[tokio::test]
async fn a_notification_is_an_event() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let mut stream = ada.instance_stream(&format!("{PATH}?kind=notification"), None).await;
    let mut other = bob.instance_stream(PATH, None).await;
    for _ in 0..2 {
        // A call that is repeated sends no second one.
        worker.tool("message", "t1", json!({"content": "look at this"})).await.expect(200);
    }
    worker.tool("message", "t2", json!({"content": "and at this"})).await.expect(200);
    let events = [stream.event().await, stream.event().await];
    let shown = ada.get("/api/notifications").await.expect(200).body;
    for (event, item) in events.iter().zip([&shown["items"][1], &shown["items"][0]]) {
        let AnyEventData::Instance(InstanceEventData::Notification(notification)) = &event.data else {
            panic!("{event:?}")
        };
        assert_eq!(serde_json::to_value(notification).unwrap(), *item);
        assert_eq!((event.user_id.as_str(), event.subject.job_id), ("ada", Some(id)));
    }
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    let of_bob = run_job(&world, &bob, 1).await;
    let seen = until(&mut other, is_end_of(of_bob)).await;
    assert!(seen.iter().all(|event| event.user_id == "bob"), "{seen:#?}");
    world.finish().await;
}

#[tokio::test]
async fn a_reader_that_comes_back_after_the_retention_period_is_told_that_events_are_missing() {
    let time = ManualClock::at("2026-11-22T12:00:00Z".parse().unwrap());
    let mut world = World::builder().clock(&time).set("GANTRY_RECORD_RETENTION_DAYS", 1).build().await;
    let ada = world.user("ada");
    let old = run_job(&world, &ada, 3).await;
    let before = pages(&ada, "").await;
    time.advance(Duration::from_hours(25));
    let ada = world.user("ada");
    let young = run_job(&world, &ada, 1).await;
    world.restart().await;
    let ada = world.user("ada");
    tests::until("the sweep of the old job's events", async || ada.events(old).await.len() <= 2).await;
    let kept = pages(&ada, "").await;
    assert!(kept.len() < before.len() + 4 && kept[0].cursor > before[2].cursor, "{kept:#?}");
    let mut stream = ada.instance_stream(PATH, Some(before[1].cursor)).await;
    assert_eq!(stream.next().await, Some(InstanceMessage::Resync(json!({"cursor": kept[0].cursor}))));
    assert_eq!(until(&mut stream, is_end_of(young)).await, kept);
    // A reader that had seen all that was deleted is told nothing.
    let mut stream = ada.instance_stream(PATH, Some(before.last().unwrap().cursor)).await;
    assert!(matches!(stream.next().await, Some(InstanceMessage::Event(_))));
    world.finish().await;
}

#[tokio::test]
async fn a_stream_ends_with_its_token() {
    let world = World::new().await;
    // Long enough to connect on a loaded machine.
    let issued = world.key().issue("ada", Role::User, world.clock().now(), chrono::Duration::seconds(3)).unwrap();
    let mut stream = world.user("ada").with_token(&issued.token).instance_stream(PATH, None).await;
    assert_eq!(stream.next().await, Some(InstanceMessage::Position(0)));
    assert_eq!(stream.next().await, None);
    world.finish().await;
}

#[tokio::test]
async fn the_command_line_prints_events_and_follows_them() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = run_job(&world, &ada, 2).await;
    let variables = [("GANTRY_URL", ada.base().to_owned()), ("GANTRY_TOKEN", world.fresh("ada", Role::User))];
    let environment = variables.map(|(name, value)| (name.to_owned(), value));
    let run = async |arguments: &[&str]| program::run(arguments, &environment).await;
    let all = pages(&ada, "").await;
    let printed: Vec<Value> =
        run(&["--json", "events"]).await.stdout.lines().map(|line| serde_json::from_str(line).unwrap()).collect();
    assert_eq!(printed, all.iter().map(|event| serde_json::to_value(event).unwrap()).collect::<Vec<_>>());
    let after = all[all.len() - 3].cursor.to_string();
    let text = run(&["events", "--after", &after]).await.stdout;
    assert!(
        text.contains("state completed\n")
            && text.ends_with("job completed work")
            && text.contains(&format!("job/{}", &id.to_string()[28..])),
        "{text}"
    );
    assert_eq!(run(&["events", "--kind", "gossip"]).await.code, Some(2));
    let first = all[0].cursor.to_string();
    let follow = ["--json", "events", "--follow", "--after", &first, "--kind", "state"];
    let following = program::Daemon::start(&follow, &environment);
    let event_of = |line: &str| serde_json::from_str::<InstanceEvent>(line).ok();
    let next = following.wait_for_line("a stored event", event_of).await;
    assert_eq!(next, *all[1..].iter().find(|event| shown_kind(event) == "state").unwrap());
    let id = run_job(&world, &ada, 0).await;
    let is_new = |event: &InstanceEvent| event.subject.job_id == Some(id);
    following.wait_for_line("an event that is new", |line| event_of(line).filter(is_new)).await;
    world.finish().await;
}
