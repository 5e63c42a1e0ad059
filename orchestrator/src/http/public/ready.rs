//! `GET /readyz`: whether jobs can be taken.

use axum::{Json, extract::State, http::StatusCode};
use serde::Serialize;
use utoipa::ToSchema;

use super::{PublicApi, caller::MaybeCaller};
use crate::engine::{ReadinessReason, SandboxReadiness};

/// What is well and what is not.
#[derive(Debug, Serialize, ToSchema)]
pub(super) struct Readiness {
    /// `ready` or `not_ready`.
    status: &'static str,
    /// The database.
    store: Part,
    /// The container engine and what it says of itself.
    engine: EnginePart,
    /// Whether FullJobs can run.
    sandbox: SandboxPart,
    /// The models' providers, never probed with a completion; for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    models: Option<Vec<ModelPart>>,
}

#[derive(Debug, Serialize, ToSchema)]
struct Part {
    /// `ok` or `failed`.
    status: &'static str,
}

#[derive(Debug, Serialize, ToSchema)]
struct EnginePart {
    /// `ok`, `failed` or `disabled`.
    status: &'static str,
    /// Its name; for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    name: Option<String>,
    /// Its version; the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    version: Option<String>,
    /// What jobs run under; the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    runtime: Option<String>,
}

#[derive(Debug, Serialize, ToSchema)]
struct SandboxPart {
    /// `ready` or `not_ready`.
    state: &'static str,
    /// Why not.
    reason: Option<&'static str>,
    /// What was found and what to do; for callers with a token.
    #[serde(skip_serializing_if = "Option::is_none")]
    detail: Option<String>,
    /// Digest of the posture that containers are checked against; the same.
    #[serde(skip_serializing_if = "Option::is_none")]
    posture: Option<String>,
    /// While it is disabled: jobs of an earlier setting that are still at work.
    jobs_left: Option<u64>,
}

#[derive(Debug, Serialize, ToSchema)]
struct ModelPart {
    /// The provider.
    name: String,
    /// Its model.
    model: String,
    /// `closed`, `open` or `half_open`.
    breaker: &'static str,
}

/// Says whether jobs can be taken: states and reasons to anybody, details to callers with a token.
#[utoipa::path(get, path = "/readyz", tag = "health", security(()),
    responses((status = 200, body = Readiness, description = "Ready."), (status = 503, body = Readiness, description = "Not ready.")))]
pub(super) async fn ready(
    State(api): State<PublicApi>,
    MaybeCaller(who): MaybeCaller,
) -> (StatusCode, Json<Readiness>) {
    let store = api.store.ping().await;
    if let Err(error) = &store {
        tracing::warn!(error = error as &dyn std::error::Error, "the store does not answer");
    }
    let state = api.sandbox.state().await;
    let (engine, mut sandbox, can) = parts(state);
    if engine.status == DISABLED {
        sandbox.jobs_left = jobs_left(&api).await;
    }
    let well = store.is_ok() && can;
    let models = api.gateway.health().into_iter().map(|one| ModelPart {
        name: one.name,
        model: one.model,
        breaker: one.breaker.as_str(),
    });
    let readiness = Readiness {
        status: if well { "ready" } else { "not_ready" },
        store: Part { status: if store.is_ok() { "ok" } else { "failed" } },
        engine,
        sandbox,
        models: Some(models.collect()),
    };
    let readiness = if who.is_some() { readiness } else { readiness.for_strangers() };
    (if well { StatusCode::OK } else { StatusCode::SERVICE_UNAVAILABLE }, Json(readiness))
}

/// The engine's status where the operator wants no sandbox.
const DISABLED: &str = "disabled";

async fn jobs_left(api: &PublicApi) -> Option<u64> {
    match api.store.count_at_work().await {
        Ok(count) => Some(count),
        Err(error) => {
            tracing::warn!(error = &error as &dyn std::error::Error, "the jobs at work could not be counted");
            None
        }
    }
}

impl Readiness {
    /// States and reasons alone: nothing that says what this install is made of.
    fn for_strangers(self) -> Self {
        let engine = EnginePart { status: self.engine.status, name: None, version: None, runtime: None };
        let sandbox = SandboxPart { detail: None, posture: None, ..self.sandbox };
        Self { engine, sandbox, models: None, ..self }
    }
}

fn parts(state: SandboxReadiness) -> (EnginePart, SandboxPart, bool) {
    match state {
        SandboxReadiness::Ready(facts) => (
            EnginePart {
                status: "ok",
                name: Some(facts.engine),
                version: Some(facts.version),
                runtime: Some(facts.runtime),
            },
            SandboxPart { state: "ready", reason: None, detail: None, posture: Some(facts.posture), jobs_left: None },
            true,
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
            // The operator's choice is no fault.
            (engine, sandbox, reason == ReadinessReason::DisabledByConfig)
        }
    }
}
