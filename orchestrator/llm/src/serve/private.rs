//! A script served to this process alone, so that scripted models are called like all others.
//!
//! Owns a Unix socket in the abstract namespace: it leaves no file, its name is random, and connections of other
//! processes are dropped.

use std::{io, process, time::Duration};

use axum::serve::Listener;
use tokio::{
    net::{UnixListener, UnixStream, unix::SocketAddr},
    task::JoinSet,
};
use tokio_util::sync::CancellationToken;

use super::router;
use crate::script::Script;

/// Delay after a connection that could not be accepted, usually because no file descriptor is free.
const ACCEPT_PAUSE: Duration = Duration::from_millis(100);

/// Serves a script for as long as it lives.
pub(crate) struct ScriptServer {
    socket: String,
    shutdown: CancellationToken,
    _tasks: JoinSet<io::Result<()>>,
}

impl ScriptServer {
    /// Starts to listen. Must be called within a runtime.
    pub(crate) fn start(script: Script) -> io::Result<Self> {
        let socket = format!("\0gantry-script-{}-{:032x}", process::id(), rand::random::<u128>());
        let listener = OwnProcessListener(UnixListener::bind(&socket)?);
        let shutdown = CancellationToken::new();
        let router = router(script, shutdown.clone());
        let stopped = shutdown.clone().cancelled_owned();
        let mut tasks = JoinSet::new();
        tasks.spawn(async move { axum::serve(listener, router).with_graceful_shutdown(stopped).await });
        Ok(Self { socket, shutdown, _tasks: tasks })
    }

    /// The address of the socket, with the zero byte of the abstract namespace.
    pub(crate) fn socket(&self) -> &str {
        &self.socket
    }
}

impl Drop for ScriptServer {
    fn drop(&mut self) {
        // Answers that would hang forever end.
        self.shutdown.cancel();
    }
}

/// Accepts connections of this process only.
struct OwnProcessListener(UnixListener);

impl Listener for OwnProcessListener {
    type Io = UnixStream;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (UnixStream, SocketAddr) {
        loop {
            match self.0.accept().await {
                Ok((stream, address)) if is_own_process(&stream) => return (stream, address),
                Ok(_) => tracing::warn!("a connection of another process to the script was dropped"),
                Err(error) => {
                    tracing::warn!(%error, "cannot accept a connection to the script");
                    tokio::time::sleep(ACCEPT_PAUSE).await;
                }
            }
        }
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.0.local_addr()
    }
}

fn is_own_process(stream: &UnixStream) -> bool {
    let peer = stream.peer_cred().ok().and_then(|peer| peer.pid());
    peer.and_then(|pid| u32::try_from(pid).ok()) == Some(process::id())
}
