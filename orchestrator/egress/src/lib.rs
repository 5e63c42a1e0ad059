//! Outgoing connections that jobs and users ask for: which destinations are allowed, and the HTTP client that keeps to
//! it.
//!
//! `host`, `pattern`, `address` and `policy` decide and are pure. `client` dials exactly the addresses that were
//! decided on.

mod address;
mod client;
mod encoding;
mod host;
mod pattern;
mod policy;
mod request;

pub use client::{
    BodyEnd, EgressClient, EgressError, LookUp, OpenResponse, OutboundResponse, ResponseLimits, system_look_up,
};
pub use host::{Destination, Host, InvalidHost};
pub use pattern::{HostPattern, InvalidPattern};
pub use policy::{EgressDenied, EgressPolicy, EgressRecord, EgressRules};
pub use request::{InvalidRequest, OutboundRequest};
