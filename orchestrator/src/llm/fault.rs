//! A try that brought no answer, and who acts next. Owns the reading of a provider's refusals; never acts on them.

use std::time::Duration;

use serde_json::Value;

use super::error::ErrorKind;

const MAX_MESSAGE_CHARS: usize = 400;

/// A try that brought no answer.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Fault {
    /// Who acts next.
    pub(super) next: Next,
    /// What it was.
    pub(super) kind: ErrorKind,
    /// What the provider said to wait.
    pub(super) retry_after: Option<Duration>,
    /// For people.
    pub(super) message: String,
}

/// Who acts after a fault.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Next {
    /// The same provider, a little later.
    TryAgain,
    /// Another provider; this one cannot help now.
    AnotherProvider,
    /// Nobody: it would fail anywhere.
    GiveUp,
}

impl Fault {
    pub(super) fn new(next: Next, kind: ErrorKind, message: impl Into<String>) -> Self {
        let message: String = message.into();
        let mut short: String = message.chars().take(MAX_MESSAGE_CHARS).collect();
        if short.len() < message.len() {
            short.push('…');
        }
        Self { next, kind, retry_after: None, message: short }
    }

    /// A refusal of this process's own: the provider was not asked.
    pub(super) fn local(kind: ErrorKind, wait: Duration, message: &str) -> Self {
        Self { retry_after: Some(wait), ..Self::new(Next::AnotherProvider, kind, message) }
    }

    /// Whether the provider was not asked.
    pub(super) fn is_local(&self) -> bool {
        matches!(self.kind, ErrorKind::QueueTimeout | ErrorKind::CircuitOpen)
    }

    /// Whether asking again later may help. If not, and every provider refuses so, somebody has to act: top up a quota,
    /// replace a key.
    pub(super) fn may_pass(&self) -> bool {
        self.next == Next::TryAgain || self.kind == ErrorKind::RateLimited || self.is_local()
    }

    pub(super) fn transient(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(Next::TryAgain, kind, message)
    }

    /// What a status and its body mean.
    pub(super) fn of_status(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let (code, said) = read_body(body);
        let (next, kind) = match status {
            // The provider says "too many requests" of an empty purse too; waiting does not fill it.
            402 => (Next::AnotherProvider, ErrorKind::Quota),
            429 if code == "insufficient_quota" => (Next::AnotherProvider, ErrorKind::Quota),
            429 => (Next::AnotherProvider, ErrorKind::RateLimited),
            401 | 403 => (Next::AnotherProvider, ErrorKind::Auth),
            404 => (Next::AnotherProvider, ErrorKind::NotFound),
            408 => (Next::TryAgain, ErrorKind::Timeout),
            400 | 413 | 422 if is_context_length(&code, &said) => (Next::GiveUp, ErrorKind::ContextLength),
            500.. => (Next::TryAgain, ErrorKind::Server),
            _ => (Next::GiveUp, ErrorKind::BadRequest),
        };
        let message = match status {
            404 if said.is_empty() => "status 404: nothing is at this address; check GANTRY_LLM_BASE_URL".to_owned(),
            _ if said.is_empty() => format!("status {status}"),
            _ => format!("status {status}: {said}"),
        };
        Self { retry_after, ..Self::new(next, kind, message) }
    }

    /// What an error in the middle of a stream means; it has no status of its own.
    pub(super) fn of_event(body: &Value) -> Self {
        let (code, said) = read_body(&body.to_string());
        let status = match code.as_str() {
            "rate_limit_error" | "rate_limit_exceeded" => 429,
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            _ => 500,
        };
        let told = Self::of_status(status, &body.to_string(), None);
        Self { message: format!("error in the stream: {said}"), ..told }
    }
}

/// Phrases of the errors by which providers say that a request exceeds the context window: OpenAI and servers of its wire,
/// Anthropic, Ollama and llama.cpp.
const CONTEXT_PHRASES: [&str; 5] =
    ["context length", "context window", "context size", "context limit", "prompt is too long"];

fn is_context_length(code: &str, message: &str) -> bool {
    let message = message.to_lowercase();
    code == "context_length_exceeded" || CONTEXT_PHRASES.iter().any(|phrase| message.contains(phrase))
}

/// The code or type and the message of an error, in whichever provider's shape.
fn read_body(body: &str) -> (String, String) {
    let Ok(value) = serde_json::from_str::<Value>(body) else {
        return (String::new(), body.trim().to_owned());
    };
    let error = if value["error"].is_null() { &value } else { &value["error"] };
    let text = |value: &Value| value.as_str().map(str::to_owned);
    let code = text(&error["code"]).or_else(|| text(&error["type"])).unwrap_or_default();
    let said = text(&error["message"]).or_else(|| text(error)).unwrap_or_else(|| body.trim().to_owned());
    (code, said)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(400, "{}", Next::GiveUp, ErrorKind::BadRequest)]
    #[case(400, r#"{"error":{"code":"context_length_exceeded"}}"#, Next::GiveUp, ErrorKind::ContextLength)]
    #[case(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 205 tokens > 200 maximum"}}"#,
        Next::GiveUp,
        ErrorKind::ContextLength
    )]
    #[case(400, "the request exceeds the available context size (4096 tokens)", Next::GiveUp, ErrorKind::ContextLength)]
    #[case(401, "{}", Next::AnotherProvider, ErrorKind::Auth)]
    #[case(402, "{}", Next::AnotherProvider, ErrorKind::Quota)]
    #[case(403, "no", Next::AnotherProvider, ErrorKind::Auth)]
    #[case(404, "", Next::AnotherProvider, ErrorKind::NotFound)]
    #[case(408, "", Next::TryAgain, ErrorKind::Timeout)]
    #[case(429, r#"{"error":{"code":"rate_limit_exceeded"}}"#, Next::AnotherProvider, ErrorKind::RateLimited)]
    #[case(429, r#"{"error":{"code":"insufficient_quota"}}"#, Next::AnotherProvider, ErrorKind::Quota)]
    #[case(413, "", Next::GiveUp, ErrorKind::BadRequest)]
    #[case(500, "", Next::TryAgain, ErrorKind::Server)]
    #[case(529, "", Next::TryAgain, ErrorKind::Server)]
    fn statuses(#[case] status: u16, #[case] body: &str, #[case] next: Next, #[case] kind: ErrorKind) {
        let fault = Fault::of_status(status, body, None);
        assert_eq!((fault.next, fault.kind), (next, kind));
    }

    #[rstest]
    #[case(json!({"error": {"message": "oh no", "type": "server_error"}}), "status 500: oh no")]
    #[case(json!({"type": "error", "error": {"type": "api_error", "message": "oh no"}}), "status 500: oh no")]
    #[case(json!({"error": "oh no"}), "status 500: oh no")]
    fn every_shape_is_read(#[case] body: Value, #[case] message: &str) {
        assert_eq!(Fault::of_status(500, &body.to_string(), None).message, message);
    }

    #[test]
    fn an_event_in_a_stream_is_judged_by_its_type() {
        let overloaded = Fault::of_event(&json!({"error": {"type": "overloaded_error", "message": "later"}}));
        assert_eq!((overloaded.next, overloaded.message.as_str()), (Next::TryAgain, "error in the stream: later"));
        let limited = Fault::of_event(&json!({"error": {"type": "rate_limit_error", "message": "slow"}}));
        assert_eq!(limited.kind, ErrorKind::RateLimited);
    }
}
