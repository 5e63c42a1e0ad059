//! The errors of providers as they are written: codes, phrases and quotes. Owns the words; never knows what is done about them.

use std::{borrow::Cow, ops::RangeInclusive, time::Duration};

use serde_json::Value;

use super::attempt_error::Disposition;
use crate::error::ErrorKind;

/// The code or type and the message of an error, in whichever provider's shape.
pub(super) struct ErrorBody {
    pub(super) code: String,
    pub(super) message: String,
    /// Whether the message is the provider's, and not the whole body.
    is_said: bool,
    /// Google puts it into the body.
    pub(super) retry_after: Option<Duration>,
    /// Google names the quota that is used up in the details.
    is_quota_of_day: bool,
    /// The whole body in lower case: proxies wrap the errors of others.
    text: String,
}

/// Codes and phrases by which providers say that a request exceeds the context window.
const CONTEXT: [&str; 30] = [
    "context_length_exceeded",
    "model_max_prompt_tokens_exceeded",
    "request_too_large",
    "exceed_context_size_error",
    "context length",
    "context window",
    "context size",
    "context limit",
    "maximum context",
    "prompt is too long",
    "prompt too long",
    "prompt exceeds max length",
    "input token count",
    "maximum prompt length",
    "exceeded model token limit",
    "range of input length",
    "maximum model length",
    "max_model_len",
    "input is too long",
    "input tokens exceeded",
    "reduce the length",
    "maximum allowed input length",
    "longer than the model's context",
    "no user query found",
    "request body too large",
    "token count of",
    "exceeds the maximum number of tokens",
    "decoder prompt",
    "too many input tokens",
    "input length and `max_tokens` exceed",
];
/// What else an error with such a phrase may be about.
const NOT_CONTEXT: [&str; 6] = [
    "rate limit",
    "too many requests",
    "throttl",
    "unsupported parameter",
    "unsupported_parameter",
    "tokens per minute",
];

/// The account cannot pay, or has used up what it may: codes of OpenAI and Moonshot. Proxies put them into the message.
const ACCOUNT_CODES: [&str; 7] = [
    "insufficient_quota",
    "billing_",
    "credit_balance_exhausted",
    "spend_limit_exceeded",
    "usage_limit_exceeded",
    "exceeded_current_quota_error",
    "spending-limit",
];
/// The same in words: Anthropic, xAI, `OpenRouter`, Google.
const ACCOUNT: [&str; 10] = [
    "credit balance is too low",
    "insufficient balance",
    "insufficient_balance",
    "monthly spending limit",
    "used all available credits",
    "out of extra usage",
    "extra usage is required",
    "no endpoints found that support",
    "no endpoints found matching your data policy",
    "key limit exceeded",
];
/// Z.ai's numbers for the balance and for limits of the plan.
const ACCOUNT_NUMBERS: [RangeInclusive<u32>; 2] = [1113..=1113, 1308..=1321];

/// The text of this request is refused, by a filter before or behind the model, or by a firewall.
const MODERATED: [&str; 13] = [
    "content_filter",
    "responsibleaipolicyviolation",
    "data_inspection_failed",
    "violates our usage policies",
    "violating our usage policy",
    "invalid_prompt",
    "bio_policy",
    "misalignment_policy_violation",
    "flagged_input",
    "moderation",
    "new_sensitive",
    "content_policy_violation",
    "safety_violation",
];

/// The model wrote a call that its server could not read: another try may bring another one.
const MODEL_MISTAKES: [&str; 4] =
    ["tool_use_failed", "error parsing tool call", "failed to parse tool call", "malformed_function_call"];

/// A server that reports what it does not take as its own failure.
const REQUEST_REFUSED: [&str; 8] = [
    "unsupported_parameter",
    "invalid_request_error",
    "jinja exception",
    "json schema error",
    "generate parser",
    "failed to parse grammar",
    "roles must alternate",
    "after role 'tool'",
];

impl ErrorBody {
    pub(super) fn read(body: &str) -> Self {
        let text = said(body).to_lowercase();
        let Ok(value) = serde_json::from_str::<Value>(body) else {
            let message = body.trim().to_owned();
            return Self {
                code: String::new(),
                message,
                is_said: true,
                retry_after: None,
                is_quota_of_day: false,
                text,
            };
        };
        let value = value.as_array().and_then(|list| list.first()).unwrap_or(&value);
        let error = if value["error"].is_null() { value } else { &value["error"] };
        let codes = [&error["code"], &error["type"], &error["status"], &value["code"]];
        let code = codes.into_iter().find_map(|code| match code {
            Value::String(text) => Some(text.clone()),
            Value::Number(number) => Some(number.to_string()),
            _ => None,
        });
        let string = |value: &Value| value.as_str().map(str::to_owned);
        let message = string(&value["base_resp"]["status_msg"])
            .or_else(|| string(&error["message"]))
            .or_else(|| string(error))
            .or_else(|| string(&value["detail"]));
        let is_said = message.is_some();
        let mut message = message.unwrap_or_else(|| body.trim().to_owned());
        // OpenRouter: what the provider behind it said.
        if let Some(raw) = error["metadata"]["raw"].as_str() {
            message.push_str(": ");
            message.push_str(raw);
        }
        let (retry_after, is_quota_of_day) = (retry_delay(error), is_quota_of_day(error));
        Self { code: code.unwrap_or_default(), message, is_said, retry_after, is_quota_of_day, text }
    }

