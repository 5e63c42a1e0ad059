//! The worker's session of a job's current attempt.
//!
//! Decides whether a call's secret is accepted. Sees only digests of secrets.

/// The session that a call must belong to, besides its token.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub enum WorkerSession {
    /// Nothing: the attempt was begun by a version without sessions, or there is none.
    #[default]
    NotRequired,
    /// A secret; the first one opens the session.
    Unopened,
    /// The secret with this SHA-256.
    Open(String),
}

/// The result of comparing a call's secret with the session.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SessionMatch {
    /// The call is the worker's.
    Same,
    Opens,
    /// It is not the worker's.
    Rejected,
}

impl WorkerSession {
    /// Compares the SHA-256 of a call's secret with the session.
    pub fn matches(&self, secret_hash: Option<&str>) -> SessionMatch {
        match (self, secret_hash) {
            (Self::NotRequired, _) => SessionMatch::Same,
            (Self::Unopened, Some(_)) => SessionMatch::Opens,
            (Self::Open(known), Some(given)) if known == given => SessionMatch::Same,
            (Self::Unopened, None) | (Self::Open(_), _) => SessionMatch::Rejected,
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::older_version(WorkerSession::NotRequired, None, SessionMatch::Same)]
    #[case::older_version_with_a_secret(WorkerSession::NotRequired, Some("a"), SessionMatch::Same)]
    #[case::first(WorkerSession::Unopened, Some("a"), SessionMatch::Opens)]
    #[case::first_without_a_secret(WorkerSession::Unopened, None, SessionMatch::Rejected)]
    #[case::same(WorkerSession::Open("a".to_owned()), Some("a"), SessionMatch::Same)]
    #[case::other(WorkerSession::Open("a".to_owned()), Some("b"), SessionMatch::Rejected)]
    #[case::missing(WorkerSession::Open("a".to_owned()), None, SessionMatch::Rejected)]
    fn sessions(#[case] session: WorkerSession, #[case] given: Option<&str>, #[case] expected: SessionMatch) {
        assert_eq!(session.matches(given), expected);
    }
}
