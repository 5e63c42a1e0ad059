//! Plain connections to destinations that the policy allows, for the egress proxy.
//!
//! Dials exactly the addresses that were decided on, and never speaks on the connection.

use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::TcpStream,
    sync::Semaphore,
    task::{AbortHandle, JoinSet},
    time::{sleep, timeout},
};

use super::{
    client::{EgressClient, EgressError},
    host::Destination,
    policy::EgressRules,
};

/// Maximum time until there is a connection, with all addresses.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// An address that has not answered by then is tried beside the next one.
const NEXT_ADDRESS_AFTER: Duration = Duration::from_millis(250);
/// Addresses that are tried at once. Each is a descriptor.
const MAX_DIALLED: usize = 3;
/// While so many are tried and there is another one, the oldest is given up after this long.
const GIVE_UP_AFTER: Duration = Duration::from_secs(1);

impl EgressClient {
    /// Resolves the name of a destination once, and checks all addresses under these rules. A name takes one of the
    /// permits.
    pub async fn resolve(
        &self,
        rules: &EgressRules<'_>,
        to: &Destination,
        look_ups: &Arc<Semaphore>,
    ) -> Result<Vec<SocketAddr>, EgressError> {
        self.addresses(rules, to, Some(look_ups)).await
    }

    /// Connects to one of the addresses that a destination was resolved to, which are dialled in order.
    pub async fn connect(&self, to: &Destination, addresses: Vec<SocketAddr>) -> Result<TcpStream, EgressError> {
        let dialled = timeout(CONNECT_TIMEOUT, dial(addresses)).await;
        let dialled = dialled.unwrap_or_else(|_| Err(io::ErrorKind::TimedOut.into()));
        let stream = dialled.map_err(|error| EgressError::Transport {
            destination: to.clone(),
            is_unsent: true,
            message: error.to_string(),
        })?;
        // Both ends decide how much they send at once.
        let _ = stream.set_nodelay(true);
        Ok(stream)
    }
}

/// The first connection to one of the addresses. Those that are still being tried are given up with it.
async fn dial(addresses: Vec<SocketAddr>) -> io::Result<TcpStream> {
    let mut remaining = addresses.into_iter();
    let mut trying = JoinSet::new();
    let mut attempts: VecDeque<AbortHandle> = VecDeque::new();
    let mut failure = None;
    loop {
        attempts.retain(|attempt| !attempt.is_finished());
        if trying.len() < MAX_DIALLED
            && let Some(address) = remaining.next()
        {
            attempts.push_back(trying.spawn(TcpStream::connect(address)));
        }
        let is_full = trying.len() >= MAX_DIALLED;
        let next = async {
            if remaining.len() == 0 {
                std::future::pending::<()>().await;
            }
            sleep(if is_full { GIVE_UP_AFTER } else { NEXT_ADDRESS_AFTER }).await;
        };
        tokio::select! {
            biased;
            ended = trying.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failure = Some(error),
                Some(Err(_)) => {}
                None => return Err(failure.unwrap_or_else(|| io::ErrorKind::NotConnected.into())),
            },
            () = next => {
                if is_full && let Some(oldest) = attempts.pop_front() {
                    oldest.abort();
                }
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use tokio::net::{TcpListener, TcpSocket};

    use super::*;
    use crate::{EgressPolicy, Host, system_look_up};

    #[tokio::test]
    async fn addresses_are_tried_until_one_answers() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let answering = listener.local_addr().unwrap();
        // Nothing listens on another address of this host.
        let refusing = SocketAddr::new("127.0.0.9".parse().unwrap(), answering.port());
        let stream = dial(vec![refusing, answering]).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), answering);
        assert_eq!(dial(vec![refusing]).await.unwrap_err().kind(), io::ErrorKind::ConnectionRefused);
        assert_eq!(dial(vec![]).await.unwrap_err().kind(), io::ErrorKind::NotConnected);
    }

    /// An address that lets no connection through, with what keeps it so: its queue is full.
    async fn silent() -> (SocketAddr, TcpListener, Vec<TcpStream>) {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind("127.0.0.1:0".parse().unwrap()).unwrap();
        let listener = socket.listen(1).unwrap();
        let address = listener.local_addr().unwrap();
        let mut waiting = Vec::new();
        while let Ok(connected) = timeout(Duration::from_millis(200), TcpStream::connect(address)).await {
            waiting.push(connected.unwrap());
        }
        (address, listener, waiting)
    }

    #[tokio::test]
    async fn addresses_that_do_not_answer_keep_out_none_of_the_others() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let silent = [silent().await, silent().await, silent().await, silent().await];
        let mut addresses: Vec<SocketAddr> = silent.iter().map(|(address, ..)| *address).collect();
        addresses.push(listener.local_addr().unwrap());
        let stream = dial(addresses).await.unwrap();
        assert_eq!(stream.peer_addr().unwrap(), listener.local_addr().unwrap());
    }

    #[tokio::test]
    async fn an_address_is_dialled_only_if_the_ceiling_names_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for (ceiling, connects) in [(format!("127.0.0.1:{port}"), true), (format!("*:{port}"), false)] {
            let policy = Arc::new(EgressPolicy::new(&[ceiling], vec![]).unwrap());
            let client = EgressClient::new(Arc::clone(&policy), system_look_up());
            let to = Destination { host: Host::parse("127.0.0.1").unwrap(), port };
            let resolved = client.resolve(&policy.rules(), &to, &Arc::new(Semaphore::new(1))).await;
            assert_eq!(resolved.is_ok(), connects, "{resolved:?}");
            if let Ok(addresses) = resolved {
                client.connect(&to, addresses).await.unwrap();
            }
        }
    }
}