    /// What the error means, whichever status it has.
    pub(super) fn judge(&self, status: u16) -> (Disposition, ErrorKind) {
        let is_refusal = (400..500).contains(&status);
        match status {
            300..400 => (Disposition::Failover, ErrorKind::NotFound),
            408 => (Disposition::Retry, ErrorKind::Timeout),
            _ if (is_refusal || status == 500) && self.is_about_account() => (Disposition::Failover, ErrorKind::Quota),
            _ if is_refusal && self.text.contains("api_key_invalid") => (Disposition::Failover, ErrorKind::Auth),
            403 | 451 if self.is_page() => (Disposition::Fatal, ErrorKind::Refused),
            400 | 403 | 422 if self.is_about_content() => (Disposition::Fatal, ErrorKind::Refused),
            400 | 422 | 500 if self.has_any(&MODEL_MISTAKES) => (Disposition::Retry, ErrorKind::InvalidResponse),
            402 => (Disposition::Failover, ErrorKind::Quota),
            413 => (Disposition::Fatal, ErrorKind::ContextLength),
            // By itself beyond the tokens of a minute: waiting does not help.
            429 if self.text.contains("request too large") => (Disposition::Fatal, ErrorKind::ContextLength),
            400 | 422 | 500 if self.is_about_context() => (Disposition::Fatal, ErrorKind::ContextLength),
            429 => (Disposition::Failover, ErrorKind::RateLimited),
            // The agreement is being made, which takes some minutes.
            403 if self.text.contains("marketplace") => (Disposition::Retry, ErrorKind::Server),
            401 | 403 => (Disposition::Failover, ErrorKind::Auth),
            404 => (Disposition::Failover, ErrorKind::NotFound),
            500 | 502 if self.has_any(&REQUEST_REFUSED) => (Disposition::Fatal, ErrorKind::BadRequest),
            500.. => (Disposition::Retry, ErrorKind::Server),
            _ => (Disposition::Fatal, ErrorKind::BadRequest),
        }
    }

    /// Read from the code and the message only: the rest may quote what the user wrote.
    pub(super) fn is_about_account(&self) -> bool {
        let message = if self.is_said { self.message.to_lowercase() } else { String::new() };
        ACCOUNT_CODES.iter().any(|code| self.code.contains(code) || message.contains(code))
            || self.code.parse().is_ok_and(|code| ACCOUNT_NUMBERS.iter().any(|range| range.contains(&code)))
            || self.is_quota_of_day
            || ACCOUNT.iter().any(|phrase| message.contains(phrase))
    }

    /// Whether the request exceeds the context window.
    pub(super) fn is_about_context(&self) -> bool {
        self.has_any(&CONTEXT) && !self.has_any(&NOT_CONTEXT)
    }

    /// Whether a filter refused the text of the request.
    pub(super) fn is_about_content(&self) -> bool {
        self.has_any(&MODERATED)
    }

    /// Whether it is a web page: of a firewall before the provider, or of another server.
    pub(super) fn is_page(&self) -> bool {
        self.text.trim_start().starts_with('<')
    }

    fn has_any(&self, phrases: &[&str]) -> bool {
        phrases.iter().any(|phrase| self.text.contains(phrase))
    }
}

/// Whether a model wrote a call that its server could not read.
pub(crate) fn is_model_mistake(text: &str) -> bool {
    MODEL_MISTAKES.iter().any(|words| text.contains(words))
}

/// Fields in which providers quote what they were sent, or what the model wrote.
const QUOTES: [&str; 4] = ["input", "ctx", "failed_generation", "flagged_input"];

/// An error without what it quotes: a conversation can have any words. The names of the fields stay.
pub(crate) fn said(body: &str) -> Cow<'_, str> {
    let Ok(mut value) = serde_json::from_str::<Value>(body) else { return Cow::Borrowed(body) };
    leave_out_quotes(&mut value);
    Cow::Owned(value.to_string())
}

fn leave_out_quotes(value: &mut Value) {
    match value {
        Value::Array(items) => items.iter_mut().for_each(leave_out_quotes),
        Value::Object(fields) => {
            for (name, field) in fields {
                if QUOTES.contains(&name.as_str()) {
                    *field = Value::Null;
                } else {
                    leave_out_quotes(field);
                }
            }
        }
        _ => {}
    }
}

/// `RetryInfo` of Google: `{"@type": "…RetryInfo", "retryDelay": "34.07s"}` in the details.
fn retry_delay(error: &Value) -> Option<Duration> {
    let delay = error["details"].as_array()?.iter().find_map(|detail| detail["retryDelay"].as_str())?;
    Duration::try_from_secs_f64(delay.strip_suffix('s')?.parse().ok()?).ok()
}

/// Whether a quota of the day is used up: `{"@type": "…QuotaFailure", "violations": [{"quotaId": "…PerDay…"}]}` in the details.
fn is_quota_of_day(error: &Value) -> bool {
    let details = error["details"].as_array().into_iter().flatten();
    let violations = details.filter_map(|detail| detail["violations"].as_array()).flatten();
    let mut quotas = violations.filter_map(|violation| violation["quotaId"].as_str()).peekable();
    // One of the minute beside it may be what is used up.
    quotas.peek().is_some() && quotas.all(|quota| quota.contains("PerDay"))
}
