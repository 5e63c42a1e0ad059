//! What the orchestrator and the command line both need: the clock, the environment, time zones, digests, key files, rate
//! limits, fair queues, per-user permits, and the points at which a fault test kills the process. Contents only.

pub mod clock;
pub mod digest;
mod environment;
mod error_chain;
pub mod failpoint;
pub mod fair_queue;
pub mod key_file;
pub mod per_user_semaphore;
pub mod rate_limit;
mod url;
pub mod zone;

pub use environment::Environment;
pub use error_chain::error_chain;
pub use url::mask_urls;
pub use zone::Zone;
