//! Event streams: every event is delivered exactly once, whatever happens to the connection.

use protocol::{ErrorCode, Event, EventData, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{ManualWorker, Reply, StreamMessage, User, World};

fn seqs(events: &[Event]) -> Vec<i64> {
    events.iter().map(|event| event.seq).collect()
}

async fn send_message(worker: &ManualWorker, from: u64, to: u64) {
    let events: Vec<_> = (from..=to)
        .map(|seq| (seq, "message", json!({"role": "assistant", "content": format!("line {seq}")})))
        .collect();
    worker.send(&events).await.expect(200);
}

#[tokio::test]
async fn an_interrupted_stream_resumes_without_gaps_or_duplicates() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let mut stream = ada.stream(id, None).await;
    let worker = world.manual_worker(id).await;
    send_message(&worker, 1, 5).await;
    let mut seen = vec![];
    while seen.len() < 4 {
        seen.push(stream.event().await);
    }
    drop(stream);
    send_message(&worker, 6, 9).await;
    let resumed = ada.stream(id, Some(4)).await;
    worker.finish("done").await;
    let (rest, state, last) = resumed.rest().await;
    seen.extend(rest);
    assert_eq!((state, seqs(&seen)), (JobState::Completed, (1..=last).collect()));
    assert_eq!(seen, ada.events(id).await);
    world.finish().await;
}

/// Resumes a job's stream and returns the status and body.
async fn resume(user: &User, path: &str, last_event_id: i64) -> (u16, String) {
    let request = user.request(Method::GET, path).header("Accept", "text/event-stream");
    let response = request.header("Last-Event-ID", last_event_id.to_string()).send().await.unwrap();
    (response.status().as_u16(), response.text().await.unwrap())
}

#[tokio::test]
async fn the_stream_of_a_finished_job_can_start_at_any_event() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    world.manual_worker(id).await.finish("done").await;
    let (all, _, last) = ada.stream(id, None).await.rest().await;
    let (tail, _, _) = ada.stream(id, Some(last - 2)).await.rest().await;
    assert_eq!(tail, all[all.len() - 2..]);
    let (by_query, _, _) = ada.stream_of(&format!("/api/jobs/{id}/events?after={}", last - 2), None).await.rest().await;
    assert_eq!(by_query, tail);
    world.finish().await;
}

#[tokio::test]
async fn a_resume_at_the_end_of_a_finished_job_is_204() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let worker = world.manual_worker(id).await;
    let path = format!("/api/jobs/{id}/events");
    // While the job is running, a client that has seen everything waits for more.
    let so_far = ada.events(id).await.last().unwrap().seq;
    let waiting = ada.stream(id, Some(so_far)).await;
    worker.finish("done").await;
    let (_, _, last) = waiting.rest().await;
    assert_eq!(resume(&ada, &path, last).await, (204, String::new()), "an EventSource stops on 204 only");
    // A client that follows one kind resumes from the number of its last event of that kind.
    let state = resume(&ada, &format!("{path}?kind=state"), last).await;
    let message = resume(&ada, &format!("{path}?kind=egress"), 1).await;
    assert_eq!((state.0, message.0), (204, 204));
    world.finish().await;
}

#[tokio::test]
async fn a_resume_beyond_the_last_event_is_a_resync() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let worker = world.manual_worker(id).await;
    // After a restore from a backup, a client may know events that the server does not have.
    let mut running = ada.stream(id, Some(99_999)).await;
    assert_eq!(running.next().await, Some(StreamMessage::Resync(json!({"seq": 1}))));
    assert_eq!(running.event().await.seq, 1);
    worker.finish("done").await;
    let (rest, state, last) = running.rest().await;
    assert_eq!((state, seqs(&rest)), (JobState::Completed, (2..=last).collect()));
    let mut finished = ada.stream(id, Some(last + 1)).await;
    assert_eq!(finished.next().await, Some(StreamMessage::Resync(json!({"seq": 1}))));
    assert_eq!(finished.rest().await.0, ada.events(id).await);
    world.finish().await;
}

