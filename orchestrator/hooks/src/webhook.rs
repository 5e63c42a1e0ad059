//! A hook that is a server: the signed request, and its answer.
//!
//! Owns the request and what counts as an answer; `domain/routine/signature` signs it (Standard Webhooks). Follows no
//! redirect. The server that the operator names is the only destination; the addresses that may be dialled are the
//! egress client's decision.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use chrono::{DateTime, Utc};
use config::WebhookSettings;
use domain::routine::signature::standard_signature;
use egress::{EgressClient, EgressError, EgressPolicy, LookUp, OutboundRequest};
use secrecy::{ExposeSecret as _, SecretSlice};
use serde::Deserialize;
use serde_json::Value;

/// Maximum size of an answer: arguments of a tool call have at most 256 KiB, and JSON may write a byte as six.
const MAX_ANSWER_BYTES: usize = 2 * 1024 * 1024;
/// Maximum length of a reason in characters. What is longer is cut.
const MAX_REASON_CHARS: usize = 500;

/// A server that decides.
pub(super) struct Webhook {
    request: OutboundRequest,
    client: EgressClient,
    key: SecretSlice<u8>,
    timeout: Duration,
    pub(super) fails_open: bool,
}

/// A server's answer.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct Answer {
    pub(super) decision: Decision,
    pub(super) reason: Option<String>,
    pub(super) parameters: Option<Value>,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub(super) enum Decision {
    Allow,
    Deny,
}

/// A request without a valid answer.
#[derive(Debug, thiserror::Error)]
pub(super) enum WebhookError {
    #[error("no answer within {} s", .0.as_secs())]
    Timeout(Duration),
    #[error(transparent)]
    Egress(#[from] EgressError),
    #[error("status {0}")]
    Status(u16),
    #[error("the answer has more than {MAX_ANSWER_BYTES} bytes")]
    TooLarge,
    #[error("the answer is not {{\"decision\": \"allow\" or \"deny\", \"reason\"?, \"parameters\"?}}")]
    Invalid,
}

impl Webhook {
    /// Checks the URL. `own` are the orchestrator's own addresses, which no hook is sent to.
    pub(super) fn new(settings: &WebhookSettings, own: Vec<SocketAddr>, look_up: LookUp) -> Result<Self, String> {
        let mut request = OutboundRequest::new("POST", &settings.url).map_err(|error| error.to_string())?;
        let destination = request.destination().map_err(|error| error.to_string())?;
        request.header("content-type", "application/json").map_err(|error| error.to_string())?;
        let policy = EgressPolicy::new(&[destination.to_string()], own).map_err(|(_, error)| error.to_string())?;
        Ok(Self {
            request,
            client: EgressClient::new(Arc::new(policy), look_up),
            key: settings.key.clone(),
            timeout: settings.timeout,
            fails_open: settings.fails_open,
        })
    }

    /// Sends the body and reads the decision.
    pub(super) async fn ask(&self, at: DateTime<Utc>, body: Vec<u8>) -> Result<Answer, WebhookError> {
        let answer = self.send(at, body, MAX_ANSWER_BYTES).await?;
        serde_json::from_slice(&answer).map_err(|_| WebhookError::Invalid)
    }

    /// Sends the body. What the server answers is not read.
    pub(super) async fn notify(&self, at: DateTime<Utc>, body: Vec<u8>) -> Result<(), WebhookError> {
        match self.send(at, body, 0).await {
            Ok(_) | Err(WebhookError::TooLarge) => Ok(()),
            Err(error) => Err(error),
        }
    }

    async fn send(&self, at: DateTime<Utc>, body: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, WebhookError> {
        let exchange = self.exchange(at, body, max_bytes);
        tokio::time::timeout(self.timeout, exchange).await.map_err(|_| WebhookError::Timeout(self.timeout))?
    }

    async fn exchange(&self, at: DateTime<Utc>, body: Vec<u8>, max_bytes: usize) -> Result<Vec<u8>, WebhookError> {
        let id = format!("msg_{:032x}", rand::random::<u128>());
        let timestamp = at.timestamp().to_string();
        let signature = standard_signature(self.key.expose_secret(), &id, &timestamp, &body);
        let mut request = self.request.clone();
        for (name, value) in [("webhook-id", &id), ("webhook-timestamp", &timestamp), ("webhook-signature", &signature)]
        {
            request.header(name, value).map_err(EgressError::from)?;
        }
        request.set_body(body, "application/json");
        let mut response = self.client.open(&self.client.policy().rules(), &request).await?;
        if !(200..300).contains(&response.status()) {
            return Err(WebhookError::Status(response.status()));
        }
        let mut answer = Vec::new();
        while let Some(chunk) = response.chunk().await? {
            if answer.len() + chunk.len() > max_bytes {
                return Err(WebhookError::TooLarge);
            }
            answer.extend_from_slice(&chunk);
        }
        Ok(answer)
    }
}

impl Answer {
    /// The reason, short and on one line: it is shown to models and people.
    pub(super) fn shown_reason(&self) -> Option<String> {
        let reason = self.reason.as_deref()?.trim();
        let shown: String = reason.chars().filter(|c| !protocol::is_invisible(*c)).take(MAX_REASON_CHARS).collect();
        (!shown.is_empty()).then(|| shown.replace(char::is_control, " "))
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    /// The orchestrator's own addresses are refused, whatever the configuration says.
    #[rstest]
    #[case::own(true)]
    #[case::another(false)]
    #[tokio::test]
    async fn no_request_goes_to_the_orchestrator_itself(#[case] is_own: bool) {
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        let settings = WebhookSettings {
            url: format!("http://{address}/"),
            key: SecretSlice::from(vec![1; 24]),
            timeout: Duration::from_millis(100),
            fails_open: false,
        };
        let own = if is_own { vec![address] } else { vec![] };
        let webhook = Webhook::new(&settings, own, egress::system_look_up()).unwrap();
        let error = webhook.ask(DateTime::UNIX_EPOCH, b"{}".to_vec()).await.unwrap_err();
        let is_denied = matches!(error, WebhookError::Egress(EgressError::Denied(_)));
        assert_eq!(is_denied, is_own, "{error}");
    }

    #[rstest]
    #[case(r#"{"decision": "allow"}"#, true)]
    #[case(r#"{"decision": "deny", "reason": null, "parameters": {"a": 1}}"#, true)]
    #[case(r#"{"decision": "Allow"}"#, false)]
    #[case(r#"{"decision": true}"#, false)]
    #[case(r#"{"decision": "allow", "decision": "deny"}"#, false)]
    #[case(r#"{"decision": "allow", "parametres": {}}"#, false)]
    #[case("{}", false)]
    #[case(r#"{"decision": "allow"} x"#, false)]
    #[case("", false)]
    #[case("<html>", false)]
    fn other_answers_are_none(#[case] body: &str, #[case] is_valid: bool) {
        assert_eq!(serde_json::from_str::<Answer>(body).is_ok(), is_valid);
    }

    #[rstest]
    #[case(Some(" not\nallowed\u{200b} "), Some("not allowed"))]
    #[case(Some("  "), None)]
    #[case(None, None)]
    fn a_reason_is_one_short_line(#[case] reason: Option<&str>, #[case] expected: Option<&str>) {
        let answer = Answer { decision: Decision::Deny, reason: reason.map(str::to_owned), parameters: None };
        assert_eq!(answer.shown_reason().as_deref(), expected);
        let long = Answer { reason: Some("x".repeat(10_000)), ..answer };
        assert_eq!(long.shown_reason().unwrap().len(), MAX_REASON_CHARS);
    }
}
