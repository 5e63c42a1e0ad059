//! What an error of the client library means. Owns the digging: in a streamed call the HTTP error is boxed in another.

use std::time::Duration;

use genai::{Error, webc};
use reqwest::header::HeaderMap;

use crate::llm::{
    error::ErrorKind,
    fault::{Fault, Next},
};

const MAX_RETRY_AFTER: Duration = Duration::from_hours(24);

pub(super) fn fault(error: Error) -> Fault {
    match error {
        Error::HttpError { status, body, headers, .. } => {
            Fault::of_status(status.as_u16(), &body, retry_after(&headers))
        }
        Error::WebStream { error, .. } => boxed(error),
        Error::WebModelCall { webc_error, .. } | Error::WebAdapterCall { webc_error, .. } => match webc_error {
            webc::Error::ResponseFailedStatus { status, body, headers } => {
                Fault::of_status(status.as_u16(), &body, retry_after(&headers))
            }
            webc::Error::Reqwest(error) => http(error),
            other => Fault::transient(ErrorKind::InvalidResponse, other.to_string()),
        },
        Error::ChatResponse { body, .. } => Fault::of_event(&body),
        Error::StreamParse { serde_error, .. } => {
            Fault::transient(ErrorKind::InvalidResponse, format!("the answer is not JSON: {serde_error}"))
        }
        Error::JsonValueExt(error) => {
            Fault::transient(ErrorKind::InvalidResponse, format!("the answer lacks a part: {error}"))
        }
        Error::SerdeJson(error) => {
            Fault::transient(ErrorKind::InvalidResponse, format!("the answer is not JSON: {error}"))
        }
        other => Fault::new(Next::GiveUp, ErrorKind::BadRequest, other.to_string()),
    }
}

fn boxed(error: genai::BoxError) -> Fault {
    let error = match error.downcast::<Error>() {
        Ok(inner) => return fault(*inner),
        Err(error) => error,
    };
    if let Some(silence) = error.downcast_ref::<webc::StreamTimeout>() {
        return Fault::transient(ErrorKind::Timeout, silence.to_string());
    }
    if error.downcast_ref::<std::string::FromUtf8Error>().is_some() {
        return Fault::transient(ErrorKind::InvalidResponse, "the answer is not UTF-8");
    }
    match error.downcast::<reqwest::Error>() {
        Ok(error) => http(*error),
        Err(error) => Fault::transient(ErrorKind::StreamInterrupted, error.to_string()),
    }
}

fn http(error: reqwest::Error) -> Fault {
    // The address is the operator's business, and its query may hold a key.
    let error = error.without_url();
    if error.is_builder() {
        return Fault::new(Next::GiveUp, ErrorKind::BadRequest, chain(&error));
    }
    let kind = match () {
        () if error.is_connect() => ErrorKind::Connect,
        () if error.is_timeout() => ErrorKind::Timeout,
        () if error.is_body() || error.is_decode() => ErrorKind::StreamInterrupted,
        () => ErrorKind::Connect,
    };
    Fault::transient(kind, chain(&error))
}

/// The whole story: the outermost words alone never say why.
fn chain(error: &reqwest::Error) -> String {
    let mut told = error.to_string();
    let mut source = std::error::Error::source(error);
    while let Some(cause) = source {
        told = format!("{told}: {cause}");
        source = cause.source();
    }
    told
}

/// Milliseconds where they are told, else seconds, else a date, measured against the answer's own date: the two
/// clocks need not agree.
fn retry_after(headers: &HeaderMap) -> Option<Duration> {
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
    fn every_way_to_say_how_long(#[case] said: &[(&'static str, &'static str)], #[case] millis: Option<u64>) {
        let headers =
            said.iter().map(|(name, value)| (HeaderName::from_static(name), HeaderValue::from_static(value))).collect();
        assert_eq!(retry_after(&headers), millis.map(Duration::from_millis));
    }
}
