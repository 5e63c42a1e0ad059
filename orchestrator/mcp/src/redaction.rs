//! What a server sent, without the secrets of the connection and of the user.
//!
//! Guarantees that text of a server is searched before it is cut and before it leaves this module: every answer,
//! definition and error is made with a [`Redaction`]. The connection's secrets may be those of another user than the
//! one who calls.

use std::sync::Arc;

use agent::safety::LeakDetector;
use serde_json::Value;

use super::{credentials::Credentials, error::McpError};

/// Finds the secrets of one connection and of its user. Clones share the detectors.
#[derive(Clone)]
pub(super) struct Redaction {
    server: String,
    credentials: Arc<Credentials>,
    user: Arc<LeakDetector>,
}

impl Redaction {
    /// A redaction of this server's texts with the connection's credentials and the detector of its user.
    pub(super) const fn new(server: String, credentials: Arc<Credentials>, user: Arc<LeakDetector>) -> Self {
        Self { server, credentials, user }
    }

    /// The text without secrets.
    pub(super) fn text(&self, text: &str) -> String {
        let mut text = self.user.redact(text).0;
        if let Some(detector) = &self.credentials.detector {
            text = detector.redact(&text).0.into_owned().into();
        }
        text.into_owned()
    }

    /// Removes the secrets from a value, its keys included.
    pub(super) fn json(&self, value: &mut Value) {
        for detector in std::iter::once(&*self.user).chain(&self.credentials.detector) {
            let _findings = detector.redact_json(value);
        }
    }

    /// Reads what a server sent, off the runtime's threads: it can have 4 MiB.
    pub(super) async fn read<T: Send + 'static>(
        &self,
        read: impl FnOnce(&Self) -> T + Send + 'static,
    ) -> Result<T, McpError> {
        let redaction = self.clone();
        let read = tokio::task::spawn_blocking(move || read(&redaction)).await;
        // It fails only while the process ends.
        read.map_err(|_| McpError::InvalidAnswer { server: self.server.clone() })
    }
}

#[cfg(test)]
mod tests {
    use agent::safety::StoredSecret;
    use serde_json::json;

    use super::*;

    fn detector(value: &str) -> LeakDetector {
        LeakDetector::new([StoredSecret { name: "s", value }]).unwrap()
    }

    #[test]
    fn secrets_of_the_connection_and_of_the_user_are_removed() {
        let credentials = Credentials { detector: Some(detector("the-token-of-ops")), ..Credentials::default() };
        let redaction = Redaction::new("srv".to_owned(), Arc::new(credentials), Arc::new(detector("adas-own-token")));
        assert_eq!(redaction.text("adas-own-token the-token-of-ops x"), "[redacted] [redacted] x");
        let mut value = json!({"adas-own-token": ["the-token-of-ops"]});
        redaction.json(&mut value);
        assert_eq!(value, json!({"[redacted]": ["[redacted]"]}));
    }
}
