//! Access to the engine through the `docker` command: baseline containers, and the time when a container was destroyed.
//!
//! Owns the flags that give a baseline container a job's posture. Never touches a job's container, except those that a
//! stack left behind.

use std::{
    collections::HashMap,
    path::{Path, PathBuf},
    process::Stdio,
    time::Duration,
};

use chrono::{DateTime, Utc};
use serde::Deserialize;
use tokio::{
    io::{AsyncBufReadExt, AsyncWriteExt as _, BufReader, Lines},
    process::{Child, ChildStdout, Command},
    time::timeout,
};

use crate::Failure;

const SECCOMP_PROFILE: &str = include_str!("../../../docker/seccomp.json");
const SECCOMP_FILE: &str = "seccomp.json";
/// The job image with a `gantry-worker` that only sleeps.
pub(crate) const IDLE_IMAGE: &str = "gantry-bench-idle:latest";
const DESTROY_TIMEOUT: Duration = Duration::from_mins(1);

/// Flags for a job's posture with default limits, without the two mounts.
const POSTURE: [&str; 27] = [
    "--network=none",
    "--read-only",
    "--cap-drop=ALL",
    "--security-opt=no-new-privileges",
    "--user=10001:10001",
    "--tmpfs=/tmp:rw,noexec,nosuid,nodev,size=64m",
    "--tmpfs=/home/agent:rw,exec,nosuid,nodev,size=256m,uid=10001,gid=10001,mode=0700",
    "--memory=2048m",
    "--memory-swap=2048m",
    "--cpus=1",
    "--pids-limit=256",
    "--ulimit=core=0",
    "--ulimit=fsize=1073741824",
    "--ulimit=msgqueue=0:0",
    "--ulimit=nofile=4096:4096",
    "--ulimit=sigpending=1024:1024",
    "--dns=127.0.0.1",
    "--dns-search=.",
    "--sysctl=net.ipv4.tcp_rmem=4096 16384 65536",
    "--sysctl=net.ipv4.tcp_wmem=4096 16384 65536",
    "--shm-size=64m",
    "--ipc=private",
    "--cgroupns=private",
    "--restart=no",
    "--log-driver=json-file",
    "--log-opt=max-file=1",
    "--log-opt=max-size=10m",
];

/// Factory for `docker run` commands in a job's posture.
pub(crate) struct BaselineContainers {
    /// Contains the seccomp profile and the two directories to mount.
    directory: PathBuf,
    label: String,
    image: String,
}

impl BaselineContainers {
    /// Containers of `image`, with their files in `directory`, and a label by which leftovers are found.
    pub(crate) fn new(directory: &Path, label: String, image: String) -> Result<Self, Failure> {
        std::fs::write(directory.join(SECCOMP_FILE), SECCOMP_PROFILE)?;
        std::fs::create_dir_all(directory.join("plain-run"))?;
        std::fs::create_dir_all(directory.join("plain-workspace"))?;
        Ok(Self { directory: directory.to_owned(), label, image })
    }

    /// The image.
    pub(crate) fn image(&self) -> &str {
        &self.image
    }

    /// `docker run` in this posture with an empty run directory. The caller adds image and command.
    pub(crate) fn run(&self) -> Command {
        self.run_with(&self.directory.join("plain-run"))
    }

    /// `docker run` in this posture, with `run_directory` mounted as a job's run directory.
    pub(crate) fn run_with(&self, run_directory: &Path) -> Command {
        let mut command = docker();
        command.arg("run").args(POSTURE).arg(format!("--label={}", self.label));
        command.arg(format!("--security-opt=seccomp={}", self.directory.join(SECCOMP_FILE).display()));
        command.arg(mount(run_directory, "/run/gantry,readonly"));
        command.arg(mount(&self.directory.join("plain-workspace"), "/workspace"));
        command
    }
}

/// A bind mount of `source`; `target` may carry options.
pub(crate) fn mount(source: &Path, target: &str) -> String {
    format!("--mount=type=bind,source={},target={target}", source.display())
}

/// A `docker` command: killed with its owner, but not by an interrupt from the terminal, since cleaning up needs it.
pub(crate) fn docker() -> Command {
    let mut command = Command::new("docker");
    command.stdin(Stdio::null()).stderr(Stdio::piped()).kill_on_drop(true).process_group(0);
    command
}

/// Fails unless an engine responds and has the job image.
pub(crate) async fn require_image(image: &str) -> Result<(), Failure> {
    let mut command = docker();
    command.args(["image", "inspect", "--format={{.Id}}", image]);
    let found = output(command).await.map(drop);
    found.map_err(|error| {
        format!(
            "needs a container engine with the image {image} (docker/engine.sh starts an engine, tests/run.sh --only images \
             builds gantry-worker:test): {error}"
        )
        .into()
    })
}

