//! An attempt that brought no answer, and who acts next. Owns what becomes of a provider's refusal; never reads its words
//! (`error_body`), and never acts on it.

use std::time::Duration;

use serde_json::Value;

use super::error_body::ErrorBody;
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
    /// The provider could not read what its model wrote, and works otherwise.
    is_model_mistake: bool,
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
        Self { disposition, kind, retry_after: None, message: message.into(), is_model_mistake: false }
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
        Self::new(Disposition::Failover, kind, message).asking_to_wait(wait)
    }

    pub(crate) fn asking_to_wait(self, wait: Duration) -> Self {
        Self { retry_after: Some(wait), ..self }
    }

    pub(crate) fn transient(kind: ErrorKind, message: impl Into<String>) -> Self {
        Self::new(Disposition::Retry, kind, message)
    }

    /// Whether the provider was not asked.
    pub(crate) fn is_local(&self) -> bool {
        matches!(self.kind, ErrorKind::QueueTimeout | ErrorKind::CircuitOpen)
    }

    /// Whether it counts against the health of the provider.
    pub(crate) fn is_outage(&self) -> bool {
        self.disposition == Disposition::Retry && !self.is_model_mistake
    }

    /// Whether asking again later may help. If not, and every provider refuses so, a person has to act: top up a quota,
    /// replace a key.
    pub(crate) fn is_transient(&self) -> bool {
        self.disposition == Disposition::Retry || self.kind == ErrorKind::RateLimited || self.is_local()
    }

    /// Classifies an HTTP status and its body.
    pub(crate) fn of_status(status: u16, body: &str, retry_after: Option<Duration>) -> Self {
        let error = ErrorBody::read(body);
        let (disposition, kind) = error.judge(status);
        let message = match status {
            _ if kind == ErrorKind::Refused && !error.message.is_empty() => {
                format!("the provider refused to answer: {}", error.message)
            }
            300..400 => format!("status {status}: redirects are not followed; check the base URL of this provider"),
            400 | 404 if error.is_page() => {
                format!("status {status}: the answer is a web page; check the base URL of this provider")
            }
            404 if error.message.is_empty() => "status 404: check the base URL of this provider".to_owned(),
            _ if error.message.is_empty() => format!("status {status}"),
            _ => format!("status {status}: {}", error.message),
        };
        // "Retry after 0 seconds" is sent by servers that do not know.
        let retry_after = retry_after.or(error.retry_after).filter(|wait| !wait.is_zero());
        // Of what is answered with an error, only this has the kind.
        let is_model_mistake = kind == ErrorKind::InvalidResponse;
        Self { retry_after, is_model_mistake, ..Self::new(disposition, kind, message) }
    }

    /// The status that an error inside an answer would have; it often names one.
    pub(crate) fn status_of_event(body: &Value) -> u16 {
        let error = ErrorBody::read(&body.to_string());
        match error.code.as_str() {
            _ if error.is_about_context() => 400,
            _ if error.is_about_account() => 402,
            _ if error.is_about_content() => 400,
            "rate_limit_error" | "rate_limit_exceeded" | "RESOURCE_EXHAUSTED" => 429,
            "invalid_request_error" => 400,
            "authentication_error" => 401,
            "permission_error" => 403,
            "not_found_error" => 404,
            code => code.parse().ok().filter(|code| (400..600).contains(code)).unwrap_or(500),
        }
    }

    /// Classifies an error inside an answer.
    pub(crate) fn of_event(body: &Value) -> Self {
        let text = body.to_string();
        let read = Self::of_status(Self::status_of_event(body), &text, None);
        match read.kind {
            ErrorKind::Refused => read,
            _ => Self { message: format!("error in the answer: {}", ErrorBody::read(&text).message), ..read },
        }
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
    #[case(413, "", Disposition::Fatal, ErrorKind::ContextLength)]
    #[case(
        403,
        r#"{"error":{"message":"flagged","metadata":{"reasons":["violence"],"flagged_input":"x"}}}"#,
        Disposition::Fatal,
        ErrorKind::Refused
    )]
    #[case(
        400,
        r#"{"error":{"code":"content_filter","message":"The response was filtered"}}"#,
        Disposition::Fatal,
        ErrorKind::Refused
    )]
    #[case(
        400,
        r#"{"error":{"code":"tool_use_failed","message":"Failed to call a function"}}"#,
        Disposition::Retry,
        ErrorKind::InvalidResponse
    )]
    #[case(
        400,
        r#"[{"error":{"code":400,"status":"INVALID_ARGUMENT","details":[{"reason":"API_KEY_INVALID"}]}}]"#,
        Disposition::Failover,
        ErrorKind::Auth
    )]
    #[case(
        429,
        r#"{"code":"rate","error":"used all available credits or reached its monthly spending limit"}"#,
        Disposition::Failover,
        ErrorKind::Quota
    )]
    #[case(429, r#"{"error":{"code":"1113","message":"balance"}}"#, Disposition::Failover, ErrorKind::Quota)]
    // BerriAI/litellm wraps errors.
    #[case(429, r#"{"error":{"code":"429","message":"litellm.RateLimitError: OpenAIException - {'code': 'insufficient_quota'}"}}"#, Disposition::Failover, ErrorKind::Quota)]
    #[case(429, r#"{"error":{"code":"1313","message":"plan"}}"#, Disposition::Failover, ErrorKind::Quota)]
    // A web application firewall.
    #[case(
        403,
        "<html>\r\n<head><title>403 Forbidden</title></head>\r\n</html>",
        Disposition::Fatal,
        ErrorKind::Refused
    )]
    #[case(
        400,
        "<html><title>400 The plain HTTP request was sent to HTTPS port</title></html>",
        Disposition::Fatal,
        ErrorKind::BadRequest
    )]
    // MiniMax-AI/MiniMax-M2#62.
    #[case(
        500,
        r#"{"error":{"type":"api_error","message":"insufficient balance (1008)"}}"#,
        Disposition::Failover,
        ErrorKind::Quota
    )]
    #[case(
        429,
        r#"{"error":{"type":"insufficient_balance_error","message":"insufficient balance"}}"#,
        Disposition::Failover,
        ErrorKind::Quota
    )]
    // google-gemini/gemini-cli#8437 has the whole body.
    #[case(
        429,
        r#"[{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerDayPerProjectPerModel-FreeTier"}]}]}}]"#,
        Disposition::Failover,
        ErrorKind::Quota
    )]
    #[case(
        429,
        r#"[{"error":{"code":429,"message":"You exceeded your current quota.","status":"RESOURCE_EXHAUSTED","details":[{"violations":[{"quotaId":"GenerateRequestsPerMinutePerProjectPerModel"}]}]}}]"#,
        Disposition::Failover,
        ErrorKind::RateLimited
    )]
    #[case(429, r#"{"error":{"code":"1302","message":"rate"}}"#, Disposition::Failover, ErrorKind::RateLimited)]
    #[case(
        400,
        r#"{"error":{"message":"This text quotes: billing details"}}"#,
        Disposition::Fatal,
        ErrorKind::BadRequest
    )]
    #[case(
        500,
        r#"{"error":{"message":"Jinja Exception: Conversation roles must alternate"}}"#,
        Disposition::Fatal,
        ErrorKind::BadRequest
    )]
    #[case(422, r#"{"detail":[{"msg":"Field required","input":"context window, moderation, api_key_invalid, credit balance is too low"}]}"#, Disposition::Fatal, ErrorKind::BadRequest)]
    #[case(500, "error parsing tool call: invalid character", Disposition::Retry, ErrorKind::InvalidResponse)]
    #[case(503, "Loading model", Disposition::Retry, ErrorKind::Server)]
    #[case(500, "", Disposition::Retry, ErrorKind::Server)]
    #[case(529, "", Disposition::Retry, ErrorKind::Server)]
    fn statuses(#[case] status: u16, #[case] body: &str, #[case] disposition: Disposition, #[case] kind: ErrorKind) {
        let error = AttemptError::of_status(status, body, None);
        assert_eq!((error.disposition, error.kind), (disposition, kind));
    }

    /// Each provider's own words for a prompt that is too long.
    #[rstest]
    #[case(400, "The input token count (1200000) exceeds the maximum number of tokens allowed (1048576).")]
    #[case(400, "This model's maximum prompt length is 131072 but the request contains 200000 tokens.")]
    #[case(400, "Invalid request: Your request exceeded model token limit: 131072")]
    #[case(400, "Range of input length should be [1, 129024]")]
    #[case(400, "The decoder prompt (length 40000) is longer than the maximum model length of 32768.")]
    #[case(400, "Input is too long for requested model.")]
    #[case(400, "Please reduce the length of the messages or completion.")]
    #[case(400, "Prompt exceeds max length")]
    #[case(500, "no user query found in messages")]
    #[case(429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 342389.")]
    #[case(413, "Request too large for model `x` on tokens per minute (TPM): Limit 6000, Requested 9000")]
    #[case(400, r#"{"error":{"code":"model_max_prompt_tokens_exceeded","message":"prompt token count of 70000 exceeds the limit of 64000"}}"#)]
    fn a_prompt_that_is_too_long(#[case] status: u16, #[case] body: &str) {
        let error = AttemptError::of_status(status, body, None);
        assert_eq!((error.disposition, error.kind), (Disposition::Fatal, ErrorKind::ContextLength));
    }

    #[rstest]
    #[case(429, "maximum context tokens: rate limit reached")]
    #[case(400, "Unsupported parameter: 'max_tokens'; see the context length")]
    fn not_every_error_with_such_words_is_about_the_length(#[case] status: u16, #[case] body: &str) {
        assert_ne!(AttemptError::of_status(status, body, None).kind, ErrorKind::ContextLength);
    }

    #[test]
    fn a_wait_may_be_in_the_body_and_none_is_no_advice() {
        let body = r#"[{"error":{"code":429,"details":[{"@type":"x/google.rpc.RetryInfo","retryDelay":"34.5s"}]}}]"#;
        assert_eq!(AttemptError::of_status(429, body, None).retry_after, Some(Duration::from_millis(34_500)));
        assert_eq!(AttemptError::of_status(429, "", Some(Duration::ZERO)).retry_after, None);
    }

    #[test]
    fn the_words_of_a_provider_behind_a_router_are_shown() {
        let body = r#"{"error":{"message":"Provider returned error","metadata":{"raw":"missing details"}}}"#;
        assert_eq!(
            AttemptError::of_status(400, body, None).message,
            "status 400: Provider returned error: missing details"
        );
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
