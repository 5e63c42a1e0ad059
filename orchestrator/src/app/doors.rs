//! The doors: which frame is around what, which address it is on, and what keeps the metrics in shape.

use std::{net::SocketAddr, time::Duration};

use axum::Router;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use super::ServeError;
use crate::{
    http::{
        layers::Frame,
        listen::{PatientListener, Peer},
        metrics::{self, MetricsDoor, Scrape},
        public, worker,
    },
    store::Store,
    telemetry::metrics::Metrics,
};

/// Samples wait no longer for their buckets, also when nobody reads them.
const UPKEEP: Duration = Duration::from_secs(5);

/// Puts frames around routers.
pub(super) struct Doors {
    pub(super) metrics: Metrics,
}

/// The metrics' own address with what answers there.
pub(super) struct Scraped {
    pub(super) listener: TcpListener,
    pub(super) router: Router,
}

impl Doors {
    fn frame(&self, side: &'static str, allowed_hosts: Option<Vec<String>>, body_limit_bytes: usize) -> Frame {
        Frame { allowed_hosts, body_limit_bytes, side, metrics: self.metrics.clone() }
    }

    /// What answers on the public address.
    pub(super) fn public(&self, allowed_hosts: Vec<String>, router: Router) -> Router {
        self.frame("public", Some(allowed_hosts), public::MAX_BODY_BYTES).around(router)
    }

    /// What answers on the workers' sockets.
    pub(super) fn worker(&self, router: Router) -> Router {
        self.frame("worker", None, worker::MAX_BODY_BYTES).around(router)
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
        Ok((MetricsDoor::Elsewhere, Some(Scraped { listener, router })))
    }
}

/// A listener, or what names the address that is taken.
pub(super) async fn listen(address: SocketAddr, setting: &'static str) -> Result<TcpListener, ServeError> {
    let bound = TcpListener::bind(address).await;
    bound.map_err(|source| ServeError::Listen { address: address.to_string(), setting, source })
}

/// Answers until it is to stop, and what is being answered has been.
pub(super) async fn answer(listener: PatientListener, router: Router, stop: CancellationToken) -> Result<(), String> {
    let service = router.into_make_service_with_connect_info::<Peer>();
    let served = axum::serve(listener, service).with_graceful_shutdown(stop.cancelled_owned()).await;
    served.map_err(|error| error.to_string())
}

/// Keeps what is measured small though nobody reads it.
pub(super) async fn upkeep(metrics: Metrics, stop: CancellationToken) -> Result<(), String> {
    while tokio::time::timeout(UPKEEP, stop.cancelled()).await.is_err() {
        metrics.upkeep();
    }
    Ok(())
}
