//! What the instance's stream says of jobs by itself: each as lists show it, what it does now, and one job or thread in full.

use orchestrator::auth::Role;
use protocol::{AnyEventData, ErrorCode, InstanceEvent, InstanceEventData, JobState, JobSummary, LiveJobEvent};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{InstanceMessage, InstanceStream, Reply, User, World, script_of};

const JOBS: &str = "/api/events?kind=job,job_deleted";

async fn deleted(user: &User, path: &str) {
    Reply::of(user.request(Method::DELETE, path)).await.expect(204);
}

/// The job of the next stored event.
async fn job(stream: &mut InstanceStream) -> JobSummary {
    match stream.event().await.data {
        AnyEventData::Instance(InstanceEventData::Job(job)) => *job,
        other => panic!("expected a job, got {other:?}"),
    }
}

/// The next message about a job that is not stored.
async fn live(stream: &mut InstanceStream) -> LiveJobEvent {
    loop {
        match stream.next().await {
            Some(InstanceMessage::Live { event, data }) if event == "job" => {
                return serde_json::from_value(data).expect("an event without a cursor");
            }
            Some(InstanceMessage::Live { .. } | InstanceMessage::Event(_) | InstanceMessage::Position(_)) => {}
            other => panic!("expected a job, got {other:?}"),
        }
    }
}

fn tool_use(seq: u64, command: &str) -> (u64, &'static str, Value) {
    (seq, "tool_use", json!({"call_id": format!("c{seq}"), "tool": "shell", "input": {"command": command}}))
}

#[tokio::test]
async fn each_transition_is_an_event_with_the_job_as_lists_show_it() {
    let world = World::new().await;
    let (ada, bob, root) = (world.user("ada"), world.user("bob"), world.someone("root", Role::Admin));
    let mut stream = ada.instance_stream(JOBS, None).await;
    let mut of_root = root.instance_stream(JOBS, None).await;
    let mut of_bob = bob.instance_stream(JOBS, None).await;
    let id = ada.create(json!({"prompt": "Write a CSV parser", "title": "Parser", "labels": {"team": "a"}})).await;
    let worker = world.manual_worker(id).await;
    ada.cancel(id).await.expect(202);
    worker.exit(0);
    let ended = ada.wait_for(id, JobState::Cancelled).await;
    let mut seen = vec![];
    while seen.last().is_none_or(|job: &JobSummary| !job.state.is_finished()) {
        seen.push(job(&mut stream).await);
    }
    let mut states: Vec<_> = seen.iter().map(|job| job.state).collect();
    states.dedup();
    assert_eq!(states, [JobState::Pending, JobState::InProgress, JobState::Cancelled]);
    let requested = |job: &&JobSummary| job.state == JobState::InProgress && job.cancel_requested_at.is_some();
    assert!(seen.iter().any(|job| requested(&job)), "a request to cancel is an event: {seen:#?}");
    assert!(seen.iter().all(|job| job.title == "Parser" && job.prompt_preview == "Write a CSV parser"));
    assert_eq!(*seen.last().unwrap(), ended.summary());
    assert_eq!(ada.jobs().await, [seen.last().unwrap().clone()]);
    for expected in &seen {
        assert_eq!(job(&mut of_root).await, *expected);
    }
    deleted(&ada, &format!("/api/jobs/{id}")).await;
    let gone = stream.event().await;
    assert_eq!(
        (gone.data, gone.subject.job_id),
        (AnyEventData::Instance(InstanceEventData::JobDeleted { id }), Some(id))
    );
    let other = bob.create(json!({"prompt": "x", "hold": true})).await;
    assert_eq!(job(&mut of_bob).await.id, other, "the jobs of others are no events");
    bob.cancel(other).await.expect(202);
    bob.wait_for(other, JobState::Cancelled).await;
    world.finish().await;
}

