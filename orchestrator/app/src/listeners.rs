//! Listeners: which layers and limits apply to the public API, the workers' sockets and the metrics, and their
//! addresses.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use axum::{Extension, Router, middleware};
use tokio::{net::TcpListener, sync::Semaphore};
use tokio_util::sync::CancellationToken;

use super::ServeError;
use dispatch::ServeSocket;
use http_api::{
    layers::{self, ServerLayers},
    metrics::{self, MetricsEndpoint, Scrape},
    public,
    server::{BodyBudget, Descriptors, Policy, Server},
    worker::{self, WorkerApi},
};
use store::Store;
use telemetry::metrics::Metrics;

/// How often recorded samples are moved into histogram buckets; bounds their memory when nothing scrapes.
const METRICS_UPKEEP_INTERVAL: Duration = Duration::from_secs(5);

/// Builds the servers of all listeners.
pub(super) struct Listeners {
    metrics: Metrics,
    descriptors: Descriptors,
}

/// The server of the public address.
pub(super) struct PublicServer {
    pub(super) router: Router,
    pub(super) server: Server,
}

/// The server of the metrics' own address.
pub(super) struct MetricsServer {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
    pub(super) server: Server,
}

/// The servers of workers' sockets, which share a budget of body bytes and half of the descriptors.
pub(super) struct WorkerServers {
    share: usize,
    bodies: BodyBudget,
    connections: Arc<Semaphore>,
    metrics: Metrics,
}

impl WorkerServers {
    /// The server of one socket.
    pub(super) fn server(&self) -> Server {
        Server {
            policy: Policy::worker(self.share),
            own_bodies: Some(BodyBudget::worker_socket()),
            bodies: self.bodies.clone(),
            connections: Some(Arc::clone(&self.connections)),
            metrics: self.metrics.clone(),
        }
    }
}

impl Listeners {
    /// Divides the open files that the process may have between the listeners.
    pub(super) fn new(metrics: &Metrics, descriptors: Descriptors) -> Self {
        Self { metrics: metrics.clone(), descriptors }
    }

    /// The server of the public API.
    pub(super) fn public(&self, allowed_hosts: Vec<String>, router: Router) -> PublicServer {
        let router = self.layers("public", Some(allowed_hosts), public::MAX_BODY_BYTES).apply(router);
        PublicServer { router, server: self.tcp_server() }
    }

    /// Serves the workers' sockets.
    pub(super) fn worker(&self, api: WorkerApi) -> ServeSocket {
        let (servers, router) = (self.worker_servers(), self.worker_layers(worker::router(api.clone())));
        // Around all other layers: what other hosts answer is passed on as it is.
        let router = router.layer(middleware::from_fn_with_state(api, worker::intercept_proxy_requests));
        Arc::new(move |listener, attempt, stop| {
            Box::pin(servers.server().serve(listener, router.clone().layer(Extension(attempt)), stop))
        })
    }

    pub(super) fn worker_layers(&self, router: Router) -> Router {
        self.layers(layers::WORKER_SIDE, None, worker::MAX_BODY_BYTES).apply(router)
    }

    pub(super) fn worker_servers(&self) -> WorkerServers {
        WorkerServers {
            share: self.descriptors.worker_share,
            bodies: BodyBudget::workers(),
            connections: Arc::new(Semaphore::new(self.descriptors.workers)),
            metrics: self.metrics.clone(),
        }
    }

    /// Where the metrics are served: on `address` if there is one, otherwise on the public address.
    pub(super) async fn metrics(
        &self,
        address: Option<SocketAddr>,
        store: Store,
    ) -> Result<(MetricsEndpoint, Option<MetricsServer>), ServeError> {
        let scrape = Scrape { metrics: self.metrics.clone(), store };
        let Some(address) = address else { return Ok((MetricsEndpoint::Public(scrape), None)) };
        let listener = bind(address, "GANTRY_METRICS_BIND").await?;
        // No Host check: everyone who reaches this address may read the metrics, and nothing can be changed there.
        let router = self.layers("metrics", None, public::MAX_BODY_BYTES).apply(metrics::router(scrape));
        Ok((MetricsEndpoint::Dedicated, Some(MetricsServer { listener, router, server: self.tcp_server() })))
    }

    fn layers(&self, side: &'static str, allowed_hosts: Option<Vec<String>>, body_limit_bytes: usize) -> ServerLayers {
        ServerLayers { allowed_hosts, body_limit_bytes, side, metrics: self.metrics.clone() }
    }

    fn tcp_server(&self) -> Server {
        Server {
            policy: Policy::public(self.descriptors.public),
            own_bodies: None,
            bodies: BodyBudget::public(),
            connections: None,
            metrics: self.metrics.clone(),
        }
    }
}

/// Binds a TCP listener; the error names the setting that chooses the address.
pub(super) async fn bind(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ServeError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServeError::Listen { address: address.to_string(), setting, source })
}

/// Runs the periodic upkeep of the metrics until `stop` fires.
pub(super) async fn run_metrics_upkeep(metrics: Metrics, stop: CancellationToken) {
    while tokio::time::timeout(METRICS_UPKEEP_INTERVAL, stop.cancelled()).await.is_err() {
        metrics.upkeep();
    }
}
