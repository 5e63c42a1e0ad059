//! Plain connections to destinations that the policy allows, for the egress proxy.
//!
//! Dials exactly the addresses that were decided on, and never speaks on the connection.

use std::{io, net::SocketAddr, time::Duration};

use tokio::{
    net::TcpStream,
    task::JoinSet,
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

impl EgressClient {
    /// Connects to a destination under these rules. The name is resolved once, all addresses are checked, and they are
    /// dialled in order.
    pub async fn connect(&self, rules: &EgressRules<'_>, to: &Destination) -> Result<TcpStream, EgressError> {
        let addresses = self.addresses(rules, to).await?;
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
    let mut failure = None;
    loop {
        if let Some(address) = remaining.next() {
            trying.spawn(TcpStream::connect(address));
        }
        let next = async {
            if remaining.len() == 0 {
                std::future::pending::<()>().await;
            } else {
                sleep(NEXT_ADDRESS_AFTER).await;
            }
        };
        tokio::select! {
            biased;
            ended = trying.join_next() => match ended {
                Some(Ok(Ok(stream))) => return Ok(stream),
                Some(Ok(Err(error))) => failure = Some(error),
                Some(Err(_)) => {}
                None => return Err(failure.unwrap_or_else(|| io::ErrorKind::NotConnected.into())),
            },
            () = next => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use tokio::net::TcpListener;

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

    #[tokio::test]
    async fn an_address_is_dialled_only_if_the_ceiling_names_it() {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let port = listener.local_addr().unwrap().port();
        for (ceiling, connects) in [(format!("127.0.0.1:{port}"), true), (format!("*:{port}"), false)] {
            let policy = Arc::new(EgressPolicy::new(&[ceiling], vec![]).unwrap());
            let client = EgressClient::new(Arc::clone(&policy), system_look_up());
            let to = Destination { host: Host::parse("127.0.0.1").unwrap(), port };
            let connected = client.connect(&policy.rules(), &to).await;
            assert_eq!(connected.is_ok(), connects, "{connected:?}");
        }
    }
}