#[tokio::test]
async fn the_work_of_a_job_is_told_while_it_runs_and_is_not_stored() {
    let world = World::new().await;
    let ada = world.user("ada");
    let mut stream = ada.instance_stream(JOBS, None).await;
    let mut without = ada.instance_stream("/api/events?kind=state", None).await;
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    worker.send(&[tool_use(1, "pytest -q")]).await.expect(200);
    let reported = loop {
        let reported = live(&mut stream).await;
        if reported.data.activity.is_some() {
            break reported;
        }
    };
    assert_eq!((reported.user_id.as_str(), reported.job_id, reported.data.id), ("ada", id, id));
    assert_eq!(reported.data.activity.as_deref(), Some("shell: pytest -q"));
    assert_eq!((reported.data.state, reported.data.usage.tool_calls), (JobState::InProgress, 1));
    assert_eq!(ada.jobs().await[0].activity, reported.data.activity, "lists have it, too");
    // What comes at once is reported together.
    let at = std::time::Instant::now();
    for seq in 2..=6 {
        worker.send(&[tool_use(seq, &format!("echo {seq}"))]).await.expect(200);
    }
    let next = live(&mut stream).await;
    assert_eq!(next.data.activity.as_deref(), Some("shell: echo 6"));
    assert!(at.elapsed() > std::time::Duration::from_secs(1), "at most once in 2 s: {:?}", at.elapsed());
    let result =
        json!({"call_id": "c6", "tool": "shell", "success": true, "output": "", "truncated": false, "duration_ms": 1});
    worker.send(&[(7, "tool_result", result)]).await.expect(200);
    assert_eq!(live(&mut stream).await.data.activity, None, "it waits for its model");
    worker.send(&[tool_use(8, "sleep 9")]).await.expect(200);
    worker.finish("done").await;
    let ended = ada.wait_for_end(id).await;
    loop {
        let job = job(&mut stream).await;
        if job.state.is_finished() {
            assert_eq!(job, ended.summary(), "an ended job does nothing");
            break;
        }
    }
    // Who asks for other kinds is told nothing of it, and a resume has what is stored.
    let mut states = 0;
    while let InstanceMessage::Event(event) = without.next().await.unwrap() {
        assert!(event.seq.is_some(), "{event:?}");
        states += 1;
        if states == 3 {
            break;
        }
    }
    let page = ada.request(Method::GET, "/api/events?kind=job").header("Accept", "application/json");
    let page = Reply::of(page).await.expect(200).body;
    let running = page["items"].as_array().unwrap().iter().filter(|event| event["data"]["state"] == "in_progress");
    assert!(running.into_iter().all(|event| event["cursor"].is_i64()));
    world.finish().await;
}

#[tokio::test]
async fn one_stream_has_the_lists_and_one_job_in_full() {
    let world = World::new().await;
    let (ada, bob) = (world.user("ada"), world.user("bob"));
    let id = ada.create_job("work").await;
    let other = ada.create_job("work").await;
    let path = format!("/api/events?kind=state&job={id}");
    let mut stream = ada.instance_stream(&format!("{path}&after=0"), None).await;
    let worker = world.manual_worker(id).await;
    let second = world.manual_worker(other).await;
    for n in 1..=3 {
        worker.record_message(n, &format!("line {n}")).await.expect(200);
        second.record_message(n, &format!("line {n}")).await.expect(200);
    }
    second.finish("done").await;
    worker.finish("done").await;
    ada.wait_for_end(other).await;
    ada.wait_for_end(id).await;
    let own = ada.events(id).await;
    let is_last = |event: &InstanceEvent| event.cursor == own.last().unwrap().cursor;
    let mut seen = vec![];
    while !seen.last().is_some_and(is_last) {
        seen.push(stream.event().await);
    }
    let of_job: Vec<_> = seen.iter().filter(|event| event.subject.job_id == Some(id)).collect();
    let numbers = |event: &&InstanceEvent| (event.seq.unwrap(), event.attempt.unwrap(), event.cursor);
    assert_eq!(
        of_job.iter().map(numbers).collect::<Vec<_>>(),
        own.iter().map(|event| (event.seq, event.attempt, event.cursor)).collect::<Vec<_>>()
    );
    let others: Vec<_> = seen.iter().filter(|event| event.subject.job_id == Some(other)).collect();
    let is_state = |event: &&InstanceEvent| matches!(event.data, AnyEventData::Job(protocol::EventData::State { .. }));
    assert!(!others.is_empty() && others.iter().all(is_state), "{others:#?}");
    // Where it was cut it goes on.
    let cut = of_job[2].cursor;
    let mut resumed = ada.instance_stream(&path, Some(cut)).await;
    let expected: Vec<i64> = seen.iter().map(|event| event.cursor).filter(|cursor| *cursor > cut).collect();
    let mut again = vec![];
    while again.len() < expected.len() {
        again.push(resumed.event().await.cursor);
    }
    assert_eq!(again, expected);
    let only = format!("/api/events?kind=gate_required&job={id}&limit=200");
    let page = Reply::of(ada.request(Method::GET, &only).header("Accept", "application/json")).await.expect(200).body;
    assert_eq!(page["items"].as_array().unwrap().len(), own.len());
    bob.get(&path).await.problem(ErrorCode::NotFound);
    bob.get("/api/events?thread=main").await.problem(ErrorCode::NotFound);
    world.finish().await;
}

