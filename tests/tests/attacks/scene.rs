//! An install with a hostile user and a victim: what both do, and what is measured meanwhile.
//!
//! Owns the order of things: the victim's jobs without the attack, the attack, the victim's jobs during it, the end.
//! Never judges (`verdict.rs`).

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use attack::{FILES, FLOOD, FORGE, Flood, STARTED, TokenThief, Vitals};
use protocol::{Event, EventData, Job, JobId, JobReason, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    User,
    install::{
        engine::comes_true,
        stack::{Builder, Stack},
    },
};

use crate::verdict::Verdict;

/// How long an attack goes on.
pub(crate) const ATTACK_SECONDS: u64 = 7;
/// A lease so short that the hostile job's own worker would lose it during the attack, did it not renew it.
const LEASE_SECONDS: &str = "5";
/// Measured before the attack, after one that warms up, and again after the attack.
const QUIET_JOBS: usize = 3;
/// A victim's job that has not ended by then has failed.
const VICTIM_PATIENCE: Duration = Duration::from_secs(30);
/// A hostile job ends so long after its attack at the latest.
const END_PATIENCE: Duration = Duration::from_secs(30);
const START_PATIENCE: Duration = Duration::from_secs(30);
const LOOK_AGAIN: Duration = Duration::from_millis(20);

/// How a hostile job should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Ends {
    /// Its command ends by itself, and the job with it.
    Completed,
    /// It is stopped for what it does to its disk.
    DiskLimit,
    /// The one or the other.
    CompletedOrDiskLimit,
}

/// The install, and who is there.
pub(crate) struct Scene {
    pub(crate) stack: Stack,
    /// The hostile user.
    pub(crate) mallory: User,
    /// Her token.
    pub(crate) mallory_token: String,
    victim: User,
    thief: TokenThief,
    quiet: Vec<Duration>,
    /// Where workspaces are, when not in the install's own data.
    workspaces: Option<PathBuf>,
}

/// What is being measured.
pub(crate) struct Watch {
    attack: String,
    vitals: Vitals,
    log_before_bytes: u64,
}

/// Who attacks.
pub(crate) struct Attackers<'a> {
    /// Jobs, and how they should end.
    pub(crate) jobs: &'a [(JobId, Ends)],
    /// A client of the public API.
    pub(crate) flood: Option<Flood>,
}

impl<'a> Attackers<'a> {
    /// Only jobs.
    pub(crate) const fn jobs(jobs: &'a [(JobId, Ends)]) -> Self {
        Self { jobs, flood: None }
    }

    /// Only a client.
    pub(crate) const fn client(flood: Flood) -> Self {
        Self { jobs: &[], flood: Some(flood) }
    }
}

/// The usual install of an attack.
pub(crate) fn install() -> Builder {
    Stack::builder().set("GANTRY_LEASE_SECONDS", LEASE_SECONDS)
}

impl Scene {
    /// With the usual install.
    pub(crate) async fn start() -> Self {
        Self::of(install(), None).await
    }

    /// With another one, and its workspaces in a folder.
    pub(crate) async fn of(builder: Builder, workspaces: Option<PathBuf>) -> Self {
        let builder = match &workspaces {
            Some(folder) => builder.set("GANTRY_WORKSPACE_DIR", &folder.display().to_string()),
            None => builder,
        };
        let stack = builder.start().await;
        let mallory_token = stack.token("mallory", "user").await;
        let mallory = User::at(stack.base(), Some(mallory_token.clone()));
        let victim = stack.user("victim").await;
        let thief = TokenThief::watch(stack.data("run"));
        let mut scene = Self { stack, mallory, mallory_token, victim, thief, quiet: vec![], workspaces };
        for round in 0..=QUIET_JOBS {
            let taken = scene.victims_job().await.expect("a job completes when nobody attacks");
            // The first warms up.
            scene.quiet.extend((round > 0).then_some(taken));
        }
        scene
    }

    /// A job's workspace on the host.
    pub(crate) fn workspace(&self, job: JobId) -> PathBuf {
        self.workspaces.as_ref().map_or_else(|| self.stack.workspace(job), |folder| folder.join(job.to_string()))
    }

    /// Begins to measure.
    pub(crate) fn watch(&self, attack: &str) -> Watch {
        Watch {
            attack: attack.to_owned(),
            vitals: Vitals::watch(self.stack.base(), self.stack.pid()),
            log_before_bytes: self.stack.printed_bytes(),
        }
    }

    /// A hostile job that runs a command, with all scripts beside it and its stolen token. It has begun.
    pub(crate) async fn hostile(&self, command: &str, limits: Value) -> JobId {
        let scripts = [FLOOD, FILES, FORGE].map(|(path, content)| json!({"path": path, "content": content}));
        let body = json!({"prompt": format!("run: {command}"), "limits": limits, "files": scripts});
        let job = self.mallory.create(body).await;
        self.hand_token_over(job);
        let workspace = self.workspace(job);
        comes_true("the attack has begun", START_PATIENCE, async || workspace.join(STARTED).exists()).await;
        job
    }

    /// Puts a job's token into its workspace, as a command would have it that was faster than the orchestrator.
    fn hand_token_over(&self, job: JobId) {
        let (id, workspace) = (job.to_string(), self.workspace(job));
        let handed = tokio::task::block_in_place(|| self.thief.hand_over(&id, &workspace));
        handed.expect("a token is in the run folder when the container starts");
    }

