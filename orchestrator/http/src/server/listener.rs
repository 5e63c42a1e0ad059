//! A listening socket of either kind, and what to do when accepting fails.
//!
//! Owns the pause after a failure. Never counts connections.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream, UnixListener, UnixStream},
    time::{Instant, sleep},
};

/// Pause after a failed `accept`: descriptors are freed when connections end.
const ACCEPT_PAUSE: Duration = Duration::from_millis(50);
/// Failures within this period are one log line.
const LOG_INTERVAL: Duration = Duration::from_secs(1);

/// A listening socket.
#[derive(Debug)]
pub enum Listener {
    Tcp(TcpListener),
    Unix(UnixListener),
}

impl From<TcpListener> for Listener {
    fn from(listener: TcpListener) -> Self {
        Self::Tcp(listener)
    }
}

impl From<UnixListener> for Listener {
    fn from(listener: UnixListener) -> Self {
        Self::Unix(listener)
    }
}

pub(super) enum Accepted {
    Tcp(TcpStream, SocketAddr),
    Unix(UnixStream),
}

impl Listener {
    pub(super) async fn accept(&self) -> io::Result<Accepted> {
        match self {
            Self::Tcp(listener) => listener.accept().await.map(|(stream, from)| Accepted::Tcp(stream, from)),
            Self::Unix(listener) => listener.accept().await.map(|(stream, _)| Accepted::Unix(stream)),
        }
    }
}

/// Failures of `accept`, logged once a second at most.
#[derive(Debug, Default)]
pub(super) struct AcceptErrors {
    logged_at: Option<Instant>,
}

impl AcceptErrors {
    /// Waits before `accept` is retried.
    pub(super) async fn pause(&mut self, error: &io::Error) {
        let peer_left = matches!(
            error.kind(),
            io::ErrorKind::ConnectionAborted | io::ErrorKind::ConnectionRefused | io::ErrorKind::ConnectionReset
        );
        if peer_left {
            return;
        }
        if self.logged_at.is_none_or(|at| at.elapsed() >= LOG_INTERVAL) {
            self.logged_at = Some(Instant::now());
            tracing::error!(%error, "cannot accept connections");
        }
        sleep(ACCEPT_PAUSE).await;
    }
}
