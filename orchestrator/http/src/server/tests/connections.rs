//! Limits and timeouts of connections.

use super::*;

#[tokio::test]
async fn a_flood_of_connections_keeps_no_session_out() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut flood = JoinSet::new();
    for _ in 0..8 {
        let path = running.path();
        flood.spawn(async move {
            let mut held = vec![];
            loop {
                match UnixStream::connect(&path).await {
                    // Half a request each.
                    Ok(mut stream) => {
                        let _ = stream.write_all(b"GET /health HT").await;
                        held.push(stream);
                    }
                    Err(_) => sleep(Duration::from_millis(1)).await,
                }
                held.truncate(200);
            }
        });
    }
    for _ in 0..50 {
        assert_status(&worker.get("/call", SECRET).await, 200);
        sleep(Duration::from_millis(5)).await;
    }
    // The worker can still open new connections.
    let mut again = running.connect().await;
    assert_status(&again.get("/call", SECRET).await, 200);
    flood.shutdown().await;
    running.stopped().await;
}

#[tokio::test]
async fn a_session_has_no_more_connections_than_there_are() {
    let running = Running::worker(small_policy(), BodyBudget::worker_socket());
    let mut mine = vec![];
    for _ in 0..6 {
        let mut client = running.connect().await;
        assert_status(&client.get("/call", SECRET).await, 200);
        mine.push(client);
    }
    let mut one_more = running.connect().await;
    one_more.send(&format!("GET /call HTTP/1.1\r\nhost: a\r\n{SECRET}\r\n")).await;
    let none = timeout(Duration::from_millis(300), one_more.answer()).await;
    assert!(none.is_err(), "it waits: {none:?}");
    mine.pop();
    assert_status(&one_more.answer().await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn twenty_thousand_attempts_leave_few_connections() {
    let mut policy = small_policy();
    session_of(&mut policy).accept_rate = Rate { burst: 50, per_hour: 100 * 3_600 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut held = vec![];
    for attempt in 0..20_000 {
        // One that is beyond the backlog fails at once.
        if let Ok(stream) = UnixStream::connect(running.path()).await {
            held.push(stream);
        }
        if attempt % 1_000 == 0 {
            assert_status(&worker.get("/call", SECRET).await, 200);
        }
        tokio::task::yield_now().await;
    }
    assert!(held.len() < 5_000, "{} were accepted or wait", held.len());
    running.stopped().await;
}

#[tokio::test]
async fn slow_heads_and_silent_connections_time_out() {
    let short = Duration::from_millis(200);
    let policy = Policy { head_timeout: short, idle_timeout: Some(short * 2), ..Policy::public(64) };
    let (running, address) = Running::public(policy).await;
    let mut silent = Client(TcpStream::connect(address).await.unwrap());
    let mut half = Client(TcpStream::connect(address).await.unwrap());
    let mut endless = Client(TcpStream::connect(address).await.unwrap());
    half.send("GET /health HTTP/1.1\r\nhost: a\r\nx").await;
    endless.send("GET /health HTTP/1.1\r\nhost: a\r\n").await;
    let since = Instant::now();
    let trickle = async {
        loop {
            endless.send("x: y\r\n").await;
            sleep(Duration::from_millis(20)).await;
            if endless.0.try_read(&mut [0; 1]).is_ok() {
                return;
            }
        }
    };
    tokio::join!(silent.is_closed(), half.is_closed(), within("the endless head to end", trickle));
    assert!(since.elapsed() >= short, "not before its time");
    // After a request the next one is waited for longer, and then no more.
    let mut idle = Client(TcpStream::connect(address).await.unwrap());
    assert_status(&idle.get("/health", "").await, 200);
    let since = Instant::now();
    sleep(short + Duration::from_millis(50)).await;
    assert_status(&idle.get("/health", "").await, 200);
    idle.is_closed().await;
    assert!(since.elapsed() >= short * 2, "{:?}", since.elapsed());
    running.stopped().await;
}

#[tokio::test]
async fn a_session_may_be_idle_and_others_may_not_stay() {
    let short = Duration::from_millis(200);
    let mut policy = Policy { head_timeout: short, ..small_policy() };
    session_of(&mut policy).authenticate_within = short;
    session_of(&mut policy).other_rate = Rate { burst: 1_000, per_hour: 3_600_000 };
    let running = Running::worker(policy, BodyBudget::worker_socket());
    let mut worker = running.connect().await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    let mut other = running.connect().await;
    let asking = async {
        // Requests that need no session give it no more time.
        while !other.get("/health", "").await.is_empty() {
            sleep(Duration::from_millis(20)).await;
        }
    };
    within("the other connection to be closed", asking).await;
    sleep(short * 3).await;
    assert_status(&worker.get("/call", SECRET).await, 200);
    running.stopped().await;
}

#[tokio::test]
async fn a_public_connection_beyond_the_limit_is_closed() {
    let (running, address) = Running::public(Policy { max_connections: 2, ..Policy::public(64) }).await;
    let mut clients = vec![];
    for _ in 0..2 {
        let mut client = Client(TcpStream::connect(address).await.unwrap());
        assert_status(&client.get("/health", "").await, 200);
        clients.push(client);
    }
    let mut beyond = Client(TcpStream::connect(address).await.unwrap());
    assert_eq!(beyond.get("/health", "").await, "");
    clients.pop();
    within("a place", async {
        loop {
            let mut client = Client(TcpStream::connect(address).await.unwrap());
            if !client.get("/health", "").await.is_empty() {
                return;
            }
        }
    })
    .await;
    assert!(running.metrics.render(&DbCounts::default()).contains("gantry_connections_refused_total 1"));
    running.stopped().await;
}