#[tokio::test]
async fn one_stream_has_the_lists_and_the_pieces_of_a_thread() {
    let script = script_of(&[json!({"reply": {"text": "It is done, all of it.", "chunk_chars": 4}})]);
    let world = World::builder().script(script).build().await;
    let ada = world.user("ada");
    ada.post("/api/chat/send", &json!({"content": "first"})).await.expect(202);
    let mut stream = ada.instance_stream("/api/events?kind=state&thread=main&after=0", None).await;
    let (mut pieces, mut answers) = (String::new(), vec![]);
    let mut sent = false;
    while answers.len() < 2 {
        match stream.next().await.expect("the stream goes on") {
            InstanceMessage::Live { event, data } if event == "delta" => match data["kind"].as_str() {
                Some("start") => pieces.clear(),
                Some("text") => pieces.push_str(data["text"].as_str().unwrap()),
                _ => {}
            },
            InstanceMessage::Event(event) => {
                let event = serde_json::to_value(event).unwrap();
                if event["kind"] == "chat_message" && event["data"]["role"] == "assistant" {
                    answers.push(event["data"]["content"].as_str().unwrap().to_owned());
                    if sent {
                        assert_eq!(pieces, answers[1], "its pieces come before a message");
                    }
                }
                if event["kind"] == "thread_state" && event["data"]["state"] == "idle" && !sent {
                    sent = true;
                    ada.post("/api/chat/send", &json!({"content": "second"})).await.expect(202);
                }
            }
            _ => {}
        }
    }
    assert_eq!(answers[0], "It is done, all of it.");
    world.finish().await;
}

#[tokio::test]
async fn every_stream_tells_its_position_to_clients_that_see_no_comments() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("work").await;
    let worker = world.manual_worker(id).await;
    let position = async |path: String| {
        let request = ada.request(Method::GET, &path).header("Accept", "text/event-stream");
        let mut response = request.send().await.unwrap();
        let mut text = String::new();
        // Real time: a position comes every 15 s.
        while !text.contains("event: position") || !text.ends_with("\n\n") {
            let piece = tests::within("a position", response.chunk()).await.unwrap().expect("the stream goes on");
            text.push_str(std::str::from_utf8(&piece).unwrap());
        }
        let message = text.split("\n\n").find(|message| message.contains("event: position")).unwrap().to_owned();
        assert!(!message.contains("id:"), "{message}");
        let data = message.lines().find_map(|line| line.strip_prefix("data: ")).unwrap();
        serde_json::from_str::<Value>(data).unwrap()
    };
    let (of_instance, of_chat, of_job) = tokio::join!(
        position("/api/events?kind=cron".to_owned()),
        position("/api/chat/events".to_owned()),
        position(format!("/api/jobs/{id}/events")),
    );
    let last = ada.events(id).await.last().unwrap().seq;
    assert_eq!(of_job["seq"], json!(last));
    for position in [&of_instance, &of_chat, &of_job] {
        assert!(position["now"].as_str().is_some_and(|now| now.ends_with('Z')), "{position}");
    }
    assert!(of_instance["cursor"].as_i64().is_some_and(|cursor| cursor >= last), "{of_instance}");
    assert_eq!(of_chat["cursor"], of_instance["cursor"]);
    worker.finish("done").await;
    ada.wait_for_end(id).await;
    world.finish().await;
}
