//! `time`: what time it is, in UTC and in a time zone.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::json;

use super::builtin::{object, spec};
use base::{Zone, clock::Clock};

pub(super) struct Time(pub(super) Clock);

impl Tool for Time {
    fn spec(&self) -> ToolSpec {
        let properties = json!({"timezone": {"type": "string", "description": "IANA name, such as Europe/Oslo; UTC when left out."}});
        let parameters = object(&[], properties);
        spec("time", "Tells the time.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let zone = invocation.arguments.get("timezone").and_then(|zone| zone.as_str()).unwrap_or("UTC").to_owned();
        let now = self.0.now();
        Box::pin(async move {
            let zone: Zone = zone.parse().map_err(|_| {
                let message = format!("{zone:?} is no IANA time zone; use a name such as Europe/Oslo");
                ToolError::new(ToolErrorKind::InvalidParameters, message)
            })?;
            let local = now.with_timezone(&zone);
            let content = json!({
                "utc": now.to_rfc3339_opts(chrono::SecondsFormat::Secs, true),
                "local": local.to_rfc3339_opts(chrono::SecondsFormat::Secs, false),
                "timezone": zone.name(),
                "weekday": local.format("%A").to_string(),
                "unix": now.timestamp(),
            });
            Ok(ToolOutput::success(content))
        })
    }
}
