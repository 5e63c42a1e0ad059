//! The dispatcher: makes containers match the database. Contents only.

mod apply;
mod disk;
mod dispatcher;
pub mod plan;
mod pulse;
mod sandbox;
mod sockets;

pub use disk::{DiskGauge, DiskSweep, Overfull, Violation};
pub use dispatcher::{Dispatcher, DispatcherSettings, Wake};
pub use pulse::{InFlight, Pulse, Signs};
pub use sandbox::{Prober, Sandbox};
pub use sockets::{ServeSocket, SocketJob, Sockets, TokenFiles};
