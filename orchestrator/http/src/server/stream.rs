//! The byte stream under a connection: notices when a request begins, and fails writes that make no progress.
//!
//! Owns the write timeout. Never inspects the data.

use std::{
    io,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    time::{Instant, Sleep, sleep},
};

use super::connection::Connection;
use telemetry::metrics::Metrics;

/// Write timeout: a peer that accepts no data for this long is disconnected.
const WRITE_TIMEOUT: Duration = Duration::from_secs(30);

pub(super) struct ConnectionStream<S> {
    stream: S,
    connection: Arc<Connection>,
    stalled: Option<Pin<Box<Sleep>>>,
    metrics: Metrics,
}

impl<S> ConnectionStream<S> {
    pub(super) fn new(stream: S, connection: Arc<Connection>, metrics: Metrics) -> Self {
        Self { stream, connection, stalled: None, metrics }
    }

    fn progress<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        // The owner of a tunnel limits how long it may be idle.
        if self.connection.is_tunnel() && written.is_pending() {
            return written;
        }
        if written.is_ready() {
            if self.stalled.take().is_some() || self.connection.is_tunnel() {
                self.connection.progressed(Instant::now());
            }
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(WRITE_TIMEOUT)));
        ready!(stalled.as_mut().poll(cx));
        self.metrics.connection_timed_out();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the peer accepted no data")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for ConnectionStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        let before = buf.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buf);
        if matches!(read, Poll::Ready(Ok(()))) && buf.filled().len() > before {
            self.connection.received();
        }
        read
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for ConnectionStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.progress(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.progress(cx, written)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _, DuplexStream, duplex};

    use super::*;
    use crate::server::Policy;

    fn stream(near: DuplexStream) -> ConnectionStream<DuplexStream> {
        let connection = Arc::new(Connection::new(1, &Policy::public(64)));
        ConnectionStream::new(near, connection, Metrics::default())
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_given_up_in_time() {
        let (near, _far) = duplex(16);
        let mut near = stream(near);
        let since = Instant::now();
        let error = near.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!((error.kind(), since.elapsed()), (io::ErrorKind::TimedOut, WRITE_TIMEOUT));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_little_by_little_is_not() {
        let (near, mut far) = duplex(16);
        let mut near = stream(near);
        let reading = async {
            for _ in 0..4 {
                sleep(WRITE_TIMEOUT.mul_f32(0.9)).await;
                far.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[0; 64]), reading);
        written.unwrap();
    }
}
