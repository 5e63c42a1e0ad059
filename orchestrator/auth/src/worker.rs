//! Worker tokens of this install: issued for an attempt; only their digest is stored.

use std::{sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use protocol::{InstanceId, JobId};
use secrecy::SecretString;

use super::{SigningKey, TokenError, WORKER_TOKEN_SLACK, WorkerIdentity};
use base::digest::sha256_hex;

/// Issues and verifies worker tokens.
#[derive(Debug, Clone)]
pub struct WorkerTokens {
    key: Arc<SigningKey>,
    instance: InstanceId,
}

/// A token for one attempt.
#[derive(Debug)]
pub struct WorkerToken {
    /// The token, for the file that only its container can read.
    pub token: SecretString,
    /// Its digest, for the job's row.
    pub hash: String,
}

impl WorkerTokens {
    /// Creates the verifier and issuer of an install's tokens.
    pub fn new(key: Arc<SigningKey>, instance: InstanceId) -> Self {
        Self { key, instance }
    }

    /// Issues a token for an attempt that starts now and may take `timeout`.
    pub fn mint(
        &self,
        job: JobId,
        attempt: u32,
        now: DateTime<Utc>,
        timeout: Duration,
    ) -> Result<WorkerToken, TokenError> {
        let issued = self.key.issue_worker(self.instance, job, attempt, expires_at(now, timeout))?;
        let hash = sha256_hex(issued.token.as_bytes());
        Ok(WorkerToken { token: SecretString::from(issued.token), hash })
    }

    pub fn verify(&self, token: &str, now: DateTime<Utc>) -> Result<WorkerIdentity, TokenError> {
        self.key.verify_worker(token, self.instance, now)
    }
}

/// The expiry, clamped to the range of `DateTime`.
fn expires_at(start: DateTime<Utc>, timeout: Duration) -> DateTime<Utc> {
    let end = chrono::Duration::from_std(timeout).ok().and_then(|timeout| start.checked_add_signed(timeout));
    end.and_then(|end| end.checked_add_signed(WORKER_TOKEN_SLACK)).unwrap_or(DateTime::<Utc>::MAX_UTC)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const DAY: u64 = 86_400;

    #[rstest]
    #[case::a_short_job(60)]
    #[case::the_default_ceiling(DAY)]
    #[case::a_year(365 * DAY)]
    fn a_token_lives_as_long_as_its_job_may_and_a_day(#[case] timeout_seconds: u64) {
        let start = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        let key = Arc::new(SigningKey::from_secret(b"a test's own secret, at least 32 bytes"));
        let tokens = WorkerTokens::new(key, InstanceId::generate());
        let timeout = Duration::from_secs(timeout_seconds);
        let token = tokens.mint(JobId::generate(), 1, start, timeout).unwrap();
        let verified = |after: Duration| {
            use secrecy::ExposeSecret as _;
            tokens.verify(token.token.expose_secret(), start + after).map(drop)
        };
        assert_eq!(verified(timeout + Duration::from_secs(DAY - 1)), Ok(()));
        assert_eq!(verified(timeout + Duration::from_secs(DAY)), Err(TokenError::Expired));
    }

    #[test]
    fn a_time_limit_beyond_the_calendar_is_no_failure() {
        let start = DateTime::from_timestamp(1_700_000_000, 0).unwrap();
        assert_eq!(expires_at(start, Duration::from_secs(u64::MAX)), DateTime::<Utc>::MAX_UTC);
    }
}
