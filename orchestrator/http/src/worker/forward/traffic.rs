//! What a connection to another host may use: its place among all, its time and its bytes.

use std::{
    io,
    pin::Pin,
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering},
    },
    task::{Context, Poll},
    time::Duration,
};

use dispatch::{Attempt, EgressCounts, EgressDirection};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    sync::{OwnedSemaphorePermit, Semaphore},
    time::{Instant, sleep, sleep_until},
};
use tokio_util::sync::CancellationToken;

/// A connection that carries nothing for this long ends.
const IDLE_TIMEOUT: Duration = Duration::from_mins(5);
/// Maximum life of a connection.
const MAX_LIFE: Duration = Duration::from_hours(4);

/// The connections that all jobs may have to other hosts.
#[derive(Debug, Clone)]
pub struct Tunnels(Arc<Semaphore>);

impl Tunnels {
    /// At most this many at once.
    pub fn new(count: usize) -> Self {
        Self(Arc::new(Semaphore::new(count)))
    }

    /// The permits of a connection of an attempt; none while too many are open.
    pub(super) fn permits(&self, attempt: &Attempt) -> Option<[OwnedSemaphorePermit; 2]> {
        let of_job = Arc::clone(&attempt.limits().tunnels).try_acquire_owned().ok()?;
        let of_all = Arc::clone(&self.0).try_acquire_owned().ok()?;
        Some([of_all, of_job])
    }
}

/// The bytes of one connection.
#[derive(Debug)]
pub(super) struct Traffic {
    attempt: Arc<Attempt>,
    counts: Arc<EgressCounts>,
    began: Instant,
    /// Milliseconds from the beginning to the last bytes.
    last_ms: AtomicU64,
}

impl Traffic {
    pub(super) fn new(attempt: Arc<Attempt>, counts: Arc<EgressCounts>) -> Self {
        Self { attempt, counts, began: Instant::now(), last_ms: AtomicU64::new(0) }
    }

    /// Returns when the connection must end: its attempt ends or is being cancelled, the process drains, or it was idle or
    /// alive for too long.
    pub(super) async fn over(&self, drain: &CancellationToken) {
        tokio::select! {
            _ = self.attempt.stopped() => {}
            () = drain.cancelled() => {}
            () = sleep(MAX_LIFE) => {}
            () = self.idle() => {}
        }
    }

    async fn idle(&self) {
        loop {
            let last = self.began + Duration::from_millis(self.last_ms.load(Ordering::Relaxed));
            let deadline = last + IDLE_TIMEOUT;
            if Instant::now() >= deadline {
                return;
            }
            sleep_until(deadline).await;
        }
    }

    /// Counts bytes. An error once the job has no more left.
    fn carried(&self, direction: EgressDirection, bytes: usize) -> io::Result<()> {
        if bytes == 0 {
            return Ok(());
        }
        let (bytes, elapsed) = (bytes as u64, self.began.elapsed().as_millis());
        self.last_ms.store(u64::try_from(elapsed).unwrap_or(u64::MAX), Ordering::Relaxed);
        match direction {
            EgressDirection::Up => self.counts.add_up(bytes),
            EgressDirection::Down => self.counts.add_down(bytes),
        }
        if self.attempt.limits().egress_quota.take(direction, bytes) {
            Ok(())
        } else {
            Err(io::Error::other("the job has reached its limit of bytes"))
        }
    }

    fn check(&self) -> io::Result<()> {
        match self.attempt.limits().egress_quota.reached() {
            None => Ok(()),
            Some(_) => Err(io::Error::other("the job has reached its limit of bytes")),
        }
    }
}

/// A connection to another host whose bytes are counted.
#[derive(Debug)]
pub(super) struct Metered<S> {
    stream: S,
    traffic: Arc<Traffic>,
}

impl<S> Metered<S> {
    pub(super) fn new(stream: S, traffic: Arc<Traffic>) -> Self {
        Self { stream, traffic }
    }

    pub(super) const fn traffic(&self) -> &Arc<Traffic> {
        &self.traffic
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Metered<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        self.traffic.check()?;
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) {
            self.traffic.carried(EgressDirection::Down, buf.filled().len() - before)?;
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Metered<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        self.traffic.check()?;
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        if let Poll::Ready(Ok(count)) = written {
            self.traffic.carried(EgressDirection::Up, count)?;
        }
        written
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
