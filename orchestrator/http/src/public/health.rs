//! `GET /healthz`: the process is alive. `GET /readyz`: the server can accept jobs. `GET /api/status`: what it can do now.

use std::collections::BTreeMap;

use axum::{Json, extract::State, http::StatusCode};
use engine::{ReadinessReason, SandboxReadiness};
use protocol::ServerStatus;
use serde::Serialize;
use utoipa::ToSchema;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{
    PublicApi,
    request::{Caller, MaybeCaller},
};
use crate::problem::ApiError;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(health)).routes(routes!(ready)).routes(routes!(status))
}

/// Liveness.
#[derive(Debug, Serialize, ToSchema)]
pub struct Health {
    /// `ok`; `migrating` while the database of an earlier version is migrated, when everything else is refused.
    status: &'static str,
    /// Version of the orchestrator.
    version: &'static str,
}

impl Health {
    /// The answer of a server that migrates its database.
    #[must_use]
    pub fn migrating() -> Self {
        Self { status: "migrating", ..Self::ok() }
    }

    fn ok() -> Self {
        Self { status: "ok", version: env!("CARGO_PKG_VERSION") }
    }
}

/// Checks that the process is alive.
///
/// No token is needed. `GET /readyz` tells whether jobs can run.
#[utoipa::path(get, path = "/healthz", operation_id = "get_health", tag = "health", security(()),
    responses((status = 200, body = Health, description = "The process is alive.")))]
async fn health() -> Json<Health> {
    Json(Health::ok())
}

/// Readiness of the server and its parts.
#[derive(Debug, Serialize, ToSchema)]
struct Readiness {
    /// `ready` or `not_ready`.
    status: &'static str,
    /// The database.
    store: Part,
    /// The container engine.
    engine: EnginePart,
    /// Whether jobs can run.
    sandbox: SandboxPart,
    /// Whether the disk of the workspaces has room: `failed` while jobs wait for it and uploads are refused.
    disk: DiskPart,
    /// The model providers, as seen by recent calls; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelPart>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Part {
    /// `ok` or `failed`.
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct DiskPart {
    /// `ok` or `failed`.
    status: &'static str,
    /// How much is free and is kept in reserve, if it failed; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct EnginePart {
    /// `ok`, `failed` or `disabled`.
    status: &'static str,
    /// Engine name; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Engine version; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// Container runtime of jobs; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SandboxPart {
    /// `ready` or `not_ready`.
    state: &'static str,
    /// Why it is not ready.
    reason: Option<&'static str>,
    /// Explanation of `reason`, with how to fix it; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Digest of the security settings every job container is checked against; only for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    posture: Option<String>,
    /// With a disabled sandbox: jobs started earlier that are still running.
    jobs_left: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ModelPart {
    /// Provider name.
    name: String,
    /// Model name.
    model: String,
    /// Circuit breaker state: `closed`, `open` or `half_open`.
    breaker: &'static str,
    /// What refusals taught of the provider in the last day: for each model, the properties of its dialect as `llm.dialect`
    /// takes them; only for admins, and only if there is something.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    learned: BTreeMap<String, serde_json::Value>,
    /// The operator's `llm.dialect`, which is neither learned nor corrected; only for admins, and only if it is set.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    pinned: BTreeMap<String, serde_json::Value>,
    /// What is known beforehand of this model, by its name and the provider's address; only for admins, and only if there is
    /// something.
    #[serde(skip_serializing_if = "BTreeMap::is_empty")]
    preset: BTreeMap<String, serde_json::Value>,
}

/// Checks whether the server can accept jobs.
///
/// States and reasons are public; details are only for callers with a token.
#[utoipa::path(get, path = "/readyz", operation_id = "get_readiness", tag = "health", security(()),
    responses((status = 200, body = Readiness, description = "Ready."), (status = 503, body = Readiness, description = "Not ready.")))]
