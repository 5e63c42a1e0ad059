//! Listeners: which frame and which limits are around what, which address it is on, and what keeps the metrics in shape.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use super::ServeError;
use crate::{
    dispatch::ServeSocket,
    http::{
        layers::{self, Frame},
        metrics::{self, MetricsDoor, Scrape},
        public,
        server::{BodyBudget, Descriptors, Policy, Server},
        worker,
    },
    store::Store,
    telemetry::metrics::Metrics,
};

/// Samples wait no longer for their buckets, also when nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);

/// Puts frames and limits around routers.
pub(super) struct Doors {
    metrics: Metrics,
    descriptors: Descriptors,
}

/// What answers on the public address, and on the metrics' own when there is one.
pub(super) struct Front {
    pub(super) router: Router,
    pub(super) server: Server,
    pub(super) scraped: Option<Scraped>,
}

/// The metrics' own address with what answers there.
pub(super) struct Scraped {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
    pub(super) server: Server,
}

impl Doors {
    /// By the limit on open files that is in force.
    pub(super) fn new(metrics: &Metrics, max_parallel_jobs: u32) -> Self {
        Self { metrics: metrics.clone(), descriptors: Descriptors::in_force(max_parallel_jobs as usize) }
    }

    fn frame(&self, side: &'static str, allowed_hosts: Option<Vec<String>>, body_limit_bytes: usize) -> Frame {
        Frame { allowed_hosts, body_limit_bytes, side, metrics: self.metrics.clone() }
    }

    /// What answers on the public address.
    pub(super) fn public(&self, allowed_hosts: Vec<String>, router: Router, scraped: Option<Scraped>) -> Front {
        let router = self.frame("public", Some(allowed_hosts), public::MAX_BODY_BYTES).around(router);
        Front { router, server: self.server(), scraped }
    }

    /// What serves the workers' sockets. They share a budget of body bytes, and half of the descriptors.
    pub(super) fn worker(&self, router: Router) -> ServeSocket {
        let router = self.frame(layers::WORKER_SIDE, None, worker::MAX_BODY_BYTES).around(router);
        let (metrics, descriptors) = (self.metrics.clone(), self.descriptors);
        let (bodies, connections) = (BodyBudget::workers(), Arc::new(Semaphore::new(descriptors.workers)));
        Arc::new(move |listener, attempt, stop| {
            let server = Server {
                policy: Policy::worker(descriptors.worker_share),
                own_bodies: Some(BodyBudget::worker_socket()),
                bodies: bodies.clone(),
                connections: Some(Arc::clone(&connections)),
                metrics: metrics.clone(),
            };
            Box::pin(server.serve(listener, router.clone().layer(Extension(attempt)), stop))
        })
    }

    /// The server of a listener that is not a worker's.
    fn server(&self) -> Server {
        Server {
            policy: Policy::public(self.descriptors.public),
            own_bodies: None,
            bodies: BodyBudget::public(),
            connections: None,
            metrics: self.metrics.clone(),
        }
    }

    /// Where the metrics are read: on an address of their own when there is one.
    pub(super) async fn scraped(
        &self,
        address: Option<SocketAddr>,
        store: Store,
    ) -> Result<(MetricsDoor, Option<Scraped>), ServeError> {
        let scrape = Scrape { metrics: self.metrics.clone(), store };
        let Some(address) = address else { return Ok((MetricsDoor::Here(scrape), None)) };
        let listener = listen(address, "GANTRY_METRICS_BIND").await?;
        // No host check: whoever reaches this address may read, and nothing can be changed there.
        let router = self.frame("metrics", None, public::MAX_BODY_BYTES).around(metrics::router(scrape));
        Ok((MetricsDoor::Elsewhere, Some(Scraped { listener, router, server: self.server() })))
    }
}

/// A listener, or what names the address that is taken.
pub(super) async fn listen(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ServeError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServeError::Listen { address: address.to_string(), setting, source })
}

/// Answers until it is to stop, and what is being answered has been.
pub(super) async fn answer(
    server: Server,
    listener: TcpListener,
    router: Router,
    stop: CancellationToken,
) -> Result<(), String> {
    server.serve(listener, router, stop).await;
    Ok(())
}

/// Keeps what is measured small though nobody reads it.
pub(super) async fn upkeep(metrics: Metrics, stop: CancellationToken) -> Result<(), String> {
    while tokio::time::timeout(UPKEEP, stop.cancelled()).await.is_err() {
        metrics.upkeep();
    }
    Ok(())
}
