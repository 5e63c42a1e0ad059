//! Headers among the arguments of a call whose values are credentials. Pure.
//!
//! Never hides a name, or the value of another header: a person who approves a call sees what it sends. Secrets are found by
//! their value elsewhere, in every argument.

use serde_json::Value;

use crate::safety::REDACTED;

/// The parameter that has the headers of a request, by name.
const HEADERS: &str = "headers";

/// The value of a header is a credential if its name ends with one of these, with `-` or `_`.
const CREDENTIAL_NAMES: [&str; 7] = ["authorization", "cookie", "token", "-key", "apikey", "secret", "password"];

/// Names that end so, and whose values are identifiers that anyone may know.
const OTHER_KEYS: [&str; 7] = [
    "idempotency-key",
    "sec-websocket-key",
    "surrogate-key",
    "cache-key",
    "partition-key",
    "routing-key",
    "public-key",
];

/// The arguments without the values of headers that are credentials.
pub(super) fn without_credentials(mut arguments: Value) -> Value {
    if let Some(Value::Object(headers)) = arguments.get_mut(HEADERS) {
        for (_, value) in headers.iter_mut().filter(|(name, _)| is_credential(name)) {
            *value = REDACTED.into();
        }
    }
    arguments
}

fn is_credential(name: &str) -> bool {
    let name = name.trim().to_ascii_lowercase().replace('_', "-");
    let ends_with = |ends: &[&str]| ends.iter().any(|end| name.ends_with(end));
    ends_with(&CREDENTIAL_NAMES) && !ends_with(&OTHER_KEYS)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[rstest]
    #[case("Authorization")]
    #[case("proxy-authorization")]
    #[case("Cookie")]
    #[case("X-API-Key")]
    #[case("x_api_key")]
    #[case("ApiKey")]
    #[case("Private-Token")]
    #[case("X-Auth-Key")]
    #[case("Ocp-Apim-Subscription-Key")]
    #[case("x-functions-key")]
    #[case("DD-APPLICATION-KEY")]
    #[case("X_Access_Key")]
    #[case("X-Client-Secret ")]
    fn the_value_of_a_credential_is_hidden_and_its_name_shown(#[case] name: &str) {
        let shown = without_credentials(json!({"url": "u", "headers": {name: "hunter2", "x-note": "a text"}}));
        assert_eq!(shown, json!({"url": "u", "headers": {name: "[redacted]", "x-note": "a text"}}));
    }

    #[rstest]
    #[case(json!({"headers": {"Accept": "*/*", "x-note": "hunter2", "Authorization-Info": "x", "Tokens": 7}}))]
    #[case(json!({"headers": {"Idempotency-Key": "x", "X-Idempotency-Key": "x", "Sec-WebSocket-Key": "x", "Surrogate-Key": "x"}}))]
    #[case(json!({"headers": {"X-Cache-Key": "x", "x-public-key": "x", "monkey": "x", "X-Keyboard": "x"}}))]
    #[case(json!({"headers": ["Name", "Token"]}))]
    #[case(json!({"body": {"token": "x"}, "authorization": "x"}))]
    #[case(json!("headers"))]
    #[case(json!(null))]
    fn everything_else_is_shown(#[case] arguments: Value) {
        assert_eq!(without_credentials(arguments.clone()), arguments);
    }
}
