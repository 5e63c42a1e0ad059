//! Resolves names to addresses. Decides nothing about them.

use std::{
    io,
    net::{IpAddr, ToSocketAddrs as _},
    sync::Arc,
};

use agent::BoxFuture;
use tokio::{
    sync::{OwnedSemaphorePermit, Semaphore},
    task::spawn_blocking,
};

/// Calls of the system's resolver at once: a job that asks for many names leaves threads for others.
const MAX_LOOK_UPS: usize = 128;

/// Resolves a name to addresses. The permit is the caller's and is kept until the call has ended. Tests replace it.
pub type LookUp =
    Arc<dyn Fn(String, Option<OwnedSemaphorePermit>) -> BoxFuture<'static, io::Result<Vec<IpAddr>>> + Send + Sync>;

/// The operating system's resolver. A call of it takes a thread until it returns, however long its caller waits.
pub fn system_look_up() -> LookUp {
    let permits = Arc::new(Semaphore::new(MAX_LOOK_UPS));
    Arc::new(move |name, of_caller| {
        let permits = Arc::clone(&permits);
        Box::pin(async move {
            let permit = permits.acquire_owned().await.map_err(io::Error::other)?;
            let resolving = spawn_blocking(move || {
                let _permits = (permit, of_caller);
                Ok((name, 0).to_socket_addrs()?.map(|address| address.ip()).collect())
            });
            resolving.await.map_err(io::Error::other)?
        })
    })
}
