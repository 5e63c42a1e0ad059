//! What a job is and may become. Contents only.

pub mod budget;
pub mod chat;
mod expected_version;
pub mod field_errors;
pub mod gate;
pub mod heartbeat;
pub mod id_part;
pub mod job;
pub mod memory;
pub mod model_call;
pub mod request;
pub mod routine;
pub mod settings;
pub mod transcript;

pub use expected_version::ExpectedVersion;
