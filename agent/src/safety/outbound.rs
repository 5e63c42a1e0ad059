//! Checks the arguments of tools that send them out of this installation. Pure.

use protocol::ToolErrorKind;
use serde_json::Value;

use super::leak::{Finding, LeakAction, LeakDetector};
use crate::ToolError;

/// Built-in tools whose arguments leave. `message` delivers to channels outside.
const SENDING_TOOLS: [&str; 2] = ["http", "message"];

/// Separates the name of an MCP server from the name of its tool. Arguments of those leave, too.
const MCP_SEPARATOR: &str = "__";

/// Arguments that must not leave.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("the arguments contain {}, which must not leave this installation; remove it", list(.0))]
pub struct OutboundRefused(pub Vec<Finding>);

impl From<OutboundRefused> for ToolError {
    fn from(refused: OutboundRefused) -> Self {
        Self::new(ToolErrorKind::NotAuthorized, refused.to_string())
    }
}

fn list(findings: &[Finding]) -> String {
    let names: Vec<String> = findings.iter().map(|finding| finding.source.to_string()).collect();
    names.join(", ")
}

/// Whether the arguments of this tool leave the installation.
pub fn tool_sends_arguments(tool: &str) -> bool {
    SENDING_TOOLS.contains(&tool) || tool.contains(MCP_SEPARATOR)
}

/// Redacts arguments that leave, in place: URLs, header names and values, bodies. Refuses them if a rule says to block
/// what was found. A string that is JSON text is also read as the value that its reader will see.
pub fn screen_outbound(detector: &LeakDetector, arguments: &mut Value) -> Result<Vec<Finding>, OutboundRefused> {
    let mut findings = detector.redact_arguments(arguments);
    redact_embedded(detector, arguments, &mut findings);
    findings.sort();
    findings.dedup();
    let blocked: Vec<Finding> =
        findings.iter().filter(|finding| finding.action == LeakAction::Block).cloned().collect();
    if blocked.is_empty() { Ok(findings) } else { Err(OutboundRefused(blocked)) }
}

/// Escapes such as `\u0061` hide a credential that is known by its format from a search of the text, and a secret that
/// is encoded in another way as well. The text is replaced only if its value had one.
fn redact_embedded(detector: &LeakDetector, value: &mut Value, findings: &mut Vec<Finding>) {
    match value {
        Value::String(text) if text.contains('\\') => {
            let Ok(mut embedded) = serde_json::from_str::<Value>(text) else { return };
            let before = embedded.clone();
            findings.extend(detector.redact_arguments(&mut embedded));
            if embedded != before {
                *text = embedded.to_string();
            }
        }
        Value::Array(items) => items.iter_mut().for_each(|item| redact_embedded(detector, item, findings)),
        Value::Object(fields) => fields.values_mut().for_each(|field| redact_embedded(detector, field, findings)),
        Value::Null | Value::Bool(_) | Value::Number(_) | Value::String(_) => {}
    }
}

#[cfg(test)]
mod tests {
    use base64::{Engine as _, prelude::BASE64_STANDARD};
    use rstest::rstest;
    use serde_json::json;

    use super::*;
    use crate::safety::{LeakSource, StoredSecret};

    const SECRET: &str = "correct/horse+battery";

    fn detector() -> LeakDetector {
        LeakDetector::new([StoredSecret { name: "api", value: SECRET }]).unwrap()
    }

    #[rstest]
    #[case(json!({"url": format!("https://a.example/?q={SECRET}")}), json!({"url": "https://a.example/?q=[redacted:api]"}))]
    #[case(json!({"url": "https://a.example/?q=correct%2fhorse%2Bbattery&r=1"}), json!({"url": "https://a.example/?q=[redacted:api]&r=1"}))]
    #[case(json!({"headers": {"X-Key": SECRET, SECRET: "x"}}), json!({"headers": {"X-Key": "[redacted:api]", "[redacted:api]": "x"}}))]
    #[case(json!({"content": format!("it is {SECRET}.")}), json!({"content": "it is [redacted:api]."}))]
    #[case(
        json!({"body": "{\"a\": \"correct\\/horse\\u002bbattery\"}"}),
        json!({"body": "{\"a\": \"[redacted:api]\"}"})
    )]
    #[case(
        json!({"body": "{\"a\": \"correct\\u00252fhorse%2Bbattery\"}"}),
        json!({"body": "{\"a\":\"[redacted:api]\"}"})
    )]
    fn a_stored_secret_does_not_leave(#[case] mut arguments: Value, #[case] expected: Value) {
        let findings = screen_outbound(&detector(), &mut arguments).unwrap();
        assert_eq!(arguments, expected);
        let source = LeakSource::StoredSecret("api".to_owned());
        assert_eq!(findings, [Finding { source, action: LeakAction::Redact }]);
    }

    #[test]
    fn basic_authentication_is_found() {
        let basic = format!("Basic {}", BASE64_STANDARD.encode(format!("bob:{SECRET}")));
        let mut arguments = json!({"headers": {"Authorization": basic}});
        assert_eq!(screen_outbound(&detector(), &mut arguments).unwrap().len(), 1);
        let sent = arguments["headers"]["Authorization"].as_str().unwrap();
        assert!(sent.contains("[redacted:api]") && sent.starts_with("Basic Ym9iO"), "{sent}");
    }

    #[test]
    fn a_private_key_is_refused_without_showing_it() {
        let key = "-----BEGIN PRIVATE KEY-----\nMIIEvQIBADANBgkq\n-----END PRIVATE KEY-----\n";
        let refused = screen_outbound(&detector(), &mut json!({"body": key})).unwrap_err();
        let error = ToolError::from(refused);
        assert_eq!(error.0.kind, ToolErrorKind::NotAuthorized);
        assert!(error.0.message.contains("a private key") && !error.0.message.contains("MIIE"), "{error}");
    }

    #[test]
    fn other_arguments_stay() {
        let arguments = json!({"url": "https://a.example/%7Ebob", "body": "{\"a\": \"\\u00e9\", \"n\": 1.50}", "n": [1, null, true]});
        let mut sent = arguments.clone();
        assert_eq!(screen_outbound(&detector(), &mut sent), Ok(vec![]));
        assert_eq!(sent, arguments);
    }

    #[rstest]
    #[case("http", true)]
    #[case("message", true)]
    #[case("github__create_issue", true)]
    #[case("shell", false)]
    fn sending_tools_are_known(#[case] tool: &str, #[case] sends: bool) {
        assert_eq!(tool_sends_arguments(tool), sends);
    }
}
