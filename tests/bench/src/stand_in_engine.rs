//! A container engine without containers, for jobs whose workers are simulated: it answers the calls of Docker's API
//! that Gantry makes, from memory. A container runs from its start until it is killed or removed; one of a probe ends
//! at once.
//!
//! Owns its socket and what it was told to create. Never starts a process, and never measures.

use std::{
    collections::{BTreeMap, HashMap},
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering},
    },
};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    extract::{Query, State},
    http::{Method, StatusCode, Uri},
    response::{IntoResponse, Response},
};
use chrono::SecondsFormat;
use serde_json::{Value, json};
use tempfile::TempDir;
use tokio::{net::UnixListener, sync::Notify, task::JoinSet};

use crate::{Failure, clock};

const IMAGE_ID: &str = "sha256:0000000000000000000000000000000000000000000000000000000000000001";
const ROLE_LABEL: &str = "gantry.role";

/// The engine. It stops when it is dropped.
pub(crate) struct StandInEngine {
    address: String,
    _directory: TempDir,
    _server: JoinSet<()>,
}

#[derive(Default)]
struct Engine {
    containers: Mutex<BTreeMap<String, Container>>,
    /// Number of the next container.
    created: AtomicU64,
    changed: Notify,
}

struct Container {
    name: String,
    /// The request that created it.
    request: Value,
    status: &'static str,
    exit_code: i64,
}

impl StandInEngine {
    /// Starts one.
    pub(crate) fn start() -> Result<Self, Failure> {
        let directory = tempfile::Builder::new().prefix("gantry-bench-engine-").tempdir_in("/tmp")?;
        let socket = directory.path().join("engine.sock");
        let listener = UnixListener::bind(&socket)?;
        let router = Router::new().fallback(answer).with_state(Arc::new(Engine::default()));
        let mut server = JoinSet::new();
        server.spawn(async move {
            // It serves until it is dropped; a failure shows in every call.
            let _ = axum::serve(listener, router).await;
        });
        Ok(Self { address: format!("unix://{}", socket.display()), _directory: directory, _server: server })
    }

    /// Its address, for the server's settings.
    pub(crate) fn address(&self) -> &str {
        &self.address
    }
}

async fn answer(
    State(engine): State<Arc<Engine>>,
    method: Method,
    uri: Uri,
    Query(query): Query<HashMap<String, String>>,
    body: Bytes,
) -> Response {
    // Paths begin with a version.
    let path: Vec<&str> = uri.path().split('/').filter(|part| !part.is_empty() && !part.starts_with("v1.")).collect();
    match (method.as_str(), path.as_slice()) {
        (_, ["_ping"]) => "OK".into_response(),
        (_, ["version"]) => Json(json!({"Version": "0", "ApiVersion": "1.41"})).into_response(),
        (_, ["info"]) => {
            let now = clock::wall().to_rfc3339_opts(SecondsFormat::Nanos, true);
            let runtimes = json!({"runc": {"path": "runc"}});
            Json(json!({"Name": "stand-in", "DefaultRuntime": "runc", "Runtimes": runtimes, "CgroupVersion": "2", "SystemTime": now}))
                .into_response()
        }
        (_, ["images", .., "json"]) => Json(json!({"Id": IMAGE_ID, "Config": {"Env": []}})).into_response(),
        // Nothing changes that the next list does not show.
        (_, ["events"]) => Body::from_stream(futures_util::stream::pending::<Result<Bytes, Failure>>()).into_response(),
        (_, ["containers", "json"]) => Json(engine.list(query.get("filters"))).into_response(),
        (_, ["containers", "create"]) => engine.create(query.get("name"), &body),
        (_, ["containers", id, "wait"]) => engine.wait(id).await,
        (method, ["containers", id, rest @ ..]) => engine.change(method, id, rest),
        _ => problem(StatusCode::NOT_FOUND, "unknown call"),
    }
}

fn problem(status: StatusCode, message: &str) -> Response {
    (status, Json(json!({"message": message}))).into_response()
}

