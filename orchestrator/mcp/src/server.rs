//! The servers of the configuration, with their URLs checked.

use std::time::Duration;

use config::{McpServerSettings, McpTransport};
use egress::{Destination, InvalidRequest, OutboundRequest};
use protocol::{ApprovalRequirement, McpTransportKind};

use super::{client::CONNECT_TIMEOUT, progress::MAX_FACTOR};

/// Time for a call to be cancelled and for a ping.
const MARGIN: Duration = Duration::from_secs(15);

/// A server of the configuration.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfiguredServer {
    pub name: String,
    pub kind: McpTransportKind,
    /// The URL without its query, or the image.
    pub address: String,
    /// The approval that a call of its tools needs.
    pub requirement: ApprovalRequirement,
    /// Time for a call in which the server gives no sign of life.
    pub(super) timeout: Duration,
    pub(super) transport: McpTransport,
    /// Where its URL leads; `None` for a server in a container.
    pub(super) destination: Option<Destination>,
}

/// A server whose URL cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum InvalidServer {
    #[error("the MCP server {server}: {source}")]
    Url { server: String, source: InvalidRequest },
}

impl ConfiguredServer {
    pub fn new(settings: &McpServerSettings) -> Result<Self, InvalidServer> {
        let McpServerSettings { name, transport, requirement, timeout } = settings.clone();
        let (kind, address, destination) = match &transport {
            McpTransport::Http { url, .. } => {
                let destination = OutboundRequest::new("POST", url).and_then(|request| request.destination());
                let destination = destination.map_err(|source| InvalidServer::Url { server: name.clone(), source })?;
                let address = url.split(['?', '#']).next().unwrap_or_default().to_owned();
                (McpTransportKind::Http, address, Some(destination))
            }
            McpTransport::Stdio { image, .. } => (McpTransportKind::Stdio, image.clone(), None),
        };
        Ok(Self { name, kind, address, requirement, timeout, transport, destination })
    }
    /// Greatest length of a call, with all that is waited for besides the answer.
    pub fn max_call_time(&self) -> Duration {
        CONNECT_TIMEOUT + self.timeout * MAX_FACTOR + MARGIN
    }
}
