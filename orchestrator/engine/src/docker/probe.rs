//! The readiness probe: a temporary container of the job image is created, compared with its posture, started, and its
//! worker called over its socket.
//!
//! Owns what a probe creates and removes it, also after a probe that was interrupted. Never reports ready without
//! having tried.

use std::{
    collections::{BTreeMap, HashSet},
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
use crate::{
    ContainerRole, ContainerSpec, ContainerStatus, EngineError, EngineFacts, ReadinessReason, Resources,
    SandboxReadiness,
};

/// Timeout of the worker's round trip to its socket.
const ROUND_TRIP_TIMEOUT: Duration = Duration::from_secs(30);
/// Bytes of the container's output in the detail.
const MAX_OUTPUT_BYTES: usize = 600;
/// Longest path of a Unix socket (unix(7): 108 bytes with the final NUL).
const MAX_SOCKET_PATH_BYTES: usize = 107;

/// Results of earlier probes of this process, which are not checked again.
#[derive(Debug, Default)]
pub(super) struct ProbeCache {
    /// The facts of the last probe if it passed.
    passed: Option<EngineFacts>,
    /// Images, by id and runtime, whose worker made the round trip.
    round_trips: HashSet<(String, String)>,
}

/// Why the sandbox is not ready, and how to fix it.
struct NotReady {
    reason: ReadinessReason,
    detail: String,
}

impl Docker {
    /// Runs the probe. Only one runs at a time.
    pub(super) async fn run_probe(&self) -> SandboxReadiness {
        let mut cache = self.probe_cache.lock().await;
        if self.take_probe_stale() {
            cache.passed = None;
        }
        match self.check_readiness(&mut cache).await {
            Ok(facts) => {
                cache.passed = Some(facts.clone());
                SandboxReadiness::Ready(facts)
            }
            Err(NotReady { reason, detail }) => {
                cache.passed = None;
                SandboxReadiness::NotReady { reason, detail }
            }
        }
    }

    async fn check_readiness(&self, cache: &mut ProbeCache) -> Result<EngineFacts, NotReady> {
        let survey = self.survey().await.map_err(|error| self.survey_failed(&error))?;
        if let Some(facts) = &cache.passed
            && *facts == (EngineFacts { posture: facts.posture.clone(), ..survey.facts.clone() })
        {
            return Ok(facts.clone());
        }
        if !survey.image.volumes.is_empty() {
            return Err(unsupported(format!(
                "image {} declares volumes ({}), which would be mounted in every job; build it without VOLUME",
                self.settings.image,
                survey.image.volumes.join(", ")
            )));
        }
        self.remove_leftovers().await.map_err(|error| self.probe_failed(&error))?;
        let image = (survey.facts.image_id.clone(), survey.facts.runtime.clone());
        let posture = self.try_container(&survey, !cache.round_trips.contains(&image)).await?;
        cache.round_trips.insert(image);
        Ok(EngineFacts { posture, ..survey.facts })
    }

    /// Creates a temporary container and its socket, waits for its worker's call if `round_trip` is set, and removes
    /// both in any case.
    async fn try_container(&self, survey: &Survey, round_trip: bool) -> Result<String, NotReady> {
        let job_id = JobId::generate();
        let name = ContainerName::Probe { id: job_id }.to_string();
        let root = self.settings.run_dir.join(&name);
        let (dirs, listener) = ProbeDirs::create(&root).await.map_err(|error| dirs_failed(&error))?;
        let spec = self.probe_spec(name, job_id, survey.now, &dirs);
        let posture = tokio::select! {
            posture = self.check_posture(&spec, round_trip) => posture,
            error = serve_health(listener) => Err(dirs_failed(&error)),
        };
        let container_removed = self.remove_container(&spec.name).await;
        let dirs_removed = fs::remove_dir_all(&dirs.root).await;
        let posture = posture?;
        container_removed.map_err(|error| self.probe_failed(&error))?;
        dirs_removed.map_err(|error| dirs_failed(&error))?;
        Ok(posture)
    }

    fn probe_spec(&self, name: String, job_id: JobId, now: DateTime<Utc>, dirs: &ProbeDirs) -> ContainerSpec {
        ContainerSpec {
            name,
            job_id,
            attempt: 0,
            owner: "gantry".to_owned(),
            created_at: now,
            role: ContainerRole::Probe,
            image: self.settings.image.clone(),
            resources: Resources { memory_mb: 256, cpus: 1.0, pids: 64, disk_mb: 16 },
            run_dir: dirs.run.clone(),
            workspace: dirs.workspace.clone(),
            traceparent: None,
            hosts: BTreeMap::new(),
        }
    }

    async fn check_posture(&self, spec: &ContainerSpec, round_trip: bool) -> Result<String, NotReady> {
        if round_trip {
            return self.round_trip(spec).await;
        }
        self.create_and_check(spec).await.map_err(|error| self.probe_failed(&error))
    }

    /// Starts the container and waits for its exit code. Returns the posture's digest if the worker reached its socket.
    async fn round_trip(&self, spec: &ContainerSpec) -> Result<String, NotReady> {
        let id = self.create_and_start(spec).await.map_err(|error| self.probe_failed(&error))?;
        let exit = self.wait_for_exit(&id, ROUND_TRIP_TIMEOUT).await.map_err(|error| self.probe_failed(&error))?;
        if let Some(ContainerStatus::Exited { code: 0, .. }) = exit {
            return self.posture_digest(spec).await.map_err(|error| self.probe_failed(&error));
        }
        let output = self.output(&spec.name, MAX_OUTPUT_BYTES).await.unwrap_or_default();
        let outcome = match exit {
            Some(ContainerStatus::Exited { code, .. }) => format!("ended with code {code}"),
            Some(ContainerStatus::Created | ContainerStatus::Running | ContainerStatus::Unknown) | None => {
                format!("had not ended after {} s", ROUND_TRIP_TIMEOUT.as_secs())
            }
        };
        Err(unsupported(format!(
            "the worker of image {} did not reach its socket: `gantry-worker probe` {outcome}; rebuild the image \
             with this version's worker, and check that the engine can mount a Unix socket. Its output: {}",
            spec.image,
            if output.trim().is_empty() { "none" } else { output.trim() }
        )))
    }

    /// Removes what an interrupted probe left: containers by their label, directories by their name.
    async fn remove_leftovers(&self) -> Result<(), EngineError> {
        let role = format!("{}={}", spec::LABEL_ROLE, spec::role_label(ContainerRole::Probe));
        for container in self.list_containers(&[self.instance_label(), role]).await? {
            self.remove_container(&container.name).await?;
        }
        let Ok(mut entries) = fs::read_dir(&self.settings.run_dir).await else { return Ok(()) };
        while let Ok(Some(entry)) = entries.next_entry().await {
            if entry.file_name().to_str().is_some_and(ContainerName::has_probe_prefix)
                && let Err(error) = fs::remove_dir_all(entry.path()).await
            {
                tracing::warn!(%error, directory = %entry.path().display(), "cannot remove the directory of an earlier probe");
            }
        }
        Ok(())
    }

    /// Maps an error of the quick checks.
    fn survey_failed(&self, error: &EngineError) -> NotReady {
        match error {
            EngineError::Other(message) => NotReady {
                reason: ReadinessReason::EngineUnreachable,
                detail: format!("the engine failed: {message}; see its log"),
            },
            other => self.probe_failed(other),
        }
    }

    /// Maps an error of the temporary container.
    fn probe_failed(&self, error: &EngineError) -> NotReady {
        let (reason, advice) = match error {
            EngineError::Unreachable(_) => {
                (ReadinessReason::EngineUnreachable, "start it, or set DOCKER_HOST to its address".to_owned())
            }
            EngineError::ImageMissing(name) => {
                (ReadinessReason::ImageMissing, format!("build or pull {name} on the engine's host"))
            }
            EngineError::RuntimeMissing(name) => {
                (ReadinessReason::RuntimeMissing, format!("install {name} and add it to the engine's daemon.json"))
            }
            EngineError::PostureMismatch { field, .. } => (
                ReadinessReason::PostureUnsupported,
                format!("change the image or the engine so that {field} is as required"),
            ),
            EngineError::Refused(_) | EngineError::Other(_) => (
                ReadinessReason::PostureUnsupported,
                format!(
                    "check that {} has /usr/local/bin/gantry-worker, and see the engine's log",
                    self.settings.image
                ),
            ),
        };
        NotReady { reason, detail: format!("{error}; {advice}") }
    }
}

fn unsupported(detail: String) -> NotReady {
    NotReady { reason: ReadinessReason::PostureUnsupported, detail }
}

fn dirs_failed(error: &io::Error) -> NotReady {
    unsupported(format!(
        "the probe's directory cannot be used: {error}; check that GANTRY_RUN_DIR is short and writable"
    ))
}

/// The run directory and workspace of the temporary container.
struct ProbeDirs {
    root: PathBuf,
    run: PathBuf,
    workspace: PathBuf,
}

impl ProbeDirs {
    async fn create(root: &Path) -> io::Result<(Self, UnixListener)> {
        let (run, workspace) = (root.join("run"), root.join("workspace"));
        let socket = run.join("worker.sock");
        if socket.as_os_str().len() > MAX_SOCKET_PATH_BYTES {
            return Err(io::Error::new(
                io::ErrorKind::InvalidInput,
                format!("the socket's path is longer than {MAX_SOCKET_PATH_BYTES} bytes"),
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

    /// The modes let the sandbox's user in; the directory above does not let others of the host in.
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

/// Serves `GET /health` until it is dropped.
async fn serve_health(listener: UnixListener) -> io::Error {
    let app = Router::new().route("/health", get(|| async { "ok" }));
    match axum::serve(listener, app).await {
        Ok(()) => io::Error::other("the probe's socket was closed"),
        Err(error) => error,
    }
}
