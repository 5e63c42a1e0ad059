//! Classifies failed calls: connection errors, decoding errors and `Retry-After`.

use std::time::Duration;

use base::error_chain;
use reqwest::header::HeaderMap;

use crate::{
    error::ErrorKind,
    provider::attempt_error::{AttemptError, Disposition},
    wire::DecodeError,
};

/// Upper bound of a provider's `Retry-After`.
const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

/// The provider sent nothing for this long.
pub(super) fn idle_timeout(waited: Duration) -> AttemptError {
    let seconds = waited.as_secs();
    let message = format!("the provider sent nothing for {seconds} s; a slow model needs a higher llm.timeout_seconds");
    AttemptError::transient(ErrorKind::Timeout, message)
}

/// An answer that cannot be used.
pub(super) fn decoding(error: DecodeError) -> AttemptError {
    match error {
        DecodeError::Interrupted => AttemptError::transient(ErrorKind::StreamInterrupted, error.to_string()),
        DecodeError::Invalid(message) => AttemptError::transient(ErrorKind::InvalidResponse, message),
        DecodeError::Provider(body) => AttemptError::of_event(&body),
        DecodeError::Refused(_) => AttemptError::new(Disposition::Fatal, ErrorKind::Refused, error.to_string()),
        DecodeError::Image => AttemptError::new(Disposition::Failover, ErrorKind::InvalidResponse, error.to_string()),
    }
}

/// An error of the connection.
pub(super) fn transport(error: reqwest::Error) -> AttemptError {
    // Only the operator should see the address, and its query may contain a key.
    let error = error.without_url();
    if error.is_builder() {
        return AttemptError::new(Disposition::Fatal, ErrorKind::BadRequest, error_chain(&error));
    }
    let kind = match () {
        () if error.is_connect() => ErrorKind::Connect,
        () if error.is_timeout() => ErrorKind::Timeout,
        () if error.is_body() || error.is_decode() => ErrorKind::StreamInterrupted,
        () => ErrorKind::Connect,
    };
    AttemptError::transient(kind, error_chain(&error))
}

/// Milliseconds where they are given, else seconds, else a date, measured against the answer's own date: the two clocks
/// need not agree.
pub(super) fn retry_after(headers: &HeaderMap) -> Option<Duration> {
    let text = |name: &str| headers.get(name).and_then(|value| value.to_str().ok()).map(str::trim);
    let number = |name: &str| text(name).and_then(|value| value.parse::<f64>().ok());
    let seconds = number("retry-after-ms").map(|millis| millis / 1_000.0).or_else(|| number("retry-after"));
    if let Some(seconds) = seconds {
        return Duration::try_from_secs_f64(seconds).ok().map(|wait| wait.min(MAX_RETRY_AFTER));
    }
    let date = |name: &str| text(name).and_then(|value| chrono::DateTime::parse_from_rfc2822(value).ok());
    let wait = date("retry-after")?.signed_duration_since(date("date")?);
    Some(wait.to_std().unwrap_or_default().min(MAX_RETRY_AFTER))
}

#[cfg(test)]
mod tests {
    use reqwest::header::{HeaderName, HeaderValue};
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(&[("retry-after", "7")], Some(7_000))]
    #[case(&[("retry-after", "1.5")], Some(1_500))]
    #[case(&[("retry-after", "1"), ("retry-after-ms", "250")], Some(250))]
    #[case(&[("retry-after", "-1")], None)]
    #[case(&[("retry-after", "soon")], None)]
    #[case(&[("retry-after", "999999999")], Some(86_400_000))]
    #[case(&[("retry-after", "Wed, 21 Oct 2026 07:28:09 GMT"), ("date", "Wed, 21 Oct 2026 07:28:00 GMT")], Some(9_000))]
    #[case(&[("retry-after", "Wed, 21 Oct 2026 07:28:00 GMT"), ("date", "Wed, 21 Oct 2026 07:28:09 GMT")], Some(0))]
    #[case(&[("retry-after", "Wed, 21 Oct 2026 07:28:09 GMT")], None)]
    #[case(&[], None)]
    fn every_form_of_retry_after(#[case] given: &[(&'static str, &'static str)], #[case] millis: Option<u64>) {
        let headers = given
            .iter()
            .map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value)))
            .collect();
        assert_eq!(retry_after(&headers), millis.map(Duration::from_millis));
    }
}
