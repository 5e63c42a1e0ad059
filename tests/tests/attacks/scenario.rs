//! An install with a hostile user and a victim, what both do, and what is measured.
//!
//! Owns the sequence: the victim's jobs without the attack, the attack, the victim's jobs during it, the end. Never
//! judges (`verdict.rs`).

use std::{
    path::PathBuf,
    time::{Duration, Instant},
};

use attack::{FILES, FLOOD, FORGE, Flood, STARTED, TokenCopier, Vitals};
use protocol::{Event, EventData, Job, JobId, JobReason, JobState};
use reqwest::Method;
use serde_json::{Value, json};
use tests::{
    User,
    install::{
        engine::wait_until,
        stack::{Builder, Stack},
    },
};

use crate::verdict::Verdict;

/// The duration of an attack.
pub(crate) const ATTACK_SECONDS: u64 = 7;
/// So short that the hostile job's own worker loses its lease during the attack unless it renews it.
const LEASE_SECONDS: &str = "5";
/// Jobs that are measured before the attack, after one warm-up, and again after the attack.
const BASELINE_JOBS: usize = 3;
/// The timeout of a victim's job.
const VICTIM_TIMEOUT: Duration = Duration::from_secs(30);
/// The timeout of a hostile job after its attack.
const END_TIMEOUT: Duration = Duration::from_secs(30);
const START_TIMEOUT: Duration = Duration::from_secs(30);
const POLL_INTERVAL: Duration = Duration::from_millis(20);

/// How a hostile job should end.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum ExpectedEnd {
    /// Its command exits by itself, and the job completes.
    Completed,
    /// It is stopped because of its disk usage.
    DiskLimit,
    /// Either of them.
    CompletedOrDiskLimit,
}

/// The install and its users.
pub(crate) struct Scenario {
    pub(crate) stack: Stack,
    /// The hostile user.
    pub(crate) mallory: User,
    /// The hostile user's token.
    pub(crate) mallory_token: String,
    victim: User,
    copier: TokenCopier,
    baseline: Vec<Duration>,
    /// Where workspaces are, if not in the install's own data directory.
    workspaces: Option<PathBuf>,
}

/// The running measurements.
pub(crate) struct Measurement {
    attack: String,
    vitals: Vitals,
    log_before_bytes: u64,
}

/// The attackers.
pub(crate) struct Attackers<'a> {
    /// Hostile jobs and how they should end.
    pub(crate) jobs: &'a [(JobId, ExpectedEnd)],
    /// A hostile client of the public API.
    pub(crate) flood: Option<Flood>,
}

impl<'a> Attackers<'a> {
    /// Only jobs.
    pub(crate) const fn jobs(jobs: &'a [(JobId, ExpectedEnd)]) -> Self {
        Self { jobs, flood: None }
    }

    /// Only a client.
    pub(crate) const fn client(flood: Flood) -> Self {
        Self { jobs: &[], flood: Some(flood) }
    }
}

/// The default install of an attack.
pub(crate) fn install() -> Builder {
    Stack::builder().set("GANTRY_LEASE_SECONDS", LEASE_SECONDS)
}

impl Scenario {
    /// Starts the default install.
    pub(crate) async fn start() -> Self {
        Self::of(install(), None).await
    }

    /// Starts another install, with its workspaces in `workspaces`.
    pub(crate) async fn of(builder: Builder, workspaces: Option<PathBuf>) -> Self {
        let builder = match &workspaces {
            Some(directory) => builder.set("GANTRY_WORKSPACE_DIR", &directory.display().to_string()),
            None => builder,
        };
        let stack = builder.start().await;
        let mallory_token = stack.token("mallory", "user").await;
        let mallory = User::at(stack.base(), Some(mallory_token.clone()));
        let victim = stack.user("victim").await;
        let copier = TokenCopier::watch(stack.data("run"));
        let mut scenario = Self { stack, mallory, mallory_token, victim, copier, baseline: vec![], workspaces };
        for round in 0..=BASELINE_JOBS {
            let taken = scenario.victims_job().await.expect("a job completes without an attack");
            // The first job is a warm-up.
            scenario.baseline.extend((round > 0).then_some(taken));
        }
        scenario
    }

    /// A job's workspace on the host.
    pub(crate) fn workspace(&self, job: JobId) -> PathBuf {
        self.workspaces.as_ref().map_or_else(|| self.stack.workspace(job), |directory| directory.join(job.to_string()))
    }

    /// Starts measuring.
    pub(crate) fn watch(&self, attack: &str) -> Measurement {
        Measurement {
            attack: attack.to_owned(),
            vitals: Vitals::watch(self.stack.base(), self.stack.pid()),
            log_before_bytes: self.stack.output_bytes(),
        }
    }

    /// Starts a hostile job with a command, all scripts and its stolen token. Returns when the command has started.
    pub(crate) async fn hostile(&self, command: &str, limits: Value) -> JobId {
        let scripts = [FLOOD, FILES, FORGE].map(|(path, content)| json!({"path": path, "content": content}));
        let body = json!({"prompt": format!("run: {command}"), "limits": limits, "files": scripts});
        let job = self.mallory.create(body).await;
        self.copy_token(job);
        let workspace = self.workspace(job);
        wait_until("the attack to start", START_TIMEOUT, async || workspace.join(STARTED).exists()).await;
        job
    }

