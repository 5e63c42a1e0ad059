//! Users' secrets: sealed in the database with the master key, and opened for those parts of the process that need a
//! value. Contents only.

mod cache;
mod key_source;
mod leak_detectors;
mod master_key;
mod rotation;
mod sealed_store;
mod weak;

pub use cache::NamedSecret;
pub use key_source::{KeySource, MasterKeyError, key_path};
pub use leak_detectors::{DetectorError, LeakDetectors, search};
pub use master_key::MasterKey;
pub use rotation::{RotateError, Rotated, UnreadableSecrets, rotate};
pub use sealed_store::{SecretError, Secrets};
pub use weak::is_weak;