#[tokio::test]
async fn a_restart_neither_loses_nor_duplicates_events() {
    let mut world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let mut stream = ada.stream(id, None).await;
    let worker = world.manual_worker(id).await;
    send_message(&worker, 1, 3).await;
    let mut seen = vec![];
    while seen.len() < 5 {
        seen.push(stream.event().await);
    }
    world.stop().await;
    assert_eq!(stream.next().await, None, "a drain ends streams, so that readers go to the next process");
    world.start().await;

    let ada = world.user("ada");
    let stream = ada.stream(id, seen.last().map(|event| event.seq)).await;
    let worker = world.manual_worker(id).await;
    assert_eq!(worker.job().await.attempt, 1, "the container must be adopted and its token stay valid");
    // Events that were not acknowledged are sent again; stored events are not stored twice.
    send_message(&worker, 2, 6).await;
    worker.finish("done").await;
    let (rest, state, last) = stream.rest().await;
    seen.extend(rest);
    assert_eq!((state, seqs(&seen)), (JobState::Completed, (1..=last).collect()));
    let lines = seen.iter().filter(|event| matches!(event.data, EventData::Message { .. })).count();
    assert_eq!(lines, 6);
    assert_eq!(world.engine().requested_starts().len(), 1, "nothing was started twice");
    world.finish().await;
}

#[tokio::test]
async fn a_single_event_kind_can_be_streamed_to_the_end() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let stream = ada.stream_of(&format!("/api/jobs/{id}/events?kind=message"), None).await;
    let worker = world.manual_worker(id).await;
    send_message(&worker, 1, 3).await;
    worker.finish("done").await;
    let (messages, state, _) = stream.rest().await;
    assert_eq!((messages.len(), state), (3, JobState::Completed));
    let page = ada.get(&format!("/api/jobs/{id}/events?kind=message&limit=2")).await.expect(200).body;
    let next = page["next_after"].as_i64().unwrap();
    let rest = ada.get(&format!("/api/jobs/{id}/events?kind=message&limit=2&after={next}")).await.expect(200).body;
    assert_eq!((rest["items"].as_array().map(Vec::len), rest["next_after"].as_i64()), (Some(1), None));
    ada.get(&format!("/api/jobs/{id}/events?kind=gossip")).await.problem(ErrorCode::Invalid);
    ada.get(&format!("/api/jobs/{id}/events?after=-1")).await.problem(ErrorCode::Invalid);
    let wrong = ada.request(Method::GET, &format!("/api/jobs/{id}/events"));
    let wrong = wrong.header("Accept", "text/event-stream").header("Last-Event-ID", "x");
    Reply::of(wrong).await.problem(ErrorCode::Invalid);
    world.finish().await;
}

#[tokio::test]
async fn a_client_that_does_not_read_delays_no_other_client() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let mut idle = ada.stream(id, None).await;
    assert!(matches!(idle.next().await, Some(StreamMessage::Event(_))));
    let worker = world.manual_worker(id).await;
    let eager = ada.stream(id, None).await;
    for batch in 0..10_u64 {
        let events: Vec<_> = (1..=10_u64)
            .map(|n| (batch * 10 + n, "log", json!({"stream": "stdout", "text": "x".repeat(20_000)})))
            .collect();
        worker.send(&events).await.expect(200);
    }
    worker.finish("done").await;
    let (all, _, last) = eager.rest().await;
    assert_eq!(seqs(&all), (1..=last).collect::<Vec<_>>());
    drop(idle);
    world.finish().await;
}

/// The `seq` of the items of a page.
async fn page_of(user: &User, path: &str) -> (Vec<i64>, Value) {
    let body = user.get(path).await.expect(200).body;
    let items = body["items"].as_array().unwrap();
    (items.iter().map(|event| event["seq"].as_i64().unwrap()).collect(), body)
}

