//! Headers among the arguments of a call whose values are credentials. Pure.
//!
//! Never hides a name, or the value of another header: a person who approves a call sees what it sends. Secrets are found by
//! their value elsewhere, in every argument.

use serde_json::Value;

use crate::safety::REDACTED;

/// The parameter that has the headers of a request, by name.
const HEADERS: &str = "headers";

/// The value of a header is a credential if its name ends with one of these, with `-` or `_`.
const CREDENTIAL_NAMES: [&str; 7] = ["authorization", "cookie", "token", "api-key", "apikey", "secret", "password"];

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
    CREDENTIAL_NAMES.iter().any(|credential| name.ends_with(credential))
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
    #[case("X-Client-Secret ")]
    fn the_value_of_a_credential_is_hidden_and_its_name_shown(#[case] name: &str) {
        let shown = without_credentials(json!({"url": "u", "headers": {name: "hunter2", "x-note": "a text"}}));
        assert_eq!(shown, json!({"url": "u", "headers": {name: "[redacted]", "x-note": "a text"}}));
    }

    #[rstest]
    #[case(json!({"headers": {"Accept": "*/*", "x-note": "hunter2", "Authorization-Info": "x", "Tokens": 7}}))]
    #[case(json!({"headers": ["Name", "Token"]}))]
    #[case(json!({"body": {"token": "x"}, "authorization": "x"}))]
    #[case(json!("headers"))]
    #[case(json!(null))]
    fn everything_else_is_shown(#[case] arguments: Value) {
        assert_eq!(without_credentials(arguments.clone()), arguments);
    }
}
