//! An attempt that brought no answer, and who acts next. Owns the reading of providers' refusals; never acts on them.

use std::time::Duration;

use serde_json::Value;

use crate::error::ErrorKind;

const MAX_MESSAGE_CHARS: usize = 400;

/// An attempt that brought no answer.
#[derive(Debug, Clone, PartialEq)]
pub(crate) struct AttemptError {
    /// Who acts next.
    pub(crate) disposition: Disposition,
    pub(crate) kind: ErrorKind,
    /// How long the provider asks to wait.
    pub(crate) retry_after: Option<Duration>,
    /// For users; short and without secrets once the upstream has redacted it.
    pub(crate) message: String,
}

/// Who acts after a failed attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Disposition {
    /// The same provider, a little later.
    Retry,
    /// The next provider; this one cannot help now.
    Failover,
    /// No one: the request would fail with every provider.
    Fatal,
}

impl AttemptError {
    pub(crate) fn new(disposition: Disposition, kind: ErrorKind, message: impl Into<String>) -> Self {
        Self { disposition, kind, retry_after: None, message: message.into() }
    }

    /// Cuts a long message. Only after secrets have been redacted: a part of one would no longer be recognised.
    pub(crate) fn shorten(&mut self) {
        if let Some((end, _)) = self.message.char_indices().nth(MAX_MESSAGE_CHARS) {
            self.message.truncate(end);
            self.message.push('…');
        }
    }

    /// A refusal of this process itself: the provider was not asked.
    pub(crate) fn local(kind: ErrorKind, wait: Duration, message: &str) -> Self {
        Self { retry_after: Some(wait), ..Self::new(Disposition::Failover, kind, message) }
    }

    pub(crate) fn transient(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(Disposition::Retry, kind, message)
    }

    /// Whether the provider was not asked.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, ErrorKind::QueueTimeout | ErrorKind::CircuitOpen)
    }

    /// Whether asking again later may help. If not, and every provider refuses so, a person has to act: top up a quota,
    /// replace a key.
    pub(crate) fn is_transient(&self) -> bool {
        self.disposition == Disposition::Retry || self.kind == ErrorKind::RateLimited || self.is_local()
    }

    /// Classifies an HTTP status and its body.
    pub(crate) fn of_status(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let error = ErrorBody::read(body);
        let (disposition, kind) = match status {
            // Providers say "too many requests" or "bad request" of a spent quota, too; waiting does not fill it.
            400..500 if error.is_spent_quota() => (Disposition::Failover, ErrorKind::Quota),
            402 => (Disposition::Failover, ErrorKind::Quota),
            429 => (Disposition::Failover, ErrorKind::RateLimited),
            401 | 403 => (Disposition::Failover, ErrorKind::Auth),
            // Redirects are not followed: the key would travel with them.
            300..400 | 404 => (Disposition::Failover, ErrorKind::NotFound),
            408 => (Disposition::Retry, ErrorKind::Timeout),
            400 | 413 | 422 if error.is_context_length() => (Disposition::Fatal, ErrorKind::ContextLength),
            500.. => (Disposition::Retry, ErrorKind::Server),
            _ => (Disposition::Fatal, ErrorKind::BadRequest),
        };
        let message = match status {
            300..400 => format!("status {status}: redirects are not followed; check the base URL of this provider"),
            404 if error.message.is_empty() => "status 404: check the base URL of this provider".to_owned(),
            _ if error.message.is_empty() => format!("status {status}"),
            _ => format!("status {status}: {}", error.message),
        };
        Self { retry_after, ..Self::new(disposition, kind, message) }
    }

    /// Classifies an error inside an answer; it has no HTTP status, but often names one.
    pub(crate) fn of_event(body: &Value) -> Self {
        let text = body.to_string();
        let error = ErrorBody::read(&text);
        let status = match error.code.as_str() {
            _ if error.is_context_length() => 400,
            _ if error.is_spent_quota() => 402,
            "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED" => 429,
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            code => code.parse().ok().filter(|code| (400..600).contains(code)).unwrap_or(500),
        };
        let read = Self::of_status(status, &text, None);
        Self { message: format!("error in the answer: {}", error.message), ..read }
    }
}

/// Phrases of the errors by which providers say that a request exceeds the context window: OpenAI and servers of its
/// wire, Anthropic, Ollama and llama.cpp.
const CONTEXT_PHRASES: [&str; 5] =
    ["context length", "context window", "context size", "context limit", "prompt is too long"];

/// The code or type and the message of an error, in whichever provider's shape.
struct ErrorBody {
    code: String,
    message: String,
}