#[tokio::test]
async fn the_last_events_are_read_first_and_without_their_long_texts() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let worker = world.manual_worker(id).await;
    send_message(&worker, 1, 6).await;
    let long = json!({"role": "assistant", "content": "\u{e9}".repeat(5_000)});
    worker.send(&[(7, "message", long)]).await.expect(200);
    worker.finish("done").await;
    let all = ada.stream(id, None).await.rest().await.2;
    let path = format!("/api/jobs/{id}/events");

    let (newest, page) = page_of(&ada, &format!("{path}?before={}&limit=4", i64::MAX)).await;
    assert_eq!((newest, page["last_seq"].as_i64()), ((all - 3..=all).collect(), Some(all)));
    let (older, page) = page_of(&ada, &format!("{path}?before={}&limit=200", page["next_before"])).await;
    assert_eq!((older, &page["next_before"]), ((1..all - 3).collect(), &Value::Null));

    let (_, short) = page_of(&ada, &format!("{path}?kind=message&before={all}&limit=1&max_text=200")).await;
    let cut = &short["items"][0];
    assert_eq!(
        (cut["data"]["content"].as_str().map(|text| text.chars().count()), &cut["cut"]),
        (Some(200), &json!(true))
    );
    let whole = ada.get(&format!("{path}/{}", cut["seq"])).await.expect(200).body;
    assert_eq!((whole["data"]["content"].as_str().map(str::len), &whole["cut"]), (Some(10_000), &Value::Null));
    ada.get(&format!("{path}/{}", all + 1)).await.problem(ErrorCode::NotFound);
    world.user("ben").get(&format!("{path}/1")).await.problem(ErrorCode::NotFound);
    for wrong in ["before=0", "max_text=199", "max_text=10001", "before=x"] {
        ada.get(&format!("{path}?{wrong}")).await.problem(ErrorCode::Invalid);
    }
    for pages_only in ["before=3", "max_text=200", "call_id=a", "failed=true"] {
        let stream = ada.request(Method::GET, &format!("{path}?{pages_only}")).header("Accept", "text/event-stream");
        Reply::of(stream).await.problem(ErrorCode::Invalid);
    }
    world.finish().await;
}

#[tokio::test]
async fn a_page_has_the_asked_kinds_the_events_of_a_call_or_the_failures() {
    let world = World::new().await;
    let ada = world.user("ada");
    let id = ada.create_job("talk").await;
    let worker = world.manual_worker(id).await;
    let result = |call: &str, success: bool| json!({"call_id": call, "tool": "shell", "success": success, "output": "", "truncated": false, "duration_ms": 1});
    let sent = [
        (1, "tool_use", json!({"call_id": "a", "tool": "shell", "input": {"command": "ls"}})),
        (2, "tool_use", json!({"call_id": "b", "tool": "shell", "input": {"command": "false"}})),
        (3, "log", json!({"stream": "stdout", "text": "x", "call_id": "b"})),
        (4, "tool_result", result("a", true)),
        (5, "tool_result", result("b", false)),
        (6, "message", json!({"role": "assistant", "content": "It failed."})),
    ];
    worker.send(&sent).await.expect(200);
    let path = format!("/api/jobs/{id}/events");
    // Kinds, each with its call.
    let found = async |query: &str| {
        let body = page_of(&ada, &format!("{path}?{query}")).await.1;
        let text = |value: &Value| value.as_str().unwrap_or_default().to_owned();
        let items = body["items"].as_array().unwrap();
        items.iter().map(|event| text(&event["kind"]) + ":" + &text(&event["data"]["call_id"])).collect::<Vec<_>>()
    };
    assert_eq!(found("kind=tool_use,message").await, ["tool_use:a", "tool_use:b", "message:"]);
    assert_eq!(found("call_id=b").await, ["tool_use:b", "log:b", "tool_result:b"]);
    assert_eq!(found("call_id=b&kind=tool_result").await, ["tool_result:b"]);
    assert_eq!(found("failed=true").await, ["tool_result:b"]);
    assert_eq!(found("failed=true&before=9223372036854775807&limit=1").await, ["tool_result:b"]);
    worker.finish("done").await;
    world.finish().await;
}
