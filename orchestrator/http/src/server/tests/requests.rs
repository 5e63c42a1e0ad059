//! Limits of requests and bodies on a connection.

use super::*;

#[tokio::test]
async fn requests_without_a_session_are_few_and_then_the_connection_is_closed() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut other = running.connect().await;
    for _ in 0..3 {
        assert_status(&other.get("/health", "").await, 200);
    }
    let answer = other.get("/health", "").await;
    assert_status(&answer, 429);
    assert!(answer.contains("retry-after: 1\r\n") && answer.contains("rate_limited"), "{answer}");
    other.is_closed().await;
    for _ in 0..20 {
        assert_status(&worker.get("/call", SECRET).await, 200);
    }
    // The session's calls on new connections are let in, though the others have used up their rate.
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn calls_with_the_token_and_another_secret_are_held_to_the_rate_of_those_without_a_session() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    // Before a session is established, the first request of each connection may be the worker's.
    for _ in 0..10 {
        let mut other = running.connect().await;
        assert_status(&other.get("/call", "authorization: Bearer good\r\n").await, 401);
        other.is_closed().await;
    }
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    let mut statuses = vec![];
    for secret in ["", "x-gantry-session: forged\r\n"].repeat(5) {
        let mut other = running.connect().await;
        let answer = other.get("/call", &format!("authorization: Bearer good\r\n{secret}")).await;
        statuses.push(answer.split(' ').nth(1).unwrap_or_default().to_owned());
        other.is_closed().await;
    }
    assert_eq!(statuses[..3], ["401"; 3]);
    assert_eq!(statuses[4..], ["429"; 6], "the bucket may have got one back meanwhile");
    assert_status(&running.connect().await.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn a_session_that_asks_too_often_waits() {
    let mut policy = small_policy();
    session_of(&mut policy).session_rate = Rate { burst: 5, per_hour: 3_600 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    for _ in 0..6 {
        assert_status(&worker.get("/call", SECRET).await, 200);
    }
    assert_status(&worker.get("/call", SECRET).await, 429);
    // The connection stays.
    assert_status(&worker.get("/call", SECRET).await, 429);
    running.stopped().await;
}

#[tokio::test]
async fn requests_in_flight_have_a_limit_of_which_others_get_a_part() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut others = vec![];
    for count in 1..=2 {
        let mut other = running.connect().await;
        other.send("GET /open-wait HTTP/1.1\r\nhost: a\r\n\r\n").await;
        running.waiting.until(count).await;
        others.push(other);
    }
    let mut one_more = running.connect().await;
    assert_status(&one_more.get("/health", "").await, 429);
    let mut mine = vec![];
    for count in 3..=4 {
        let mut worker = running.connect().await;
        worker.send(&format!("GET /wait HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
        running.waiting.until(count).await;
        mine.push(worker);
    }
    mine.push(running.connect().await);
    assert_status(&mine[2].get("/call", SECRET).await, 429);
    running.waiting.go.notify_waiters();
    for client in others.iter_mut().chain(&mut mine[..2]) {
        assert_status(&client.answer().await, 200);
    }
    running.stopped().await;
}

#[tokio::test]
async fn bodies_are_reserved_before_they_are_read() {
    let own = BodyBudget::of(4 << 20, 512 << 10, 1, 1);
    let running = Running::worker(small_policy(), own);
    let head = |length: usize| {
        format!(
            "POST /body HTTP/1.1\r\nhost: a\r\n{SECRET}content-type: application/json\r\ncontent-length: {length}\r\n\r\n"
        )
    };
    // Announced, not sent: it holds its room.
    let mut holder = running.connect().await;
    holder.send(&head(3 << 20)).await;
    holder.send("\"").await;
    let mut second = running.connect().await;
    second.send(&head(1 << 20)).await;
    let text = format!("\"{}\"", "x".repeat((1 << 20) - 2));
    let none = timeout(Duration::from_millis(300), second.0.write_all(text.as_bytes())).await;
    assert!(none.is_err(), "it is read before memory is available: {none:?}");
    drop(second);
    // A small one does not wait.
    let mut small = running.connect().await;
    small.send(&format!("{}\"abc\"", head(5))).await;
    assert!(small.answer().await.ends_with("\r\n\r\n3"));
    drop(holder);
    let mut third = running.connect().await;
    third.send(&head(1 << 20)).await;
    third.send(&text).await;
    let answer = third.answer().await;
    assert!(answer.ends_with(&format!("\r\n\r\n{}", (1 << 20) - 2)), "{answer}");
    running.stopped().await;
}

#[tokio::test]
async fn no_byte_of_a_body_is_read_of_a_call_that_is_refused() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut other = running.connect().await;
    other
        .send("POST /body HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\ncontent-length: 33554432\r\n\r\n")
        .await;
    assert_status(&other.answer().await, 401);
    other.is_closed().await;
    running.stopped().await;
}

#[tokio::test]
async fn only_http_1_is_spoken() {
    let (running, address) = Running::public(Policy::public(64)).await;
    let mut client = Client(TcpStream::connect(address).await.unwrap());
    client.send("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n\0\0\0\u{4}\0\0\0\0\0").await;
    let mut answer = vec![];
    within("the connection to be closed", client.0.read_to_end(&mut answer)).await.unwrap_or_default();
    // A server of HTTP/2 would send its settings: a frame of type 4.
    assert!(answer.is_empty() || answer.starts_with(b"HTTP/1.1 4"), "{answer:?}");
    running.stopped().await;
}

#[tokio::test]
async fn requests_in_flight_when_the_server_stops_are_answered() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut idle = running.connect().await;
    assert_status(&idle.get("/call", SECRET).await, 200);
    let mut worker = running.connect().await;
    worker.send(&format!("GET /wait HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
    running.waiting.until(1).await;
    running.stop.cancel();
    idle.is_closed().await;
    running.waiting.go.notify_waiters();
    let answer = worker.answer().await;
    assert_status(&answer, 200);
    worker.is_closed().await;
    running.stopped().await;
}
