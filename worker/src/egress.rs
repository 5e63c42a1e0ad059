//! The way to other hosts from inside the container: listeners on loopback addresses, whose connections are carried over the
//! job's socket.
//!
//! Owns the listeners and how many connections they have at once. Decides nothing: the orchestrator decides about each
//! connection, and reads what plain HTTP carries. There is no listener without a list of hosts.

mod proxy;
mod upstream;

use std::{convert::Infallible, future::pending, io, net::SocketAddrV4, sync::Arc, time::Duration};

use protocol::{EgressName, PROXY_ADDRESS};
use tokio::{
    net::{TcpListener, TcpStream},
    sync::Semaphore,
    task::JoinSet,
    time::sleep,
};

pub(crate) use self::upstream::Upstream;

/// Connections at once: as many as the orchestrator carries for a job. Further ones wait.
const MAX_CONNECTIONS: usize = 64;
/// Pause after a failed `accept`, for example without a free descriptor.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);

/// The listeners of a job.
pub(crate) struct EgressListeners {
    upstream: Arc<Upstream>,
    listeners: Vec<(TcpListener, ListenerKind)>,
}

/// What the connections of a listener are for.
enum ListenerKind {
    /// Requests to a proxy.
    Proxy,
    /// One host and port.
    Host(Arc<str>),
}

impl EgressListeners {
    /// Listens for the proxy and for each name. An address that cannot be had is left out: its host is still reached through
    /// the proxy.
    pub(crate) async fn open(names: &[EgressName], upstream: Arc<Upstream>) -> io::Result<Self> {
        let mut listeners = vec![(TcpListener::bind(PROXY_ADDRESS).await?, ListenerKind::Proxy)];
        for EgressName { host, port, address } in names {
            match TcpListener::bind(SocketAddrV4::new(*address, *port)).await {
                Ok(listener) => listeners.push((listener, ListenerKind::Host(format!("{host}:{port}").into()))),
                Err(error) => {
                    tracing::warn!(%error, host, port, "cannot listen for a host; it is reached through the proxy only");
                }
            }
        }
        Ok(Self { upstream, listeners })
    }

    /// Carries connections. Dropping the future closes all of them.
    pub(crate) async fn run(self) -> Infallible {
        let permits = Arc::new(Semaphore::new(MAX_CONNECTIONS));
        let mut accepting = JoinSet::new();
        for (listener, kind) in self.listeners {
            accepting.spawn(accept(listener, kind, Arc::clone(&self.upstream), Arc::clone(&permits)));
        }
        // None of them ends.
        while accepting.join_next().await.is_some() {}
        pending().await
    }
}

async fn accept(listener: TcpListener, kind: ListenerKind, upstream: Arc<Upstream>, permits: Arc<Semaphore>) {
    let mut carrying = JoinSet::new();
    loop {
        let accepted = tokio::select! {
            accepted = listener.accept() => accepted,
            Some(_) = carrying.join_next(), if !carrying.is_empty() => continue,
        };
        let Ok((client, _)) = accepted else {
            sleep(ACCEPT_PAUSE).await;
            continue;
        };
        // The semaphore is never closed.
        let Ok(permit) = Arc::clone(&permits).acquire_owned().await else { return };
        let (upstream, host) = (Arc::clone(&upstream), kind.host());
        carrying.spawn(async move {
            let _permit = permit;
            let carried = match host {
                Some(host) => carry(client, &host, &upstream).await,
                None => proxy::serve(client, &upstream).await,
            };
            if let Err(error) = carried {
                tracing::debug!(%error, "a connection to another host ended");
            }
        });
    }
}

impl ListenerKind {
    fn host(&self) -> Option<Arc<str>> {
        match self {
            Self::Proxy => None,
            Self::Host(host) => Some(Arc::clone(host)),
        }
    }
}

/// Carries the connection of a program that resolved a name. A refused one is closed.
async fn carry(mut client: TcpStream, host: &str, upstream: &Upstream) -> io::Result<()> {
    let mut tunnel = upstream.connect(host).await?;
    if tunnel.is_open {
        upstream::copy(&mut client, &[], &mut tunnel).await?;
    }
    Ok(())
}