impl Engine {
    fn containers(&self) -> MutexGuard<'_, BTreeMap<String, Container>> {
        self.containers.lock().unwrap_or_else(PoisonError::into_inner)
    }

    fn create(&self, name: Option<&String>, body: &Bytes) -> Response {
        let (Some(name), Ok(request)) = (name, serde_json::from_slice(body)) else {
            return problem(StatusCode::BAD_REQUEST, "no name or an invalid body");
        };
        let mut containers = self.containers();
        if containers.values().any(|container| container.name == *name) {
            return problem(StatusCode::CONFLICT, "the name is in use");
        }
        let id = format!("{:064x}", self.created.fetch_add(1, Ordering::Relaxed));
        containers.insert(id.clone(), Container { name: name.clone(), request, status: "created", exit_code: 0 });
        (StatusCode::CREATED, Json(json!({"Id": id, "Warnings": []}))).into_response()
    }

    /// The containers with the labels of a filter.
    fn list(&self, filters: Option<&String>) -> Value {
        let filters: Value = filters.and_then(|text| serde_json::from_str(text).ok()).unwrap_or_default();
        let labels: Vec<&str> = filters["label"].as_array().into_iter().flatten().filter_map(Value::as_str).collect();
        let has = |container: &Container, label: &str| {
            label.split_once('=').is_some_and(|(name, value)| container.request["Labels"][name] == value)
        };
        let containers = self.containers();
        let listed = containers.iter().filter(|(_, container)| labels.iter().all(|label| has(container, label)));
        let listed = listed.map(|(id, container)| {
            let (name, labels) = (format!("/{}", container.name), &container.request["Labels"]);
            json!({"Id": id, "Names": [name], "Labels": labels, "State": container.status})
        });
        listed.collect()
    }

    fn change(&self, method: &str, id: &str, rest: &[&str]) -> Response {
        let mut containers = self.containers();
        let found = containers.iter().find(|(key, container)| *key == id || container.name == id);
        let Some(id) = found.map(|(id, _)| id.clone()) else { return problem(StatusCode::NOT_FOUND, "no container") };
        if method == "DELETE" {
            containers.remove(&id);
        } else if let Some(container) = containers.get_mut(&id) {
            match rest {
                ["json"] => return Json(container.inspect(&id)).into_response(),
                ["logs"] => return StatusCode::OK.into_response(),
                ["start"] => container.start(),
                ["kill"] => (container.status, container.exit_code) = ("exited", 137),
                _ => {}
            }
        }
        drop(containers);
        self.changed.notify_waiters();
        StatusCode::NO_CONTENT.into_response()
    }

    /// Answers once the container does not run.
    async fn wait(&self, id: &str) -> Response {
        loop {
            let changed = self.changed.notified();
            let ended = match self.containers().get(id) {
                Some(container) if container.status == "running" => None,
                Some(container) => Some(container.exit_code),
                None => Some(0),
            };
            if let Some(code) = ended {
                return Json(json!({"StatusCode": code})).into_response();
            }
            changed.await;
        }
    }
}

impl Container {
    fn start(&mut self) {
        let is_probe = self.request["Labels"][ROLE_LABEL] == "probe";
        self.status = if is_probe { "exited" } else { "running" };
    }

    /// What was requested, as an engine reports it.
    fn inspect(&self, id: &str) -> Value {
        let is_running = self.status == "running";
        let mounts = self.request["HostConfig"]["Mounts"].as_array().into_iter().flatten().map(|mount| {
            let writable = mount["ReadOnly"] == false;
            json!({"Type": "bind", "Source": mount["Source"], "Destination": mount["Target"], "RW": writable, "Propagation": "rprivate"})
        });
        json!({
            "Id": id,
            "Name": format!("/{}", self.name),
            "Image": IMAGE_ID,
            // A running container has a process; a server that is told of none asks again each second.
            "State": {
                "Status": self.status, "Running": is_running, "ExitCode": self.exit_code, "OOMKilled": false,
                "Pid": if is_running { std::process::id() } else { 0 },
            },
            "Config": self.request,
            "HostConfig": self.request["HostConfig"],
            "Mounts": mounts.collect::<Value>(),
            "NetworkSettings": {"Networks": {"none": {}}},
        })
    }
}
