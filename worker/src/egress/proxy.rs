//! The proxy inside the container: `CONNECT`, and requests in absolute form.
//!
//! Reads no more than the first line of a request, and never passes on one that the worker API could answer: with the
//! credentials it would be a call of the session.

use std::{io, time::Duration};

use tokio::{
    io::{AsyncWriteExt as _, copy},
    net::TcpStream,
    time::timeout,
};

use super::upstream::{self, Upstream, read_head, read_more};

/// Maximum time until the first line of a request is there.
const HEAD_TIMEOUT: Duration = Duration::from_secs(10);
const ESTABLISHED: &[u8] = b"HTTP/1.1 200 Connection established\r\n\r\n";
const BAD_REQUEST: &[u8] = b"HTTP/1.1 400 Bad Request\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
this is the egress proxy of a job: it takes CONNECT and requests in absolute form\n";
const UNREACHABLE: &[u8] = b"HTTP/1.1 503 Service Unavailable\r\ncontent-type: text/plain\r\nconnection: close\r\n\r\n\
the orchestrator cannot be reached; try again in a moment\n";

/// What a request asks for.
#[derive(Debug, PartialEq, Eq)]
enum Asked {
    /// A connection to `host:port`.
    Connect(String),
    /// A resource of a host, in absolute form.
    Resource,
    Invalid,
}

/// Answers one request and, for `CONNECT`, carries what follows.
pub(super) async fn serve(mut client: TcpStream, upstream: &Upstream) -> io::Result<()> {
    let mut received = Vec::new();
    let line = timeout(HEAD_TIMEOUT, first_line(&mut client, &mut received)).await;
    let line = line.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
    match asked(&received[..line]) {
        Asked::Invalid => client.write_all(BAD_REQUEST).await,
        Asked::Resource => match upstream.request(&received[..line]).await {
            Ok(mut tunnel) => upstream::copy(&mut client, &received[line..], &mut tunnel).await,
            Err(_) => client.write_all(UNREACHABLE).await,
        },
        Asked::Connect(host) => {
            let head = timeout(HEAD_TIMEOUT, read_head(&mut client, received)).await;
            let (_, first) = head.map_err(|_| io::Error::from(io::ErrorKind::TimedOut))??;
            match upstream.connect(&host).await {
                Ok(mut tunnel) if tunnel.is_open => {
                    client.write_all(ESTABLISHED).await?;
                    upstream::copy(&mut client, &first, &mut tunnel).await
                }
                // The refusal, with its reason.
                Ok(mut tunnel) => {
                    client.write_all(&tunnel.head).await?;
                    client.write_all(&tunnel.rest).await?;
                    copy(&mut tunnel.stream, &mut client).await.map(drop)
                }
                Err(_) => client.write_all(UNREACHABLE).await,
            }
        }
    }
}

/// Reads until the first line is there; returns its length with its end.
async fn first_line(client: &mut TcpStream, received: &mut Vec<u8>) -> io::Result<usize> {
    loop {
        if let Some(at) = received.iter().position(|byte| *byte == b'\n') {
            return Ok(at + 1);
        }
        read_more(client, received).await?;
    }
}

fn asked(line: &[u8]) -> Asked {
    let line = line.strip_suffix(b"\r\n").and_then(|line| std::str::from_utf8(line).ok()).unwrap_or_default();
    let mut parts = line.split(' ');
    let (Some(method), Some(target), Some("HTTP/1.1" | "HTTP/1.0"), None) =
        (parts.next(), parts.next(), parts.next(), parts.next())
    else {
        return Asked::Invalid;
    };
    let is_method = !method.is_empty() && method.bytes().all(|byte| byte.is_ascii_uppercase());
    if !is_method || !target.bytes().all(|byte| byte.is_ascii_graphic()) {
        return Asked::Invalid;
    }
    let has_scheme = |scheme: &str| target.get(..scheme.len()).is_some_and(|start| start.eq_ignore_ascii_case(scheme));
    match method {
        // A path would not be for another host.
        "CONNECT" if !target.contains('/') => Asked::Connect(target.to_owned()),
        "CONNECT" => Asked::Invalid,
        _ if has_scheme("http://") || has_scheme("https://") => Asked::Resource,
        _ => Asked::Invalid,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("CONNECT a.example:443 HTTP/1.1\r\n", Asked::Connect("a.example:443".to_owned()))]
    #[case("GET http://a.example/x HTTP/1.1\r\n", Asked::Resource)]
    #[case("GET HTTP://a.example/ HTTP/1.0\r\n", Asked::Resource)]
    #[case("POST https://a.example/ HTTP/1.1\r\n", Asked::Resource)]
    // What the worker API would answer.
    #[case("POST /worker/01936f2e-8a4b-7c3d-9e1f-0123456789ab/complete HTTP/1.1\r\n", Asked::Invalid)]
    #[case("CONNECT /worker/01936f2e-8a4b-7c3d-9e1f-0123456789ab/job HTTP/1.1\r\n", Asked::Invalid)]
    #[case("GET /http://a.example/ HTTP/1.1\r\n", Asked::Invalid)]
    #[case("GET * HTTP/1.1\r\n", Asked::Invalid)]
    #[case("PRI * HTTP/2.0\r\n", Asked::Invalid)]
    #[case("GET http://a.example/ HTTP/1.1\n", Asked::Invalid)]
    #[case("GET http://a.example/ /worker HTTP/1.1\r\n", Asked::Invalid)]
    #[case("GET\thttp://a.example/ HTTP/1.1\r\n", Asked::Invalid)]
    #[case("GET http://a.example/\rX: y HTTP/1.1\r\n", Asked::Invalid)]
    #[case("CONNECT a.example\0:443 HTTP/1.1\r\n", Asked::Invalid)]
    #[case("get http://a.example/ HTTP/1.1\r\n", Asked::Invalid)]
    #[case("\r\n", Asked::Invalid)]
    fn only_requests_for_other_hosts_are_passed_on(#[case] line: &str, #[case] expected: Asked) {
        assert_eq!(asked(line.as_bytes()), expected);
    }
}
