//! The address of a provider's calls, and the secrets in it.
//!
//! A base URL may carry a user part and a query. Both are used and neither is shown: the user part becomes a header,
//! the query stays at the end of the address.

use base::mask_urls;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};

use crate::wire::Wire;

/// A shorter text is part of many words, so it is redacted only together with its name.
const MIN_LONE_SECRET_BYTES: usize = 6;
/// Replaces a secret of the address.
const REDACTED: &str = "[hidden]";

/// A provider's address.
pub(super) struct Address {
    /// The base URL.
    pub(super) url: reqwest::Url,
    /// `Basic …`, when the base URL names a user.
    pub(super) authorization: Option<SecretString>,
    /// The longest first.
    secrets: Vec<SecretString>,
}

impl Address {
    /// Parses a base URL.
    pub(super) fn of(base_url: &str) -> Result<Self, String> {
        let base_url = base_url.trim();
        let masked_url = mask_urls(base_url);
        let mut url = reqwest::Url::parse(base_url).map_err(|error| format!("'{masked_url}' is not a URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("'{masked_url}' must start with http:// or https:// and name a host"));
        }
        let (authorization, mut secrets) = user_part(&url);
        secrets.extend(query_secrets(&url));
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        // Setting a user or password on a URL with a host cannot fail.
        let _ = (url.set_username(""), url.set_password(None));
        url.set_fragment(None);
        Ok(Self {
            url,
            authorization: authorization.map(SecretString::from),
            secrets: secrets.into_iter().map(SecretString::from).collect(),
        })
    }

    /// The URL that calls are sent to.
    pub(super) fn of_call(&self, wire: Wire) -> reqwest::Url {
        let mut url = self.url.clone();
        url.set_path(&call_path(wire, url.path()));
        url
    }

    /// `text` without the secrets of the address; a provider may quote them.
    pub(super) fn redact(&self, text: &str) -> String {
        self.secrets.iter().fold(mask_urls(text), |text, secret| text.replace(secret.expose_secret(), REDACTED))
    }

    /// Azure expects keys in a separate header.
    pub(super) fn is_azure(&self) -> bool {
        let rest = self.host().strip_suffix("azure.com");
        rest.is_some_and(|rest| rest.is_empty() || rest.ends_with('.'))
    }

    /// The host, in lower case.
    pub(super) fn host(&self) -> &str {
        self.url.host_str().unwrap_or_default()
    }
}

fn call_path(wire: Wire, base: &str) -> String {
    let base = base.trim_end_matches('/');
    // Anthropic's own clients are configured with the address without the version.
    let version = if wire == Wire::Anthropic && base.is_empty() { "/v1" } else { "" };
    format!("{base}{version}/{}", wire.path())
}

/// The Authorization header for the URL's user part, and the secrets in it.
fn user_part(url: &reqwest::Url) -> (Option<String>, Vec<String>) {
    if url.username().is_empty() && url.password().is_none() {
        return (None, vec![]);
    }
    let raw = [url.username(), url.password().unwrap_or_default()];
    let [user, password] = raw.map(|part| percent_decode_str(part).decode_utf8_lossy().into_owned());
    let basic = BASE64_STANDARD.encode(format!("{user}:{password}"));
    // A user part without a password is a token.
    let lone =
        if password.is_empty() { [user.clone(), raw[0].to_owned()] } else { [password.clone(), raw[1].to_owned()] };
    let mut secrets = vec![format!("{user}:{password}"), format!("{}:{}", raw[0], raw[1]), basic.clone()];
    secrets.extend(lone.into_iter().filter(|secret| secret.len() >= MIN_LONE_SECRET_BYTES));
    (Some(format!("Basic {basic}")), secrets)
}

fn query_secrets(url: &reqwest::Url) -> Vec<String> {
    let mut secrets: Vec<String> =
        url.query().into_iter().flat_map(|query| query.split('&')).map(str::to_owned).collect();
    for (name, value) in url.query_pairs() {
        secrets.push(format!("{name}={value}"));
        secrets.push(value.into_owned());
    }
    secrets.extend(secrets.clone().iter().filter_map(|pair| pair.split_once('=')).map(|(_, value)| value.to_owned()));
    secrets.retain(|secret| secret.len() >= MIN_LONE_SECRET_BYTES || secret.contains('=') && secret.len() > 2);
    secrets
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn address(base_url: &str) -> Address {
        Address::of(base_url).unwrap_or_else(|error| panic!("{error}"))
    }

    #[rstest]
    #[case(Wire::OpenAiChat, "http://host:1/v1", "http://host:1/v1/chat/completions")]
    #[case(Wire::OpenAiChat, " http://host:1/v1/ ", "http://host:1/v1/chat/completions")]
    #[case(Wire::OpenAiChat, "http://host:1", "http://host:1/chat/completions")]
    #[case(Wire::OpenAiChat, "http://u:p@host:1/v1?api-version=1", "http://host:1/v1/chat/completions?api-version=1")]
    #[case(Wire::OpenAiResponses, "http://host:1/v1", "http://host:1/v1/responses")]
    #[case(Wire::Anthropic, "http://host:1", "http://host:1/v1/messages")]
    #[case(Wire::Anthropic, "http://host:1/proxy/v1", "http://host:1/proxy/v1/messages")]
    #[case(Wire::Anthropic, "http://host:1?k=v#f", "http://host:1/v1/messages?k=v")]
    #[case(Wire::Ollama, "http://host:1", "http://host:1/api/chat")]
    #[case(Wire::Ollama, "http://host:1/?k=v", "http://host:1/api/chat?k=v")]
    fn addresses_of_calls(#[case] wire: Wire, #[case] base_url: &str, #[case] expected: &str) {
        assert_eq!(address(base_url).of_call(wire).as_str(), expected);
    }

    #[rstest]
    #[case("https://api.openai.com/v1", false)]
    #[case("https://eu.api.openai.com/v1", false)]
    #[case("https://house.openai.azure.com/openai/deployments/x?api-version=1", true)]
    #[case("https://notopenai.com/v1", false)]
    #[case("http://127.0.0.1:8000/v1", false)]
    fn azure_is_told_by_its_host(#[case] base_url: &str, #[case] is_azure: bool) {
        assert_eq!(address(base_url).is_azure(), is_azure);
    }

    #[test]
    fn a_user_part_is_a_header_and_no_secret_of_the_address_is_shown() {
        let base_url = "http://bob:hunter2%21@host:1/v1?key=abc&api-key=0123456789";
        let address = address(base_url);
        let sent = address.authorization.as_ref().map(|header| header.expose_secret().to_owned());
        assert_eq!(sent.as_deref(), Some("Basic Ym9iOmh1bnRlcjIh"));
        let quoted =
            format!("{base_url} hunter2! hunter2%21 Ym9iOmh1bnRlcjIh ?key=abc&api-key=0123456789 0123456789 fine");
        let redacted = address.redact(&quoted);
        for secret in ["hunter2", "abc", "0123456789", "Ym9i"] {
            assert!(!redacted.contains(secret), "{redacted}");
        }
        assert!(redacted.ends_with("fine"), "{redacted}");
    }

    #[rstest]
    #[case("host:1/v1")]
    #[case("/v1")]
    #[case("ftp://u:secret@host/v1?key=secret")]
    fn invalid_addresses_are_refused(#[case] base_url: &str) {
        let error = Address::of(base_url).map(|_| ()).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
