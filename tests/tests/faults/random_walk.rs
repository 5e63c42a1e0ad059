//! A random walk: creates, prompts, cancels, kills at failpoints and at arbitrary moments, stops, and killed
//! containers, in an order determined by a seed. At the end the invariants are checked.
//!
//! To run it longer or again:
//! `GANTRY_WALK_SECONDS=600 GANTRY_WALK_SEED=7 cargo test -p tests --test faults random_walk -- --nocapture`. A seed
//! reproduces the steps, not the timing.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use orchestrator::{Environment, clock::Clock};
use protocol::{JobId, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    User,
    install::{
        engine::{docker, wait_until},
        stack::Stack,
    },
};

use crate::{
    invariants::{check_invariants, ended},
    load::was_answered,
    setup::{Rng, install, post, post_action, send},
};

const DEFAULT_DURATION: Duration = Duration::from_secs(40);
/// Upper bound for everything that is unfinished at the end of the walk.
const END_TIMEOUT: Duration = Duration::from_secs(90);
/// More open jobs than this would only queue.
const MAX_OPEN_JOBS: usize = 12;
const FAILPOINTS: [&str; 14] = [
    "create.before_row",
    "create.after_row",
    "start.after_row",
    "start.after_directory",
    "start.after_create",
    "start.after_start",
    "events.before_commit",
    "events.after_commit",
    "llm.after_open",
    "llm.after_answer",
    "complete.before_commit",
    "complete.after_commit",
    "remove.before",
    "cancel.after_stop",
];

#[tokio::test]
#[expect(clippy::print_stderr, reason = "prints the seed for a repetition")]
async fn a_random_walk_of_faults_loses_nothing() {
    let environment = Environment::from_process();
    let asked = |name: &str| environment.get(name).and_then(|value| value.parse::<u64>().ok());
    let seed = asked("GANTRY_WALK_SEED").unwrap_or(Clock::system().now().timestamp().unsigned_abs());
    let length = asked("GANTRY_WALK_SECONDS").map_or(DEFAULT_DURATION, Duration::from_secs);
    // Shown by the test harness if the walk fails.
    eprintln!("the walk's seed is {seed}");
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let mut walk =
        Walk { stack, ada, rng: Rng(seed), open: vec![], posted: vec![], accepted: vec![], steps: BTreeMap::new() };
    let since = Instant::now();
    while since.elapsed() < length {
        walk.step().await;
        walk.rng.sleep_up_to(Duration::from_millis(150)).await;
    }
    walk.end().await;
}

struct Walk {
    stack: Stack,
    ada: User,
    rng: Rng,
    /// Jobs that had not ended when they were last checked.
    open: Vec<JobId>,
    /// The posted jobs by key, and whether there was a response.
    posted: Vec<(Value, bool)>,
    /// Accepted prompts.
    accepted: Vec<(JobId, String)>,
    steps: BTreeMap<&'static str, u32>,
}

impl Walk {
    async fn step(&mut self) {
        let name = match self.rng.below(100) {
            0..=37 => self.create().await,
            38..=52 => self.prompt().await,
            53..=62 => self.cancel().await,
            63..=78 => self.release_job(),
            79..=85 => self.kill_container().await,
            86..=93 => self.kill_process().await,
            94..=95 => self.stop_process().await,
            _ => self.review().await,
        };
        *self.steps.entry(name).or_default() += 1;
    }