    /// Runs the victim's jobs while the attack of so many seconds goes on, then waits for the hostile jobs' ends.
    pub(crate) async fn measure(&self, watch: Watch, seconds: u64, attackers: Attackers<'_>) -> Verdict {
        let Attackers { jobs: hostile, flood } = attackers;
        let (mut flooded, mut failed) = (vec![], vec![]);
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until || flooded.is_empty() && failed.is_empty() {
            match self.victims_job().await {
                Ok(taken) => flooded.push(taken),
                Err(failure) => failed.push(failure),
            }
        }
        let mut told = vec![];
        if let Some(flood) = flood {
            told.push(format!("{:?}", tokio::task::block_in_place(|| flood.end())));
        }
        let mut wrong_ends = vec![];
        for (job, ends) in hostile {
            match self.end_of(*job).await {
                Ok((ended, events)) => {
                    told.extend(output_of(&events));
                    wrong_ends.extend(wrong_end(&ended, &events, *ends));
                }
                Err(failure) => wrong_ends.push(failure),
            }
        }
        let readings = watch.vitals.end();
        let log_growth_bytes = self.stack.printed_bytes() - watch.log_before_bytes;
        let mut after = vec![];
        for _ in 0..QUIET_JOBS {
            match self.victims_job().await {
                Ok(taken) => after.push(taken),
                Err(failure) => failed.push(failure),
            }
        }
        Verdict {
            attack: watch.attack,
            told,
            quiet: [self.quiet.clone(), after],
            flooded,
            failed,
            readings,
            log_growth_bytes,
            wrong_ends,
        }
    }

    /// A victim's job from the request to its end, or why it did not complete.
    async fn victims_job(&self) -> Result<Duration, String> {
        let asked = Instant::now();
        let request = self.victim.request(Method::POST, "/api/jobs").json(&json!({"prompt": "run: true"}));
        let created: Job = answer(request).await.map_err(|error| format!("no job was made: {error}"))?;
        let ended = wait_for_end(&self.victim, created.id, VICTIM_PATIENCE).await?;
        match ended.state {
            JobState::Completed if ended.attempt == 1 => Ok(asked.elapsed()),
            state => Err(format!("{} is {state} ({:?}, attempt {})", ended.id, ended.reason, ended.attempt)),
        }
    }

    /// A hostile job once it has ended, with its events. One that does not end is cancelled.
    async fn end_of(&self, job: JobId) -> Result<(Job, Vec<Event>), String> {
        let ended = match wait_for_end(&self.mallory, job, END_PATIENCE).await {
            Ok(ended) => ended,
            Err(failure) => {
                let _ = self
                    .mallory
                    .request(Method::POST, &format!("/api/jobs/{job}/cancel"))
                    .json(&json!({}))
                    .send()
                    .await;
                return Err(failure);
            }
        };
        Ok((ended, self.mallory.events(job).await))
    }
}

async fn wait_for_end(user: &User, job: JobId, patience: Duration) -> Result<Job, String> {
    let deadline = Instant::now() + patience;
    let mut last = String::new();
    while Instant::now() < deadline {
        match answer::<Job>(user.request(Method::GET, &format!("/api/jobs/{job}"))).await {
            Ok(job) if job.state.is_finished() => return Ok(job),
            Ok(job) => last = job.state.to_string(),
            Err(error) => last = error,
        }
        tokio::time::sleep(LOOK_AGAIN).await;
    }
    Err(format!("{job} has not ended within {patience:?}: {last}"))
}

/// An answer, or what came instead: an attacked server may give none.
async fn answer<T: serde::de::DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, String> {
    let response = request.timeout(Duration::from_secs(10)).send().await.map_err(|error| format!("{error:?}"))?;
    let status = response.status();
    let body = response.bytes().await.map_err(|error| format!("{error:?}"))?;
    if !status.is_success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

/// What is wrong with a hostile job's end: only the job itself may suffer, and only as announced.
fn wrong_end(job: &Job, events: &[Event], ends: Ends) -> Option<String> {
    let stuck = events.iter().any(|event| matches!(event.data, EventData::State { to: JobState::Stuck, .. }));
    let completed = (job.state, job.reason) == (JobState::Completed, None);
    let evicted = (job.state, job.reason) == (JobState::Failed, Some(JobReason::DiskLimit));
    let as_it_should = match ends {
        Ends::Completed => completed,
        Ends::DiskLimit => evicted,
        Ends::CompletedOrDiskLimit => completed || evicted,
    };
    let holds = as_it_should && job.attempt == 1 && !stuck;
    (!holds).then(|| {
        let JobSummary { state, reason, message, attempt } = JobSummary::of(job);
        format!(
            "the hostile job is {state} ({reason:?}, {message:?}), attempt {attempt}, stuck: {stuck}; wanted {ends:?}"
        )
    })
}

struct JobSummary<'a> {
    state: JobState,
    reason: Option<JobReason>,
    message: Option<&'a str>,
    attempt: u32,
}

impl<'a> JobSummary<'a> {
    fn of(job: &'a Job) -> Self {
        Self { state: job.state, reason: job.reason, message: job.message.as_deref(), attempt: job.attempt }
    }
}

/// What the commands of a job printed.
pub(crate) fn output_of(events: &[Event]) -> Vec<String> {
    let output = |event: &Event| match &event.data {
        EventData::ToolResult { output, .. } => Some(output.chars().take(2_000).collect()),
        _ => None,
    };
    events.iter().filter_map(output).collect()
}
