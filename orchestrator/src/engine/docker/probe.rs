//! Readiness, from the real thing: a throw-away container of the job image, made, compared, started, and heard from over
//! its socket.
//!
//! Owns what the probe makes and cleans it up, also what an earlier one left. Never says ready for what was not tried.

use std::{
    collections::HashSet,
    io,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    time::Duration,
};

use axum::{Router, routing::get};
use chrono::{DateTime, Utc};
use protocol::{ContainerName, JobId};
use tokio::{fs, net::UnixListener};

use super::{Docker, spec, survey::Survey};
use crate::engine::{
    ContainerRole, ContainerSpec, ContainerStatus, EngineError, EngineFacts, ReadinessReason, Resources,
    SandboxReadiness,
};

/// A container that has said nothing by then will not.
const ROUND_TRIP_LIMIT: Duration = Duration::from_secs(30);
/// What of its output goes into the detail.
const OUTPUT_MAX_BYTES: usize = 600;
/// The longest path of a Unix socket.
const SOCKET_PATH_MAX_BYTES: usize = 107;

/// What earlier probes of this process found, and need not find again.
#[derive(Debug, Default)]
pub(super) struct ProbeMemory {
    /// What the last probe that went well was about.
    passed: Option<EngineFacts>,
    /// Images, by id and runtime, whose worker got through to its socket.
    heard: HashSet<(String, String)>,
}

/// Why not, with what to do.
struct Unready {
    reason: ReadinessReason,
    detail: String,
}

impl Docker {
    /// The whole probe, one at a time.
    pub(super) async fn probe_all(&self) -> SandboxReadiness {
        let mut memory = self.probed.lock().await;
        if self.take_probe_stale() {
            memory.passed = None;
        }
        match self.probe_unless(&mut memory).await {
            Ok(facts) => {
                memory.passed = Some(facts.clone());
                SandboxReadiness::Ready(facts)
            }
            Err(Unready { reason, detail }) => {
                memory.passed = None;
                SandboxReadiness::NotReady { reason, detail }
            }
        }
    }

    async fn probe_unless(&self, memory: &mut ProbeMemory) -> Result<EngineFacts, Unready> {
        let survey = self.survey().await.map_err(|error| self.not_found(&error))?;
        if let Some(facts) = &memory.passed
            && *facts == (EngineFacts { posture: facts.posture.clone(), ..survey.facts.clone() })
        {
            return Ok(facts.clone());
        }
        if !survey.image.volumes.is_empty() {
            return Err(unsupported(format!(
                "image {} declares volumes ({}), each a mount that nobody chose; build it without VOLUME",
                self.settings.image,
                survey.image.volumes.join(", ")
            )));
        }
        self.remove_leftovers().await.map_err(|error| self.not_passed(&error))?;
        let subject = (survey.facts.image_id.clone(), survey.facts.runtime.clone());
        let posture = self.try_container(&survey, !memory.heard.contains(&subject)).await?;
        memory.heard.insert(subject);
        Ok(EngineFacts { posture, ..survey.facts })
    }

    /// Makes a throw-away container and its socket, with `round_trip` hears from its worker, and clears both away whatever
    /// came of it.
    async fn try_container(&self, survey: &Survey, round_trip: bool) -> Result<String, Unready> {
        let job_id = JobId::generate();
        let name = ContainerName::Probe { id: job_id }.to_string();
        let root = self.settings.run_dir.join(&name);
        let (folders, listener) = Folders::make(&root).await.map_err(|error| folder_trouble(&error))?;
        let spec = self.probe_spec(name, job_id, survey.now, &folders);
        let heard = tokio::select! {
            heard = self.posture_of(&spec, round_trip) => heard,
            error = answer_health(listener) => Err(folder_trouble(&error)),
        };
        let cleared = self.clear(&spec.name).await;
        let removed = fs::remove_dir_all(&folders.root).await;
        let posture = heard?;
        cleared.map_err(|error| self.not_passed(&error))?;
        removed.map_err(|error| folder_trouble(&error))?;
        Ok(posture)
    }

    fn probe_spec(&self, name: String, job_id: JobId, now: DateTime<Utc>, folders: &Folders) -> ContainerSpec {
        ContainerSpec {
            name,
            job_id,
            attempt: 0,
            owner: "gantry".to_owned(),
            created_at: now,
            role: ContainerRole::Probe,
            image: self.settings.image.clone(),
            resources: Resources { memory_mb: 256, cpus: 1.0, pids: 64, disk_mb: 16 },
            run_folder: folders.run.clone(),
            workspace: folders.workspace.clone(),
            traceparent: None,
        }
    }

    async fn posture_of(&self, spec: &ContainerSpec, round_trip: bool) -> Result<String, Unready> {
        if round_trip {
            return self.hear_from(spec).await;
        }
        self.make_only(spec).await.map_err(|error| self.not_passed(&error))
    }

