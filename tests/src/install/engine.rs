//! The engine as an operator sees it: through its own command line, independent of the code under test.

use std::time::{Duration, Instant};

use serde_json::Value;
use tokio::process::Command;

/// Poll interval for facts without notifications.
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// Runs `docker` and returns whether it succeeded, and its output.
pub async fn docker(arguments: &[&str]) -> (bool, String) {
    let output = Command::new("docker").args(arguments).kill_on_drop(true).output().await;
    let output = output.expect("cannot run docker: run tests/run.sh --only images");
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text.trim().to_owned())
}

/// Runs `docker`, which must succeed.
pub async fn must(arguments: &[&str]) -> String {
    let (well, text) = docker(arguments).await;
    assert!(well, "docker {arguments:?} failed: {text}");
    text
}

/// The engine's inspection of a container.
pub async fn inspect(container: &str) -> Value {
    let text = must(&["inspect", container]).await;
    let mut all: Vec<Value> = serde_json::from_str(&text).expect("inspect prints JSON");
    all.remove(0)
}

/// Polls until `holds` returns true and returns how long that took. Panics after `within`.
pub async fn wait_until(what: &str, within: Duration, condition: impl AsyncFn() -> bool) -> Duration {
    let started = Instant::now();
    loop {
        let asked = started.elapsed();
        if condition().await {
            return asked;
        }
        assert!(started.elapsed() < within, "timed out after {within:?} waiting for {what}");
        tokio::time::sleep(POLL_INTERVAL).await;
    }
}
