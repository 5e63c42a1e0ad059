//! Worker tokens of this install: made for an attempt, remembered only as a digest.

use std::sync::Arc;

use chrono::{DateTime, Utc};
use protocol::{InstanceId, JobId};
use secrecy::SecretString;
use sha2::{Digest, Sha256};

use super::{SigningKey, TokenError, WorkerIdentity};

/// Makes and reads them.
#[derive(Debug, Clone)]
pub struct WorkerTokens {
    key: Arc<SigningKey>,
    instance: InstanceId,
}

/// A token for one attempt.
#[derive(Debug)]
pub struct WorkerToken {
    /// For the file that only its container sees.
    pub token: SecretString,
    /// For the job's row.
    pub hash: String,
}

impl WorkerTokens {
    /// Of this install.
    pub fn new(key: Arc<SigningKey>, instance: InstanceId) -> Self {
        Self { key, instance }
    }

    /// Makes one.
    pub fn mint(&self, job: JobId, attempt: u32, now: DateTime<Utc>) -> Result<WorkerToken, TokenError> {
        let issued = self.key.issue_worker(self.instance, job, attempt, now)?;
        let hash = digest(issued.token.as_bytes());
        Ok(WorkerToken { token: SecretString::from(issued.token), hash })
    }

    /// Reads one.
    pub fn verify(&self, token: &str, now: DateTime<Utc>) -> Result<WorkerIdentity, TokenError> {
        self.key.verify_worker(token, self.instance, now)
    }
}

/// SHA-256 in hex.
pub fn digest(bytes: &[u8]) -> String {
    use std::fmt::Write as _;
    let mut hex = String::with_capacity(64);
    for byte in Sha256::digest(bytes) {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
    }
    hex
}
