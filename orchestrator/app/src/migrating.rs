//! What the daemon answers while it migrates the database of an earlier version, which may take minutes.
//!
//! `GET /healthz` reports it, and every other request of a client is refused. Workers that an earlier process started are
//! told to go on; their other calls wait. Never reads the database.

use std::{future::Future, io, path::Path, time::Duration};

use axum::{
    Json, Router,
    body::{Body, Bytes},
    routing::{get, post},
};
use chrono::TimeDelta;
use futures_util::stream;
use protocol::{ErrorCode, StatusReply};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::listeners::{self, Listeners};
use base::clock::Clock;
use config::Config;
use dispatch::bind_sockets;
use http_api::{problem::ApiError, public::Health, server::Descriptors};
use telemetry::metrics::Metrics;

/// When a refused request may be repeated.
const RETRY_AFTER: Duration = Duration::from_secs(5);

/// Answers clients and workers until `migration` has ended. The addresses are free again then.
pub(super) async fn serve_during<T>(
    config: &Config,
    clock: &Clock,
    descriptors: Descriptors,
    migration: impl Future<Output = T>,
) -> T {
    let (stop, tasks) = (CancellationToken::new(), TaskTracker::new());
    let listeners = Listeners::new(&Metrics::default(), descriptors);
    match listeners::bind(config.bind, "GANTRY_BIND").await {
        Ok(listener) => {
            let public = listeners.public(config.allowed_hosts.clone(), public_router());
            tasks.spawn(public.server.serve(listener, public.router, stop.clone()));
        }
        Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "no health check during the migration"),
    }
    let servers = listeners.worker_servers();
    let router = listeners.worker_layers(worker_router(clock.clone(), stop.clone()));
    for socket in worker_sockets(&config.run_dir) {
        tasks.spawn(servers.server().serve(socket, router.clone(), stop.clone()));
    }
    let migrated = migration.await;
    stop.cancel();
    tasks.close();
    tasks.wait().await;
    migrated
}

fn worker_sockets(run_dir: &Path) -> Vec<tokio::net::UnixListener> {
    bind_sockets(run_dir).unwrap_or_else(|error| {
        tracing::warn!(%error, "workers get no answer during the migration");
        Vec::new()
    })
}

fn public_router() -> Router {
    Router::new().route("/healthz", get(|| async { Json(Health::migrating()) })).fallback(|| async {
        ApiError::new(ErrorCode::Unavailable, "the server is migrating its database; try again later")
            .with_retry_after(RETRY_AFTER)
    })
}

/// Heartbeats are answered, so that no worker takes the orchestrator for gone. Any other call loses its connection at the
/// end, which a worker repeats for as long as it takes; a refusal it repeats for a limited time only.
fn worker_router(clock: Clock, stop: CancellationToken) -> Router {
    let go_on = move || async move {
        Json(StatusReply { cancel: false, lease_expires_at: clock.now() + TimeDelta::minutes(1) })
    };
    Router::new().route("/worker/{job_id}/status", post(go_on)).fallback(move || {
        let stop = stop.clone();
        async move {
            stop.cancelled().await;
            Body::from_stream(stream::once(async { Err::<Bytes, _>(io::Error::other("the migration has ended")) }))
        }
    })
}