    /// Starts it and waits for its exit code; the posture's digest when the worker was heard.
    async fn hear_from(&self, spec: &ContainerSpec) -> Result<String, Unready> {
        let id = self.start(spec).await.map_err(|error| self.not_passed(&error))?;
        let exit = self.exit_of(&id, ROUND_TRIP_LIMIT).await.map_err(|error| self.not_passed(&error))?;
        if let Some(ContainerStatus::Exited { code: 0, .. }) = exit {
            return self.digest_of(spec).await.map_err(|error| self.not_passed(&error));
        }
        let output = self.printed(&spec.name, OUTPUT_MAX_BYTES).await.unwrap_or_default();
        let end = match exit {
            Some(ContainerStatus::Exited { code, .. }) => format!("ended with code {code}"),
            Some(ContainerStatus::Created | ContainerStatus::Running | ContainerStatus::Unknown) | None => {
                format!("had not ended after {} s", ROUND_TRIP_LIMIT.as_secs())
            }
        };
        Err(unsupported(format!(
            "the worker of image {} did not get through to its socket: `gantry-worker probe` {end}; rebuild the image \
             with this version's worker, and see that the engine can bind a Unix socket. It printed: {}",
            spec.image,
            if output.trim().is_empty() { "nothing" } else { output.trim() }
        )))
    }

    /// What a probe that was cut off has left: containers by their label, folders by their name.
    async fn remove_leftovers(&self) -> Result<(), EngineError> {
        let role = format!("{}={}", spec::LABEL_ROLE, spec::role_word(ContainerRole::Probe));
        for container in self.all(&[self.instance_label(), role]).await? {
            self.clear(&container.name).await?;
        }
        let Ok(mut entries) = fs::read_dir(&self.settings.run_dir).await else { return Ok(()) };
        while let Ok(Some(entry)) = entries.next_entry().await {
            if entry.file_name().to_str().is_some_and(ContainerName::has_probe_prefix)
                && let Err(error) = fs::remove_dir_all(entry.path()).await
            {
                tracing::warn!(%error, folder = %entry.path().display(), "a folder of an old probe stays");
            }
        }
        Ok(())
    }

    /// An error of the quick look.
    fn not_found(&self, error: &EngineError) -> Unready {
        match error {
            EngineError::Other(message) => Unready {
                reason: ReadinessReason::EngineUnreachable,
                detail: format!("the engine fails: {message}; see its log"),
            },
            other => self.not_passed(other),
        }
    }

    /// An error of the throw-away container.
    fn not_passed(&self, error: &EngineError) -> Unready {
        let (reason, advice) = match error {
            EngineError::Unreachable(_) => {
                (ReadinessReason::EngineUnreachable, "start it, or set DOCKER_HOST to where it listens".to_owned())
            }
            EngineError::ImageMissing(name) => {
                (ReadinessReason::ImageMissing, format!("build or pull {name} on the engine's machine"))
            }
            EngineError::RuntimeMissing(name) => {
                (ReadinessReason::RuntimeMissing, format!("install {name} and name it in the engine's daemon.json"))
            }
            EngineError::PostureMismatch { field, .. } => (
                ReadinessReason::PostureUnsupported,
                format!("change the image or the engine so that {field} is as wanted"),
            ),
            EngineError::Refused(_) | EngineError::Other(_) => (
                ReadinessReason::PostureUnsupported,
                format!("see that {} has /usr/local/bin/gantry-worker, and the engine's log", self.settings.image),
            ),
        };
        Unready { reason, detail: format!("{error}; {advice}") }
    }
}

fn unsupported(detail: String) -> Unready {
    Unready { reason: ReadinessReason::PostureUnsupported, detail }
}

fn folder_trouble(error: &io::Error) -> Unready {
    unsupported(format!("the probe's folder cannot be used: {error}; see that GANTRY_RUN_DIR is short and writable"))
}

/// The probe's own run folder and workspace, in one folder under the run directory.
struct Folders {
    root: PathBuf,
    run: PathBuf,
    workspace: PathBuf,
}

impl Folders {
    async fn make(root: &Path) -> io::Result<(Self, UnixListener)> {
        let (run, workspace) = (root.join("run"), root.join("workspace"));
        let socket = run.join("worker.sock");
        if socket.as_os_str().len() > SOCKET_PATH_MAX_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the socket's path is over {SOCKET_PATH_MAX_BYTES} bytes"),
            ));
        }
        fs::DirBuilder::new().recursive(true).mode(0o700).create(root).await?;
        let listener = Self::fill(&run, &workspace, &socket).await;
        match listener {
            Ok(listener) => Ok((Self { root: root.to_owned(), run, workspace }, listener)),
            Err(error) => {
                fs::remove_dir_all(root).await?;
                Err(error)
            }
        }
    }

    /// What is mounted is what may be read: the rights are open, the folder above them is not.
    async fn fill(run: &Path, workspace: &Path, socket: &Path) -> io::Result<UnixListener> {
        let token = run.join("token");
        fs::create_dir(run).await?;
        fs::create_dir(workspace).await?;
        fs::write(&token, "probe").await?;
        let listener = UnixListener::bind(socket)?;
        for (path, mode) in [(run, 0o755), (workspace, 0o777), (token.as_path(), 0o444), (socket, 0o666)] {
            fs::set_permissions(path, std::fs::Permissions::from_mode(mode)).await?;
        }
        Ok(listener)
    }
}

/// Answers `GET /health` until it is dropped.
async fn answer_health(listener: UnixListener) -> io::Error {
    let app = Router::new().route("/health", get(|| async { "ok" }));
    match axum::serve(listener, app).await {
        Ok(()) => io::Error::other("the probe's socket closed"),
        Err(error) => error,
    }
}
