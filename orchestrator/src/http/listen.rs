//! The public listener: whoever does not take what it is sent is dropped, and can resume.
//!
//! Owns the patience with one write. Never looks at what is sent.

use std::{
    io,
    net::SocketAddr,
    pin::Pin,
    task::{Context, Poll, ready},
    time::Duration,
};

use axum::{
    extract::connect_info::Connected,
    serve::{IncomingStream, Listener},
};
use tokio::{
    io::{AsyncRead, AsyncWrite, ReadBuf},
    net::{TcpListener, TcpStream},
    time::{Sleep, sleep},
};

use crate::telemetry::metrics::Metrics;

/// A reader that takes nothing for this long is gone, or might as well be.
const PATIENCE: Duration = Duration::from_secs(30);

/// Listens for connections that are dropped when their reader stalls.
#[derive(Debug)]
pub struct PatientListener {
    listener: TcpListener,
    metrics: Metrics,
}

/// Where a connection comes from.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Peer(pub SocketAddr);

impl Connected<IncomingStream<'_, PatientListener>> for Peer {
    fn connect_info(stream: IncomingStream<'_, PatientListener>) -> Self {
        Self(*stream.remote_addr())
    }
}

impl PatientListener {
    /// On a listener.
    pub fn new(listener: TcpListener, metrics: Metrics) -> Self {
        Self { listener, metrics }
    }
}

impl Listener for PatientListener {
    type Io = PatientStream<TcpStream>;
    type Addr = SocketAddr;

    async fn accept(&mut self) -> (Self::Io, Self::Addr) {
        let (stream, from) = Listener::accept(&mut self.listener).await;
        (PatientStream { stream, stalled: None, metrics: self.metrics.clone() }, from)
    }

    fn local_addr(&self) -> io::Result<SocketAddr> {
        self.listener.local_addr()
    }
}

/// A connection whose writes fail when the other side takes nothing.
#[derive(Debug)]
pub struct PatientStream<S> {
    stream: S,
    stalled: Option<Pin<Box<Sleep>>>,
    metrics: Metrics,
}

impl<S> PatientStream<S> {
    fn judge<T>(&mut self, cx: &mut Context<'_>, written: Poll<io::Result<T>>) -> Poll<io::Result<T>> {
        if written.is_ready() {
            self.stalled = None;
            return written;
        }
        let stalled = self.stalled.get_or_insert_with(|| Box::pin(sleep(PATIENCE)));
        ready!(stalled.as_mut().poll(cx));
        self.metrics.reader_dropped();
        Poll::Ready(Err(io::Error::new(io::ErrorKind::TimedOut, "the reader takes nothing")))
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for PatientStream<S> {
    fn poll_read(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &mut ReadBuf<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_read(cx, buf)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for PatientStream<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, buf: &[u8]) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write(cx, buf);
        self.judge(cx, written)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bufs: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        let written = Pin::new(&mut self.stream).poll_write_vectored(cx, bufs);
        self.judge(cx, written)
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
    use tokio::{
        io::{AsyncReadExt as _, AsyncWriteExt as _, duplex},
        time::Instant,
    };

    use super::*;

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_nothing_is_given_up_in_time() {
        let (near, _far) = duplex(16);
        let mut near = PatientStream { stream: near, stalled: None, metrics: Metrics::default() };
        let since = Instant::now();
        let error = near.write_all(&[0; 17]).await.unwrap_err();
        assert_eq!((error.kind(), since.elapsed()), (io::ErrorKind::TimedOut, PATIENCE));
    }

    #[tokio::test(start_paused = true)]
    async fn a_reader_that_takes_little_by_little_is_not() {
        let (near, mut far) = duplex(16);
        let mut near = PatientStream { stream: near, stalled: None, metrics: Metrics::default() };
        let reading = async {
            for _ in 0..4 {
                sleep(PATIENCE.mul_f32(0.9)).await;
                far.read_exact(&mut [0; 16]).await.unwrap();
            }
        };
        let (written, ()) = tokio::join!(near.write_all(&[0; 64]), reading);
        written.unwrap();
    }
}