/// Builds [`IDLE_IMAGE`] on top of `image`, and returns its name. Building it again takes it from the engine's cache.
pub(crate) async fn build_idle_image(image: &str) -> Result<&'static str, Failure> {
    let file = format!(
        "FROM {image}\nUSER root\nRUN printf '#!/bin/sh\\nexec sleep 86400\\n' > /tmp/worker && chmod 0755 /tmp/worker \
         && mv /tmp/worker /usr/local/bin/gantry-worker\nUSER 10001:10001\n"
    );
    let mut command = docker();
    command.args(["build", "--quiet", "--network=none", "--tag", IDLE_IMAGE, "-"]).stdin(Stdio::piped());
    let mut build = command.stdout(Stdio::piped()).spawn()?;
    let mut stdin = build.stdin.take().ok_or("docker build has no standard input")?;
    stdin.write_all(file.as_bytes()).await?;
    drop(stdin);
    let output = build.wait_with_output().await?;
    if output.status.success() {
        return Ok(IDLE_IMAGE);
    }
    Err(format!("docker build failed: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// Runs a command to its end and returns its output; standard error becomes the failure.
pub(crate) async fn output(mut command: Command) -> Result<String, Failure> {
    let output = command.output().await?;
    if output.status.success() {
        return Ok(String::from_utf8(output.stdout)?.trim().to_owned());
    }
    Err(format!("docker failed: {}", String::from_utf8_lossy(&output.stderr).trim()).into())
}

/// Removes a container, running or not.
pub(crate) async fn remove(name: &str) -> Result<(), Failure> {
    let mut command = docker();
    command.args(["rm", "--force", name]);
    output(command).await.map(drop)
}

/// Removes the containers with this label and value, running or not.
pub(crate) async fn remove_with_label(label: &str) -> Result<(), Failure> {
    let removed = async {
        loop {
            let mut list = docker();
            list.args(["ps", "--all", "--quiet", &format!("--filter=label={label}")]);
            let left = output(list).await?;
            if left.is_empty() {
                return Ok(());
            }
            let mut command = docker();
            command.args(["rm", "--force"]).args(left.lines());
            // It fails if the engine is removing one already; what is left shows in the next list.
            let _ = output(command).await;
        }
    };
    timeout(DESTROY_TIMEOUT, removed)
        .await
        .map_err(|_| format!("the containers with label {label} could not be removed"))?
}

/// Host process ids of the processes named `name` in a container.
pub(crate) async fn processes(container: &str, name: &str) -> Result<Vec<u32>, Failure> {
    let mut command = docker();
    command.args(["top", container, "-eo", "pid,comm"]);
    let table = output(command).await?;
    let rows = table.lines().skip(1).filter_map(|line| line.trim().split_once(char::is_whitespace));
    let found: Vec<u32> =
        rows.filter(|(_, comm)| comm.trim() == name).filter_map(|(pid, _)| pid.parse().ok()).collect();
    if found.is_empty() { Err(format!("{container} has no process {name}").into()) } else { Ok(found) }
}

/// The engine's destroy events.
pub(crate) struct DestroyEvents {
    lines: Lines<BufReader<ChildStdout>>,
    seen: HashMap<String, DateTime<Utc>>,
    // Killed on drop.
    _events: Child,
}

#[derive(Deserialize)]
struct EngineEvent {
    #[serde(rename = "Actor")]
    actor: Actor,
    #[serde(rename = "timeNano")]
    time_nanoseconds: i64,
}

#[derive(Deserialize)]
struct Actor {
    #[serde(rename = "Attributes")]
    attributes: Attributes,
}

#[derive(Deserialize)]
struct Attributes {
    name: String,
}

impl DestroyEvents {
    /// Subscribes from the engine's current time, so that nothing is missed while the subscription is being made.
    pub(crate) async fn watch() -> Result<Self, Failure> {
        let mut command = docker();
        command.args(["info", "--format={{.SystemTime}}"]);
        let now = output(command).await?;
        let mut command = docker();
        command.args(["events", "--filter=type=container", "--filter=event=destroy", "--format={{json .}}"]);
        command.arg(format!("--since={now}")).stdout(Stdio::piped()).stderr(Stdio::null());
        let mut events = command.spawn()?;
        let stdout = events.stdout.take().ok_or("the engine's events cannot be read")?;
        Ok(Self { lines: BufReader::new(stdout).lines(), seen: HashMap::new(), _events: events })
    }

    /// Waits until the container is destroyed and returns the engine's time of it.
    pub(crate) async fn wait_for(&mut self, container: &str) -> Result<DateTime<Utc>, Failure> {
        let found = timeout(DESTROY_TIMEOUT, self.read_until(container)).await;
        found.map_err(|_| format!("{container} was not gone within {} s", DESTROY_TIMEOUT.as_secs()))?
    }

    async fn read_until(&mut self, container: &str) -> Result<DateTime<Utc>, Failure> {
        loop {
            if let Some(at) = self.seen.remove(container) {
                return Ok(at);
            }
            let line = self.lines.next_line().await?.ok_or("the engine's events ended")?;
            let event: EngineEvent = serde_json::from_str(&line)?;
            let at = DateTime::from_timestamp_nanos(event.time_nanoseconds);
            self.seen.insert(event.actor.attributes.name, at);
        }
    }
}