async fn ready(State(api): State<PublicApi>, MaybeCaller(who): MaybeCaller) -> (StatusCode, Json<Readiness>) {
    let store = api.store.ping().await;
    if let Err(error) = &store {
        tracing::warn!(error = error as &dyn std::error::Error, "store ping failed");
    }
    let state = api.readiness.sandbox.state().await;
    let is_able = api.readiness.of(&state).ready;
    let (engine, mut sandbox) = parts(state);
    if engine.status == DISABLED {
        sandbox.jobs_left = jobs_left(&api).await;
    }
    // Without a sandbox no job needs the space.
    let no_space = api.uploads.ensure_space().err().filter(|_| engine.status != DISABLED);
    let is_ready = store.is_ok() && is_able;
    let is_admin = who.as_ref().is_some_and(|who| who.role.sees_all());
    let models = api.gateway.health().into_iter().map(|one| {
        let (learned, pinned, preset) =
            if is_admin { (one.learned, one.pinned, one.preset) } else { Default::default() };
        ModelPart { name: one.name, model: one.model, breaker: one.breaker.as_str(), learned, pinned, preset }
    });
    let readiness = Readiness {
        status: if is_ready { "ready" } else { "not_ready" },
        store: Part { status: if store.is_ok() { "ok" } else { "failed" } },
        engine,
        sandbox,
        disk: DiskPart {
            status: if no_space.is_none() { "ok" } else { "failed" },
            detail: no_space.map(|error| error.to_string()),
        },
        models: Some(models.collect()),
    };
    let readiness = if who.is_some() { readiness } else { readiness.without_details() };
    (if is_ready { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(readiness))
}

/// Returns what the server can do now.
///
/// Whether jobs can run, the slots of containers and the queue of all users, and the free space for workspaces. The event
/// `readiness` of `GET /api/events` tells when `ready` or the state of a part changes.
#[utoipa::path(get, path = "/api/status", operation_id = "get_status", tag = "health",
    responses((status = 200, body = ServerStatus, description = "The state of the server.")))]
async fn status(State(api): State<PublicApi>, _caller: Caller) -> Result<Json<ServerStatus>, ApiError> {
    Ok(Json(api.readiness.status(&api.store, env!("CARGO_PKG_VERSION")).await?))
}

/// Engine status when the sandbox is disabled by configuration.
const DISABLED: &str = "disabled";

async fn jobs_left(api: &PublicApi) -> Option<u64> {
    match api.store.count_at_work().await {
        Ok(count) => Some(count),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "counting running jobs failed");
            None
        }
    }
}

impl Readiness {
    /// Removes everything that describes the installation.
    fn without_details(self) -> Self {
        let engine = EnginePart { status: self.engine.status, name: None, version: None, runtime: None };
        let sandbox = SandboxPart { detail: None, posture: None, ..self.sandbox };
        let disk = DiskPart { detail: None, ..self.disk };
        Self { engine, sandbox, disk, models: None, ..self }
    }
}

fn parts(state: SandboxReadiness) -> (EnginePart, SandboxPart) {
    match state {
        SandboxReadiness::Ready(facts) => (
            EnginePart {
                status: "ok",
                name: Some(facts.engine),
                version: Some(facts.version),
                runtime: Some(facts.runtime),
            },
            SandboxPart { state: "ready", reason: None, detail: None, posture: Some(facts.posture), jobs_left: None },
        ),
        SandboxReadiness::NotReady { reason, detail } => {
            let status = match reason {
                ReadinessReason::EngineUnreachable => "failed",
                ReadinessReason::DisabledByConfig => DISABLED,
                _ => "ok",
            };
            let (reason_name, detail) = (Some(reason.as_str()), Some(detail));
            let sandbox =
                SandboxPart { state: "not_ready", reason: reason_name, detail, posture: None, jobs_left: None };
            let engine = EnginePart { status, name: None, version: None, runtime: None };
            (engine, sandbox)
        }
    }
}
