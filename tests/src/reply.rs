//! A whole HTTP response, for both sides of the orchestrator.

use protocol::ErrorCode;
use reqwest::{RequestBuilder, StatusCode, header::HeaderMap};
use serde::de::DeserializeOwned;
use serde_json::Value;

/// A response.
#[derive(Debug, Clone)]
pub struct Reply {
    /// The status code.
    pub status: StatusCode,
    /// The headers.
    pub headers: HeaderMap,
    /// The JSON body; null if there is none.
    pub body: Value,
}

impl Reply {
    /// Sends a request and reads the whole response.
    pub async fn of(request: RequestBuilder) -> Self {
        let response = crate::within("a response", request.send()).await.expect("the server responds");
        let (status, headers) = (response.status(), response.headers().clone());
        let bytes = crate::within("the end of a response", response.bytes()).await.expect("the response is complete");
        let body = match serde_json::from_slice(&bytes) {
            Ok(body) => body,
            Err(_) if bytes.is_empty() => Value::Null,
            Err(_) => Value::String(String::from_utf8_lossy(&bytes).into_owned()),
        };
        Self { status, headers, body }
    }

    /// The value of a header.
    pub fn header(&self, name: &str) -> Option<&str> {
        self.headers.get(name).and_then(|value| value.to_str().ok())
    }

    /// Asserts the status.
    #[track_caller]
    pub fn expect(self, status: u16) -> Self {
        assert_eq!(self.status.as_u16(), status, "{:#}", self.body);
        self
    }

    /// Asserts that this is a problem with this code.
    #[track_caller]
    pub fn problem(self, code: ErrorCode) -> Self {
        let seen = (self.status.as_u16(), self.body["code"].as_str().unwrap_or("none"));
        assert_eq!(seen, (code.status(), code.as_str()), "{:#}", self.body);
        let kind = self.header("content-type");
        assert_eq!(kind, Some("application/problem+json"), "{:#}", self.body);
        assert_eq!(self.body["status"], code.status());
        assert_eq!(self.header("x-request-id"), self.body["request_id"].as_str());
        self
    }

    /// The fields that a problem names.
    pub fn fields(&self) -> Vec<&str> {
        let errors = self.body["errors"].as_array();
        errors.into_iter().flatten().filter_map(|error| error["field"].as_str()).collect()
    }

    /// Deserialises the body.
    #[track_caller]
    pub fn json<T: DeserializeOwned>(&self) -> T {
        match serde_json::from_value(self.body.clone()) {
            Ok(value) => value,
            Err(error) => panic!("status {}, {error}: {:#}", self.status, self.body),
        }
    }
}