    async fn create(&mut self) -> &'static str {
        self.refresh().await;
        if self.open.len() >= MAX_OPEN_JOBS {
            return "refreshed";
        }
        let prompts = ["work 1", "work 1", "work 2", "work 9", "gate", "gate", "think"];
        let prompt = self.rng.choose(&prompts).unwrap_or("work 1");
        let mut body = json!({"prompt": prompt, "review": self.rng.below(6) == 0});
        if self.rng.below(4) == 0 {
            body["files"] = json!([{"path": "given.txt", "content": "given"}]);
        }
        self.posted.push((body, false));
        self.retry_posts().await;
        "created"
    }

    /// Retries requests without a response under their keys.
    async fn retry_posts(&mut self) {
        for place in 0..self.posted.len() {
            while let (body, false) = &self.posted[place] {
                let body = body.clone();
                match post(&self.ada, &format!("key-{place}"), &body).await {
                    Some(job) => {
                        self.open.push(job.id);
                        self.posted[place].1 = true;
                    }
                    None => self.restart().await,
                }
            }
        }
    }

    async fn prompt(&mut self) -> &'static str {
        let Some(id) = self.rng.choose(&self.open) else { return "no job to prompt" };
        let content = format!("say: {}", self.rng.below(u64::MAX));
        let mode = self.rng.choose(&["steer", "queue"]);
        let body = json!({"content": content, "mode": mode});
        match send(self.ada.request(Method::POST, &format!("/api/jobs/{id}/prompt")).json(&body)).await {
            Some((202, _)) => self.accepted.push((id, content)),
            Some((409, _)) => {}
            Some(other) => panic!("a prompt got an unexpected response: {other:?}"),
            None => self.restart().await,
        }
        "prompted"
    }

    async fn cancel(&mut self) -> &'static str {
        let Some(id) = self.rng.choose(&self.open) else { return "no job to cancel" };
        match post_action(&self.ada, id, "cancel").await {
            Some((200 | 202 | 409, _)) => {}
            Some(other) => panic!("a cancel got an unexpected response: {other:?}"),
            None => self.restart().await,
        }
        "cancelled"
    }

    fn release_job(&mut self) -> &'static str {
        if let Some(id) = self.rng.choose(&self.open) {
            release_waiting(&self.stack, id);
        }
        "released a job"
    }

    async fn kill_container(&mut self) -> &'static str {
        let containers = self.stack.containers().await;
        let names: Vec<&str> = containers.iter().map(String::as_str).collect();
        if let Some(name) = self.rng.choose(&names) {
            let how: &[&str] = if self.rng.below(2) == 0 { &["kill"] } else { &["rm", "-f"] };
            // The container may have exited by itself.
            docker(&[how, &[name]].concat()).await;
        }
        "killed a container"
    }

    async fn kill_process(&mut self) -> &'static str {
        self.stack.kill();
        self.rng.sleep_up_to(Duration::from_millis(800)).await;
        self.start().await;
        "killed the process"
    }

    async fn stop_process(&mut self) -> &'static str {
        self.stack.set("GANTRY_FAILPOINT", None);
        self.stack.stop_if_running().await;
        self.start().await;
        "stopped the process"
    }

    async fn review(&mut self) -> &'static str {
        let submitted = self.list_jobs().await.into_iter().filter(|(_, state)| *state == JobState::Submitted);
        let submitted: Vec<JobId> = submitted.map(|(id, _)| id).collect();
        let Some(id) = self.rng.choose(&submitted) else { return "nothing to review" };
        let (verb, body) =
            if self.rng.below(2) == 0 { ("accept", json!({})) } else { ("reject", json!({"reason": "no"})) };
        match send(self.ada.request(Method::POST, &format!("/api/jobs/{id}/{verb}")).json(&body)).await {
            Some((200 | 409, _)) => {}
            Some(other) => panic!("a review got an unexpected response: {other:?}"),
            None => self.restart().await,
        }
        "reviewed"
    }

    /// Removes ended jobs from the list of open jobs.
    async fn refresh(&mut self) {
        let jobs: BTreeMap<JobId, JobState> = self.list_jobs().await.into_iter().collect();
        self.open.retain(|id| jobs.get(id).is_some_and(|state| !ended(*state)));
    }

    async fn list_jobs(&mut self) -> Vec<(JobId, JobState)> {
        let (mut jobs, mut cursor) = (vec![], String::new());
        loop {
            match send(self.ada.request(Method::GET, &format!("/api/jobs?limit=200{cursor}"))).await {
                Some((200, page)) => {
                    let items = page["items"].as_array().cloned().unwrap_or_default();
                    let parsed = |job: Value| serde_json::from_value::<protocol::JobSummary>(job).expect("a job");
                    jobs.extend(items.into_iter().map(parsed).map(|job| (job.id, job.state)));
                    match page["next_cursor"].as_str() {
                        Some(next) => cursor = format!("&cursor={next}"),
                        None => return jobs,
                    }
                }
                Some(other) => panic!("a list got an unexpected response: {other:?}"),
                None => self.restart().await,
            }
        }
    }

    /// Restarts the process after it was killed by its failpoint.
    async fn restart(&mut self) {
        self.stack.ended().await;
        *self.steps.entry("killed at a failpoint").or_default() += 1;
        self.start().await;
    }

    /// Starts the process, sometimes with a failpoint.
    async fn start(&mut self) {
        let point = self.rng.choose(&FAILPOINTS).filter(|_| self.rng.below(2) == 0);
        let point = point.map(|point| format!("{point}:{}", 1 + self.rng.below(6)));
        self.stack.set("GANTRY_FAILPOINT", point.as_deref());
        while !self.stack.try_restart().await {
            self.stack.ended().await;
            *self.steps.entry("killed during the start").or_default() += 1;
            self.stack.set("GANTRY_FAILPOINT", None);
        }
    }

    #[expect(clippy::print_stderr, reason = "prints a summary for manual runs")]
    /// Stops injecting faults, waits for all jobs to end, and checks the invariants.
    async fn end(mut self) {
        self.stack.set("GANTRY_FAILPOINT", None);
        self.stack.stop_if_running().await;
        self.stack.restart().await;
        self.retry_posts().await;
        let over = async || {
            let jobs = self.ada.jobs().await;
            let open: Vec<_> = jobs.iter().filter(|job| !ended(job.state)).collect();
            for job in &open {
                release_waiting(&self.stack, job.id);
            }
            open.is_empty()
        };
        wait_until("every job of the walk to end", END_TIMEOUT, over).await;
        check_invariants(&self.stack).await;
        let mut states: BTreeMap<String, u32> = BTreeMap::new();
        for job in self.ada.jobs().await {
            *states.entry(format!("{} {:?} attempt {}", job.state, job.reason, job.attempt)).or_default() += 1;
            let events = self.ada.events(job.id).await;
            let done = matches!(job.state, JobState::Completed | JobState::Submitted | JobState::Accepted);
            for (_, content) in self.accepted.iter().filter(|(id, _)| done && *id == job.id) {
                assert!(was_answered(&events, content), "{content} was accepted and lost: {job:#?} {events:#?}");
            }
            if job.state == JobState::Submitted {
                self.ada.post(&format!("/api/jobs/{}/accept", job.id), &json!({})).await.expect(200);
            }
        }
        assert_eq!(self.ada.jobs().await.len(), self.posted.len(), "one job for each request");
        eprintln!("{:#?}\n{states:#?}", self.steps);
        self.stack.finish().await;
    }
}

/// Jobs that do not wait for a file are not affected.
fn release_waiting(stack: &Stack, job: JobId) {
    let workspace = stack.workspace(job);
    if workspace.exists() {
        let _ = fs::write(workspace.join("go"), "");
    }
}
