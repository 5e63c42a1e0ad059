//! Outgoing connections that jobs and users ask for: which destinations are allowed, and the HTTP client and the plain
//! connections that keep to it.
//!
//! `host`, `pattern`, `presets`, `address`, `policy`, `names` and `hello` decide and are pure. `client` and `connect` dial exactly the
//! addresses that were decided on.

mod address;
mod client;
mod connect;
mod encoding;
mod hello;
mod host;
mod look_up;
mod names;
mod pattern;
mod policy;
mod presets;
mod request;

pub use client::{BodyEnd, EgressClient, EgressError, OpenResponse, OutboundResponse, ResponseLimits};
pub use hello::{Hello, HelloReader, is_name_of};
pub use host::{Destination, Host, InvalidHost};
pub use look_up::{LookUp, system_look_up};
pub use names::names;
pub use pattern::{HostPattern, InvalidPattern};
pub use policy::{EgressDenied, EgressPolicy, EgressRecord, EgressRules, Protocol};
pub use presets::{InvalidPreset, Presets, UnknownPreset};
pub use request::{InvalidRequest, OutboundRequest};