impl ErrorBody {
    fn read(body: &str) -> Self {
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            return Self { code: String::new(), message: body.trim().to_owned() };
        };
        let value = value.as_array().and_then(|list| list.first()).unwrap_or(&value);
        let error = if value["error"].is_null() { value } else { &value["error"] };
        let code = [&error["code"], &error["type"], &error["status"]].into_iter().find_map(|code| match code {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        let text = |value: &Value| value.as_str().map(str::to_owned);
        let message = text(&error["message"]).or_else(|| text(error)).unwrap_or_else(|| body.trim().to_owned());
        Self { code: code.unwrap_or_default(), message }
    }

    fn is_context_length(&self) -> bool {
        let message = self.message.to_lowercase();
        self.code == "context_length_exceeded" || CONTEXT_PHRASES.iter().any(|phrase| message.contains(phrase))
    }

    /// OpenAI has codes for it, Anthropic a sentence.
    fn is_spent_quota(&self) -> bool {
        self.code.contains("insufficient_quota")
            || self.code.contains("billing")
            || self.message.to_lowercase().contains("credit balance is too low")
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case(400, "{}", Disposition::Fatal, ErrorKind::BadRequest)]
    #[case(400, r#"{"error":{"code":"context_length_exceeded"}}"#, Disposition::Fatal, ErrorKind::ContextLength)]
    #[case(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"prompt is too long: 205 tokens > 200 maximum"}}"#,
        Disposition::Fatal,
        ErrorKind::ContextLength
    )]
    #[case(
        400,
        "the request exceeds the available context size (4096 tokens)",
        Disposition::Fatal,
        ErrorKind::ContextLength
    )]
    #[case(401, "{}", Disposition::Failover, ErrorKind::Auth)]
    #[case(402, "{}", Disposition::Failover, ErrorKind::Quota)]
    #[case(403, "no", Disposition::Failover, ErrorKind::Auth)]
    #[case(404, "", Disposition::Failover, ErrorKind::NotFound)]
    #[case(408, "", Disposition::Retry, ErrorKind::Timeout)]
    #[case(429, r#"{"error":{"code":"rate_limit_exceeded"}}"#, Disposition::Failover, ErrorKind::RateLimited)]
    #[case(429, r#"{"error":{"code":"insufficient_quota"}}"#, Disposition::Failover, ErrorKind::Quota)]
    #[case(
        400,
        r#"{"error":{"type":"invalid_request_error","message":"Your credit balance is too low to access"}}"#,
        Disposition::Failover,
        ErrorKind::Quota
    )]
    #[case(400, r#"{"error":{"code":"billing_hard_limit_reached"}}"#, Disposition::Failover, ErrorKind::Quota)]
    #[case(302, "", Disposition::Failover, ErrorKind::NotFound)]
    #[case(413, "", Disposition::Fatal, ErrorKind::BadRequest)]
    #[case(500, "", Disposition::Retry, ErrorKind::Server)]
    #[case(529, "", Disposition::Retry, ErrorKind::Server)]
    fn statuses(#[case] status: u16, #[case] body: &str, #[case] disposition: Disposition, #[case] kind: ErrorKind) {
        let error = AttemptError::of_status(status, body, None);
        assert_eq!((error.disposition, error.kind), (disposition, kind));
    }

    #[rstest]
    #[case(json!({"error": {"message": "oh no", "type": "server_error"}}), "status 500: oh no")]
    #[case(json!({"type": "error", "error": {"type": "api_error", "message": "oh no"}}), "status 500: oh no")]
    #[case(json!({"error": "oh no"}), "status 500: oh no")]
    fn every_shape_is_read(#[case] body: Value, #[case] message: &str) {
        assert_eq!(AttemptError::of_status(500, &body.to_string(), None).message, message);
    }

    #[test]
    fn an_event_in_a_stream_is_judged_by_its_type() {
        let overloaded = AttemptError::of_event(&json!({"error": {"type": "overloaded_error", "message": "later"}}));
        assert_eq!(
            (overloaded.disposition, overloaded.message.as_str()),
            (Disposition::Retry, "error in the answer: later")
        );
        let limited = AttemptError::of_event(&json!({"error": {"type": "rate_limit_error", "message": "slow"}}));
        assert_eq!(limited.kind, ErrorKind::RateLimited);
        let numbered = AttemptError::of_event(&json!({"error": {"code": 429, "message": "slow"}}));
        assert_eq!(numbered.kind, ErrorKind::RateLimited);
        let too_long = json!({"error": {"message": "too many tokens", "code": "context_length_exceeded"}});
        let too_long = AttemptError::of_event(&too_long);
        assert_eq!((too_long.kind, too_long.disposition), (ErrorKind::ContextLength, Disposition::Fatal));
        let spent = AttemptError::of_event(&json!({"error": {"code": "billing_hard_limit_reached"}}));
        assert_eq!((spent.kind, spent.disposition), (ErrorKind::Quota, Disposition::Failover));
        let unknown = AttemptError::of_event(&json!({"error": "out of memory"}));
        assert_eq!((unknown.kind, unknown.disposition), (ErrorKind::Server, Disposition::Retry));
    }
}
