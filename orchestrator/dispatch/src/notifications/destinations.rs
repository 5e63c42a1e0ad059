//! Where notifications may be posted: the operator's `notify_allow`.
//!
//! Owns the check of a URL when a routine names it. The addresses behind it are checked when it is dialled.

use std::{net::SocketAddr, sync::Arc};

use egress::{EgressClient, EgressDenied, EgressError, EgressPolicy, InvalidPattern, LookUp, OutboundRequest};

/// Maximum length of a URL.
const MAX_URL_BYTES: usize = 2_048;

/// The destinations of notifications.
#[derive(Clone)]
pub struct NotificationDestinations {
    client: EgressClient,
}

/// A URL that notifications are not posted to.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum InvalidDestination {
    #[error("must have at most {MAX_URL_BYTES} bytes")]
    TooLong,
    /// It is no URL of a server.
    #[error("must be a URL of an HTTP server: {0}")]
    Url(String),
    /// The operator allows no destination.
    #[error("cannot be used: the operator allows no destinations of notifications (notify_allow)")]
    NoneAllowed,
    /// The operator does not allow this destination.
    #[error("is not allowed by the operator (notify_allow)")]
    NotAllowed,
}

impl NotificationDestinations {
    /// The destinations of this list. `own` are the orchestrator's addresses, which are never dialled. An error names
    /// the entry by its index.
    pub fn new(allow: &[String], own: Vec<SocketAddr>, look_up: LookUp) -> Result<Self, (usize, InvalidPattern)> {
        let policy = EgressPolicy::new(allow, own)?;
        Ok(Self { client: EgressClient::new(Arc::new(policy), look_up) })
    }

    /// Checks a URL that a routine names.
    pub fn check(&self, url: &str) -> Result<(), InvalidDestination> {
        if url.len() > MAX_URL_BYTES {
            return Err(InvalidDestination::TooLong);
        }
        let destination = OutboundRequest::new("POST", url).and_then(|request| request.destination());
        let destination = destination.map_err(|error| InvalidDestination::Url(error.to_string()))?;
        if self.client.policy().is_empty() {
            return Err(InvalidDestination::NoneAllowed);
        }
        self.client.policy().rules().check_destination(&destination).map_err(|_| InvalidDestination::NotAllowed)
    }

    /// Sends a request, and returns the status of its answer. Follows no redirect.
    pub(crate) async fn send(&self, request: &OutboundRequest) -> Result<u16, SendError> {
        let answer = self.client.open(&self.client.policy().rules(), request).await;
        answer.map(|answer| answer.status()).map_err(|error| match error {
            EgressError::Denied(EgressDenied::AboveCeiling(_) | EgressDenied::NotListed(_)) => {
                SendError::Refused(InvalidDestination::NotAllowed.to_string())
            }
            EgressError::Denied(_) | EgressError::Invalid(_) => SendError::Refused(error.to_string()),
            EgressError::Unresolved(_) | EgressError::Transport { is_unsent: true, .. } => {
                SendError::NotSent(error.to_string())
            }
            other => SendError::NoAnswer(other.to_string()),
        })
    }
}

/// A request without an answer.
#[derive(Debug)]
pub(crate) enum SendError {
    /// The destination is not allowed.
    Refused(String),
    /// There was no connection: nothing was sent.
    NotSent(String),
    /// There was a connection and no answer: the receiver may have accepted the request.
    NoAnswer(String),
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[], "https://hooks.example/a", "allows no destinations")]
    #[case(&["*.example"], "https://hooks.example/a?b=c", "")]
    #[case(&["*.example"], "https://hooks.example:8443/", "not allowed by the operator")]
    #[case(&["*.example"], "https://other.test/", "not allowed by the operator")]
    #[case(&["*"], "file:///etc/passwd", "must be a URL")]
    #[case(&["*"], "https://user:secret@hooks.example/", "must be a URL")]
    fn destinations_are_those_that_the_operator_allows(
        #[case] allow: &[&str],
        #[case] url: &str,
        #[case] expected: &str,
    ) {
        let allow: Vec<String> = allow.iter().map(|entry| (*entry).to_owned()).collect();
        let destinations = NotificationDestinations::new(&allow, vec![], egress::system_look_up()).unwrap();
        match destinations.check(url) {
            Ok(()) => assert_eq!(expected, ""),
            Err(error) => assert!(!expected.is_empty() && error.to_string().contains(expected), "{error}"),
        }
    }
}
