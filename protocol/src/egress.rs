//! What a job's container reaches through the egress proxy: the proxy's address, the names of the job's hosts inside the
//! container, and the counts of the decisions.

use std::net::{Ipv4Addr, SocketAddrV4};

use serde::{Deserialize, Serialize};

use crate::{EgressDecision, names::wire_enum};

/// Where the worker listens for requests to the proxy, inside the container.
pub const PROXY_ADDRESS: SocketAddrV4 = SocketAddrV4::new(Ipv4Addr::LOCALHOST, 3128);

/// The header of the proxy's refusals.
pub const EGRESS_HEADER: &str = "x-gantry-egress";

/// Maximum number of hosts that have an address inside the container.
pub const MAX_EGRESS_NAMES: usize = 64;

/// A host and port of the job's list, and the loopback address that the name has inside the container.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct EgressName {
    /// The host's name.
    pub host: String,
    /// The port of the entry.
    pub port: u16,
    /// The same for all ports of a host.
    pub address: Ipv4Addr,
}

wire_enum! {
    /// The part of a job in which a connection was asked for. Each has its own list.
    #[derive(Default)]
    pub enum EgressPhase {
        /// The agent works.
        #[default]
        Agent,
        /// A name that this version does not know.
        #[serde(other)]
        Unknown,
    }
}

/// `GET /api/jobs/{id}/egress`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct JobEgress {
    /// The part of the job whose list applies.
    pub phase: EgressPhase,
    /// The entries of that list.
    pub allowed: Vec<String>,
    /// What was decided and carried, by destination; the refused ones first, then those with the most bytes.
    pub counters: Vec<EgressCounter>,
    /// Whether `counters` has all. False until the job has completed, since repetitions and bytes are added every 10
    /// seconds, and where there are more than 1000 destinations.
    pub is_complete: bool,
}

/// The decisions of one kind about one destination.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct EgressCounter {
    /// The part of the job.
    pub phase: EgressPhase,
    /// The requested host.
    pub host: String,
    /// The port.
    pub port: u16,
    /// Whether the connections were allowed.
    pub decision: EgressDecision,
    /// The entry of the list that allows them, or what refuses them.
    pub rule: String,
    /// How many decisions.
    pub count: u64,
    /// Bytes that were sent.
    pub bytes_up: u64,
    /// Bytes that were received.
    pub bytes_down: u64,
}
