//! `http`: one request to a destination that the job's egress list and the operator's ceiling allow.
//!
//! Owns the arguments and what the model reads of a response. Which addresses may be dialled is the egress client's
//! decision.

mod log;
mod response;
mod text;

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolErrorKind, WorkId};
use serde::{Deserialize, de::IgnoredAny};
use serde_json::{Map, Value, json};
use std::time::Duration;

pub(super) use log::EgressLog;

use super::builtin::{object, spec};
use egress::{EgressClient, EgressError, InvalidRequest, OutboundRequest, ResponseLimits};

pub(super) const NAME: &str = "http";

/// What is read of a response, and the time for it, redirects included.
const LIMITS: ResponseLimits = ResponseLimits { body_bytes: 5 * 1024 * 1024, time: Duration::from_secs(30) };

/// Time limit of a call. What has come by the end of the time for the response is still recorded and returned.
const TIMEOUT: Duration = Duration::from_secs(40);

pub(super) struct Http {
    pub(super) client: EgressClient,
    /// Where decisions for jobs are recorded.
    pub(super) log: EgressLog,
}

#[derive(Deserialize)]
struct Arguments {
    method: String,
    url: String,
    #[serde(default)]
    headers: Map<String, Value>,
    body: Option<Value>,
}

impl Tool for Http {
    fn spec(&self) -> ToolSpec {
        let body =
            json!({"type": "string", "description": "Text. A JSON object or array is sent as application/json."});
        let description = "Sends an HTTP request and returns the final URL, status, headers and body. Only allowed hosts can be reached.";
        ToolSpec {
            timeout: TIMEOUT,
            approval: ApprovalRequirement::UnlessAutoApproved,
            ..spec(NAME, description, parameters(&body))
        }
    }

    /// Models give the value of a JSON body, too.
    fn accepted_parameters(&self) -> Option<Value> {
        Some(parameters(&json!({"type": ["string", "object", "array"]})))
    }

    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        let refused = |error: EgressError| ToolError::new(kind(&error), error.to_string());
        let destination = request(arguments.clone())?.destination().map_err(|error| refused(error.into()))?;
        self.client.policy().rules().check_destination(&destination).map_err(|denied| refused(denied.into()))
    }

    fn call(
        &self,
        Invocation { arguments, context, stop, .. }: Invocation,
    ) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let request = request(arguments)?;
            let policy = self.client.policy();
            let rules = match context.work {
                WorkId::Job(_) if context.egress.enabled => policy.rules_of_job(&context.egress.allow),
                WorkId::Job(_) => policy.rules_of_job(&[]),
                WorkId::Run(_) | WorkId::Thread(_) => policy.rules(),
            };
            let stopped = || ToolError::new(ToolErrorKind::Failed, "stopped before the response was complete");
            let mut records = Vec::new();
            let response = tokio::select! {
                response = self.client.send(&rules, request, LIMITS, &mut records) => Some(response),
                () = stop.cancelled() => None,
            };
            if let WorkId::Job(job) = context.work {
                self.log.append(job, context.owner.as_str(), records).await?;
            }
            let response = response.ok_or_else(stopped)?;
            response.map(response::output).map_err(|error| ToolError::new(kind(&error), message(&error)))
        })
    }
}

fn parameters(body: &Value) -> Value {
    let properties = json!({
        "method": {"type": "string", "enum": ["GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"]},
        "url": {"type": "string", "description": "An https:// or http:// URL, without a user or password."},
        "headers": {"type": "object", "additionalProperties": {"type": "string"}},
        "body": body
    });
    object(&["method", "url"], properties)
}

fn request(arguments: Value) -> Result<OutboundRequest, ToolError> {
    let wrong = |message: String| ToolError::new(ToolErrorKind::InvalidParameters, message);
    let invalid = |error: InvalidRequest| wrong(error.to_string());
    let Arguments { method, url, headers, body } =
        serde_json::from_value(arguments).map_err(|error| wrong(error.to_string()))?;
    let mut request = OutboundRequest::new(&method, &url).map_err(invalid)?;
    for (name, value) in &headers {
        let value = value.as_str().ok_or_else(|| wrong(format!("the header {name} must be a string")))?;
        request.header(name, value).map_err(invalid)?;
    }
    match body {
        None | Some(Value::Null) => {}
        Some(Value::String(text)) => {
            let kind = if is_json(&text) { "application/json" } else { "text/plain; charset=utf-8" };
            request.set_body(text.into_bytes(), kind);
        }
        Some(value) => request.set_body(value.to_string().into_bytes(), "application/json"),
    }
    Ok(request)
}

/// Whether a text is an object or an array.
fn is_json(text: &str) -> bool {
    text.trim_start().starts_with(['{', '[']) && serde_json::from_str::<IgnoredAny>(text).is_ok()
}

fn kind(error: &EgressError) -> ToolErrorKind {
    match error {
        EgressError::Invalid(_) => ToolErrorKind::InvalidParameters,
        EgressError::Denied(_) => ToolErrorKind::NotAuthorized,
        EgressError::Redirect(cause) => match kind(cause) {
            ToolErrorKind::NotAuthorized => ToolErrorKind::NotAuthorized,
            _ => ToolErrorKind::External,
        },
        EgressError::TimedOut { .. } => ToolErrorKind::Timeout,
        EgressError::TooManyRedirects | EgressError::Unresolved(_) | EgressError::Transport { .. } => {
            ToolErrorKind::External
        }
    }
}

/// What the model reads. It must not take a request for unsent that has been carried out.
fn message(error: &EgressError) -> String {
    let is_sent = matches!(error, EgressError::Transport { is_unsent: false, .. });
    if is_sent { format!("{error}; the request may have been carried out") } else { error.to_string() }
}

#[cfg(test)]
mod tests;
