//! Connections on the job's socket that are carried to other hosts.
//!
//! Owns the credentials that they begin with. Never logs them.

use std::{io, path::PathBuf, time::Duration};

use protocol::SESSION_HEADER;
use tokio::{
    io::{AsyncRead, AsyncReadExt as _, AsyncWriteExt as _, copy_bidirectional_with_sizes},
    net::{TcpStream, UnixStream},
    time::{sleep, timeout},
};

use crate::session::secret::SessionSecret;

/// The head of a request or a response.
pub(super) const MAX_HEAD_BYTES: usize = 64 * 1024;
/// Buffer of a connection in each direction.
const BUFFER_BYTES: usize = 32 * 1024;
/// Maximum time until the socket has accepted a connection.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Retry delay for a socket whose backlog is full.
const BACKLOG_RETRY: Duration = Duration::from_millis(5);
/// The orchestrator dials for up to 20 s.
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);

/// Opens connections to other hosts.
pub(crate) struct Upstream {
    socket: PathBuf,
    /// Lines of a head.
    credentials: String,
}

/// The answer to `CONNECT`.
pub(super) struct Tunnel {
    pub(super) stream: UnixStream,
    /// Whether the connection to the host is there.
    pub(super) is_open: bool,
    /// The head of the answer.
    pub(super) head: Vec<u8>,
    /// What came behind it.
    pub(super) rest: Vec<u8>,
}

impl Upstream {
    pub(crate) fn new(socket: PathBuf, token: &str, session: &SessionSecret) -> Self {
        let (token, session) = (token.trim(), session.expose());
        Self { socket, credentials: format!("proxy-authorization: Bearer {token}\r\n{SESSION_HEADER}: {session}\r\n") }
    }

    /// Asks for a connection to `host:port`.
    pub(super) async fn connect(&self, host: &str) -> io::Result<Tunnel> {
        let mut stream = self.open().await?;
        let request = format!("CONNECT {host} HTTP/1.1\r\nhost: {host}\r\n{}\r\n", self.credentials);
        stream.write_all(request.as_bytes()).await?;
        let answer = timeout(ANSWER_TIMEOUT, read_head(&mut stream, Vec::new())).await;
        let (head, rest) = answer.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
        let is_open = head.starts_with(b"HTTP/1.1 200");
        Ok(Tunnel { stream, is_open, head, rest })
    }

    /// A connection that begins with this line of a request and the credentials.
    pub(super) async fn request(&self, line: &[u8]) -> io::Result<Tunnel> {
        let mut stream = self.open().await?;
        stream.write_all(&[line, self.credentials.as_bytes()].concat()).await?;
        Ok(Tunnel { stream, is_open: true, head: Vec::new(), rest: Vec::new() })
    }

    /// Connects, and retries while the backlog is full.
    async fn open(&self) -> io::Result<UnixStream> {
        let connecting = async {
            loop {
                match UnixStream::connect(&self.socket).await {
                    Err(error) if error.kind() == io::ErrorKind::WouldBlock => sleep(BACKLOG_RETRY).await,
                    connected => return connected,
                }
            }
        };
        timeout(CONNECT_TIMEOUT, connecting).await.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))?
    }
}

/// Reads up to the end of a head: the head, and what came behind it.
pub(super) async fn read_head(
    stream: &mut (impl AsyncRead + Unpin),
    mut received: Vec<u8>,
) -> io::Result<(Vec<u8>, Vec<u8>)> {
    const END: &[u8] = b"\r\n\r\n";
    let mut searched = 0;
    loop {
        if let Some(at) = received[searched..].windows(END.len()).position(|window| window == END) {
            let rest = received.split_off(searched + at + END.len());
            return Ok((received, rest));
        }
        searched = received.len().saturating_sub(END.len() - 1);
        read_more(stream, &mut received).await?;
    }
}

/// Reads what is there. An error at the end and beyond the size of a head.
pub(super) async fn read_more(stream: &mut (impl AsyncRead + Unpin), received: &mut Vec<u8>) -> io::Result<()> {
    if received.len() > MAX_HEAD_BYTES {
        return Err(io::Error::other("the head is too large"));
    }
    if stream.read_buf(received).await? == 0 {
        return Err(io::ErrorKind::UnexpectedEof.into());
    }
    Ok(())
}

/// Carries both directions to their ends. `first` was read from the client already.
pub(super) async fn copy(client: &mut TcpStream, first: &[u8], tunnel: &mut Tunnel) -> io::Result<()> {
    tunnel.stream.write_all(first).await?;
    client.write_all(&tunnel.rest).await?;
    copy_bidirectional_with_sizes(client, &mut tunnel.stream, BUFFER_BYTES, BUFFER_BYTES).await?;
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn a_head_ends_at_its_empty_line_however_it_comes() {
        let whole: &[u8] = b"HTTP/1.1 200 OK\r\ndate: x\r\n\r\n\x16\x03";
        for split in 0..whole.len() - 2 {
            let (first, mut rest) = whole.split_at(split);
            let (head, _) = read_head(&mut rest, first.to_vec()).await.unwrap();
            assert!(head.ends_with(b"x\r\n\r\n") && head.len() == whole.len() - 2, "{split}");
        }
        assert!(read_head(&mut &b"HTTP/1.1 200"[..], Vec::new()).await.is_err());
        let endless = vec![b'x'; 2 * MAX_HEAD_BYTES];
        assert!(read_head(&mut endless.as_slice(), Vec::new()).await.is_err());
    }
}
