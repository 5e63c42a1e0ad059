//! A random walk: creates, prompts, cancels, kills at named points and at any moment, stops, and dead containers, in an
//! order that a seed gives. Then it waits for the end and checks the world.
//!
//! By hand, for longer or once more: `GANTRY_WALK_SECONDS=600 GANTRY_WALK_SEED=7 cargo test -p tests --test faults walk --
//! --nocapture`. The seed gives the same steps, not the same timing.

use std::{
    collections::BTreeMap,
    fs,
    time::{Duration, Instant},
};

use orchestrator::{clock::Clock, config::Environment};
use protocol::{JobId, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    User,
    install::{
        engine::{comes_true, docker},
        stack::Stack,
    },
};

use crate::{
    after::{ended, world_after},
    crowds::was_seen,
    ground::{Chance, act, ask, install, post},
};

const USUALLY: Duration = Duration::from_secs(40);
/// What is open at the walk's end is over by then.
const ENDS_WITHIN: Duration = Duration::from_secs(90);
/// More than these would only wait.
const OPEN_JOBS: usize = 12;
const POINTS: [&str; 14] = [
    "create.before_row",
    "create.after_row",
    "start.after_row",
    "start.after_folder",
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
#[expect(clippy::print_stderr, reason = "the seed, for whoever wants the walk again")]
async fn a_random_walk_through_every_fault_loses_nothing() {
    let environment = Environment::from_process();
    let asked = |name: &str| environment.get(name).and_then(|value| value.parse::<u64>().ok());
    let seed = asked("GANTRY_WALK_SEED").unwrap_or(Clock::system().now().timestamp().unsigned_abs());
    let length = asked("GANTRY_WALK_SECONDS").map_or(USUALLY, Duration::from_secs);
    // The harness shows it when the walk fails.
    eprintln!("the walk's seed is {seed}");
    let stack = install().start().await;
    let ada = stack.user("ada").await;
    let mut walk = Walk {
        stack,
        ada,
        chance: Chance(seed),
        open: vec![],
        posted: vec![],
        accepted: vec![],
        steps: BTreeMap::new(),
    };
    let since = Instant::now();
    while since.elapsed() < length {
        walk.step().await;
        walk.chance.moment(Duration::from_millis(150)).await;
    }
    walk.end().await;
}

struct Walk {
    stack: Stack,
    ada: User,
    chance: Chance,
    /// Jobs that had not ended when they were last seen.
    open: Vec<JobId>,
    /// What was posted, by key, and whether it was answered.
    posted: Vec<(Value, bool)>,
    /// Prompts that were taken.
    accepted: Vec<(JobId, String)>,
    steps: BTreeMap<&'static str, u32>,
}

impl Walk {
    async fn step(&mut self) {
        let name = match self.chance.below(100) {
            0..=37 => self.create().await,
            38..=52 => self.prompt().await,
            53..=62 => self.cancel().await,
            63..=78 => self.open_a_gate(),
            79..=85 => self.kill_a_container().await,
            86..=93 => self.kill_the_process().await,
            94..=95 => self.stop_the_process().await,
            _ => self.review().await,
        };
        *self.steps.entry(name).or_default() += 1;
    }

    async fn create(&mut self) -> &'static str {
        self.look().await;
        if self.open.len() >= OPEN_JOBS {
            return "looked";
        }
        let prompts = ["work 1", "work 1", "work 2", "work 9", "gate", "gate", "think"];
        let prompt = self.chance.one_of(&prompts).unwrap_or("work 1");
        let mut body = json!({"prompt": prompt, "review": self.chance.below(6) == 0});
        if self.chance.below(4) == 0 {
            body["files"] = json!([{"path": "given.txt", "content": "given"}]);
        }
        self.posted.push((body, false));
        self.post_again().await;
        "created"
    }

    /// Posts what was not answered, under its key.
    async fn post_again(&mut self) {
        for place in 0..self.posted.len() {
            while let (body, false) = &self.posted[place] {
                let body = body.clone();
                match post(&self.ada, &format!("key-{place}"), &body).await {
                    Some(job) => {
                        self.open.push(job.id);
                        self.posted[place].1 = true;
                    }
                    None => self.rise().await,
                }
            }
        }
    }

    async fn prompt(&mut self) -> &'static str {
        let Some(id) = self.chance.one_of(&self.open) else { return "nobody to prompt" };
        let content = format!("say: {}", self.chance.below(u64::MAX));
        let mode = self.chance.one_of(&["steer", "queue"]);
        let body = json!({"content": content, "mode": mode});
        match ask(self.ada.request(Method::POST, &format!("/api/jobs/{id}/prompt")).json(&body)).await {
            Some((202, _)) => self.accepted.push((id, content)),
            Some((409, _)) => {}
            Some(other) => panic!("a prompt was answered {other:?}"),
            None => self.rise().await,
        }
        "prompted"
    }

    async fn cancel(&mut self) -> &'static str {
        let Some(id) = self.chance.one_of(&self.open) else { return "nobody to cancel" };
        match act(&self.ada, id, "cancel").await {
            Some((200 | 202 | 409, _)) => {}
            Some(other) => panic!("a cancel was answered {other:?}"),
            None => self.rise().await,
        }
        "cancelled"
    }

    fn open_a_gate(&mut self) -> &'static str {
        if let Some(id) = self.chance.one_of(&self.open) {
            open_gate(&self.stack, id);
        }
        "opened a gate"
    }

    async fn kill_a_container(&mut self) -> &'static str {
        let containers = self.stack.containers().await;
        let names: Vec<&str> = containers.iter().map(String::as_str).collect();
        if let Some(name) = self.chance.one_of(&names) {
            let how: &[&str] = if self.chance.below(2) == 0 { &["kill"] } else { &["rm", "-f"] };
            // It may have gone by itself.
            docker(&[how, &[name]].concat()).await;
        }
        "killed a container"
    }

    async fn kill_the_process(&mut self) -> &'static str {
        self.stack.kill9();
        self.chance.moment(Duration::from_millis(800)).await;
        self.start().await;
        "killed the process"
    }

    async fn stop_the_process(&mut self) -> &'static str {
        self.stack.set("GANTRY_FAILPOINT", None);
        self.stack.try_stop().await;
        self.start().await;
        "stopped the process"
    }

    async fn review(&mut self) -> &'static str {
        let submitted = self.ask_jobs().await.into_iter().filter(|(_, state)| *state == JobState::Submitted);
        let submitted: Vec<JobId> = submitted.map(|(id, _)| id).collect();
        let Some(id) = self.chance.one_of(&submitted) else { return "nothing to review" };
        let (verb, body) =
            if self.chance.below(2) == 0 { ("accept", json!({})) } else { ("reject", json!({"reason": "no"})) };
        match ask(self.ada.request(Method::POST, &format!("/api/jobs/{id}/{verb}")).json(&body)).await {
            Some((200 | 409, _)) => {}
            Some(other) => panic!("a review was answered {other:?}"),
            None => self.rise().await,
        }
        "reviewed"
    }

    /// Forgets what has ended.
    async fn look(&mut self) {
        let jobs: BTreeMap<JobId, JobState> = self.ask_jobs().await.into_iter().collect();
        self.open.retain(|id| jobs.get(id).is_some_and(|state| !ended(*state)));
    }

    async fn ask_jobs(&mut self) -> Vec<(JobId, JobState)> {
        let (mut jobs, mut cursor) = (vec![], String::new());
        loop {
            match ask(self.ada.request(Method::GET, &format!("/api/jobs?limit=200{cursor}"))).await {
                Some((200, page)) => {
                    let items = page["items"].as_array().cloned().unwrap_or_default();
                    let parsed = |job: Value| serde_json::from_value::<protocol::JobSummary>(job).expect("a job");
                    jobs.extend(items.into_iter().map(parsed).map(|job| (job.id, job.state)));
                    match page["next_cursor"].as_str() {
                        Some(next) => cursor = format!("&cursor={next}"),
                        None => return jobs,
                    }
                }
                Some(other) => panic!("a list was answered {other:?}"),
                None => self.rise().await,
            }
        }
    }

    /// It died of its failpoint: another one starts.
    async fn rise(&mut self) {
        self.stack.ended().await;
        *self.steps.entry("died at a point").or_default() += 1;
        self.start().await;
    }

    /// Starts it, now and then to die at a point.
    async fn start(&mut self) {
        let point = self.chance.one_of(&POINTS).filter(|_| self.chance.below(2) == 0);
        let point = point.map(|point| format!("{point}:{}", 1 + self.chance.below(6)));
        self.stack.set("GANTRY_FAILPOINT", point.as_deref());
        while !self.stack.try_restart().await {
            self.stack.ended().await;
            *self.steps.entry("died at its start").or_default() += 1;
            self.stack.set("GANTRY_FAILPOINT", None);
        }
    }

    #[expect(clippy::print_stderr, reason = "what it did, for whoever runs it by hand")]
    /// No more faults; everything comes to its end, and what holds must hold.
    async fn end(mut self) {
        self.stack.set("GANTRY_FAILPOINT", None);
        self.stack.try_stop().await;
        self.stack.restart().await;
        self.post_again().await;
        let over = async || {
            let jobs = self.ada.jobs().await;
            let open: Vec<_> = jobs.iter().filter(|job| !ended(job.state)).collect();
            for job in &open {
                open_gate(&self.stack, job.id);
            }
            open.is_empty()
        };
        comes_true("every job of the walk has ended", ENDS_WITHIN, over).await;
        world_after(&self.stack).await;
        let mut states: BTreeMap<String, u32> = BTreeMap::new();
        for job in self.ada.jobs().await {
            *states.entry(format!("{} {:?} attempt {}", job.state, job.reason, job.attempt)).or_default() += 1;
            let events = self.ada.events(job.id).await;
            let done = matches!(job.state, JobState::Completed | JobState::Submitted | JobState::Accepted);
            for (_, content) in self.accepted.iter().filter(|(id, _)| done && *id == job.id) {
                assert!(was_seen(&events, content), "{content} was accepted and lost: {job:#?} {events:#?}");
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

/// A job that does not wait at one is none the worse.
fn open_gate(stack: &Stack, job: JobId) {
    let workspace = stack.workspace(job);
    if workspace.exists() {
        let _ = fs::write(workspace.join("go"), "");
    }
}