    /// Copies a job's token into its workspace, as if a command had been faster than the orchestrator.
    fn copy_token(&self, job: JobId) {
        let (id, workspace) = (job.to_string(), self.workspace(job));
        let copied = tokio::task::block_in_place(|| self.copier.copy_to(&id, &workspace));
        copied.expect("the token is in the run directory when the container starts");
    }

    /// Runs the victim's jobs during an attack of this duration, then waits for the hostile jobs to end.
    pub(crate) async fn measure(&self, watch: Measurement, seconds: u64, attackers: Attackers<'_>) -> Verdict {
        let Attackers { jobs: hostile, flood } = attackers;
        let (mut during_attack, mut failed) = (vec![], vec![]);
        let until = Instant::now() + Duration::from_secs(seconds);
        while Instant::now() < until || during_attack.is_empty() && failed.is_empty() {
            match self.victims_job().await {
                Ok(taken) => during_attack.push(taken),
                Err(failure) => failed.push(failure),
            }
        }
        let mut reports = vec![];
        if let Some(flood) = flood {
            reports.push(format!("{:?}", tokio::task::block_in_place(|| flood.end())));
        }
        let mut unexpected_ends = vec![];
        for (job, ends) in hostile {
            match self.end_of(*job).await {
                Ok((ended, events)) => {
                    reports.extend(output_of(&events));
                    unexpected_ends.extend(unexpected_end(&ended, &events, *ends));
                }
                Err(failure) => unexpected_ends.push(failure),
            }
        }
        let readings = watch.vitals.end();
        let log_growth_bytes = self.stack.output_bytes() - watch.log_before_bytes;
        let mut after = vec![];
        for _ in 0..BASELINE_JOBS {
            match self.victims_job().await {
                Ok(taken) => after.push(taken),
                Err(failure) => failed.push(failure),
            }
        }
        Verdict {
            attack: watch.attack,
            reports,
            baseline: [self.baseline.clone(), after],
            during_attack,
            failed,
            readings,
            log_growth_bytes,
            unexpected_ends,
        }
    }

    /// Runs a victim's job and returns its duration, or why it did not complete.
    async fn victims_job(&self) -> Result<Duration, String> {
        let asked = Instant::now();
        let request = self.victim.request(Method::POST, "/api/jobs").json(&json!({"prompt": "run: true"}));
        let created: Job = answer(request).await.map_err(|error| format!("the job was not created: {error}"))?;
        let ended = wait_for_end(&self.victim, created.id, VICTIM_TIMEOUT).await?;
        match ended.state {
            JobState::Completed if ended.attempt == 1 => Ok(asked.elapsed()),
            state => Err(format!("{} is {state} ({:?}, attempt {})", ended.id, ended.reason, ended.attempt)),
        }
    }

    /// Waits for a hostile job to end and returns it with its events. A job that does not end is cancelled.
    async fn end_of(&self, job: JobId) -> Result<(Job, Vec<Event>), String> {
        let ended = match wait_for_end(&self.mallory, job, END_TIMEOUT).await {
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
        tokio::time::sleep(POLL_INTERVAL).await;
    }
    Err(format!("{job} has not ended within {patience:?}: {last}"))
}

/// A response or an error: an attacked server may not respond.
async fn answer<T: serde::de::DeserializeOwned>(request: reqwest::RequestBuilder) -> Result<T, String> {
    let response = request.timeout(Duration::from_secs(10)).send().await.map_err(|error| format!("{error:?}"))?;
    let status = response.status();
    let body = response.bytes().await.map_err(|error| format!("{error:?}"))?;
    if !status.is_success() {
        return Err(format!("{status}: {}", String::from_utf8_lossy(&body)));
    }
    serde_json::from_slice(&body).map_err(|error| error.to_string())
}

/// The problem with the end of a hostile job, if any: only the job itself may suffer, and only as expected.
fn unexpected_end(job: &Job, events: &[Event], ends: ExpectedEnd) -> Option<String> {
    let stuck = events.iter().any(|event| matches!(event.data, EventData::State { to: JobState::Stuck, .. }));
    let completed = (job.state, job.reason) == (JobState::Completed, None);
    let evicted = (job.state, job.reason) == (JobState::Failed, Some(JobReason::DiskLimit));
    let as_expected = match ends {
        ExpectedEnd::Completed => completed,
        ExpectedEnd::DiskLimit => evicted,
        ExpectedEnd::CompletedOrDiskLimit => completed || evicted,
    };
    let holds = as_expected && job.attempt == 1 && !stuck;
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

/// The output of a job's commands.
pub(crate) fn output_of(events: &[Event]) -> Vec<String> {
    let output = |event: &Event| match &event.data {
        EventData::ToolResult { output, .. } => Some(output.chars().take(2_000).collect()),
        _ => None,
    };
    events.iter().filter_map(output).collect()
}
