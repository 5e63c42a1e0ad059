//! Where a provider answers: the address of its calls and what of the base URL must not be told.
//!
//! A base URL may carry a user part and a query. Both are used and neither is shown: the user part becomes a header, the
//! query stays at the end of the address, behind the path that the client library adds.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use percent_encoding::percent_decode_str;
use secrecy::{ExposeSecret, SecretString};

use super::RemoteKind;
use crate::config::mask_urls;

/// A shorter text stands in many words, so it is hidden only together with its name.
const MIN_LONE_SECRET_BYTES: usize = 6;
/// Stands where a secret of the address was.
const HIDDEN: &str = "[hidden]";

/// A provider's address.
pub(super) struct Address {
    /// For the client library, which appends the path of a call.
    pub(super) base: String,
    /// `Basic …`, when the base URL names a user.
    pub(super) authorization: Option<SecretString>,
    /// What must not be told, the longest first.
    secrets: Vec<SecretString>,
}

impl Address {
    /// From the operator's base URL, or the kind's own.
    pub(super) fn of(kind: RemoteKind, told: Option<&str>) -> Result<Self, String> {
        let Some(told) = told.map(str::trim).filter(|told| !told.is_empty()) else {
            let base = with_path(kind, reqwest::Url::parse(kind.own_address()).map_err(|error| error.to_string())?);
            return Ok(Self { base, authorization: None, secrets: vec![] });
        };
        let shown = mask_urls(told);
        let mut url = reqwest::Url::parse(told).map_err(|error| format!("'{shown}' is no URL: {error}"))?;
        if !matches!(url.scheme(), "http" | "https") || url.host_str().is_none() {
            return Err(format!("'{shown}': give http:// or https:// and a host"));
        }
        let (authorization, mut secrets) = user_part(&url);
        secrets.extend(query_secrets(&url));
        secrets.sort_by_key(|secret| std::cmp::Reverse(secret.len()));
        // A URL with a host takes both.
        let _ = (url.set_username(""), url.set_password(None));
        url.set_fragment(None);
        Ok(Self {
            base: with_path(kind, url),
            authorization: authorization.map(SecretString::from),
            secrets: secrets.into_iter().map(SecretString::from).collect(),
        })
    }

    /// `text` without what of the address must not be told; a provider may quote it.
    pub(super) fn hide(&self, text: &str) -> String {
        self.secrets.iter().fold(mask_urls(text), |text, secret| text.replace(secret.expose_secret(), HIDDEN))
    }
}

/// The library joins paths to the base, so that without its last slash the last part would be lost.
fn with_path(kind: RemoteKind, mut url: reqwest::Url) -> String {
    let mut path = url.path().to_owned();
    if !path.ends_with('/') {
        path.push('/');
    }
    // Anthropic's own clients take the address without the version.
    if kind == RemoteKind::Anthropic && path == "/" {
        path.push_str("v1/");
    }
    match (url.query(), kind) {
        // For this wire the library joins paths as it should.
        (None, _) | (_, RemoteKind::OpenAi) => {
            url.set_path(&path);
            url.into()
        }
        // For these it only appends the path, so the path is put where it belongs, and what is appended becomes a fragment,
        // which is not sent.
        (Some(_), RemoteKind::Anthropic | RemoteKind::Ollama) => {
            let call = if kind == RemoteKind::Anthropic { "messages" } else { "api/chat" };
            url.set_path(&format!("{path}{call}"));
            format!("{url}#")
        }
    }
}

/// The header that the user part stands for, and the secrets in it.
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

    #[rstest]
    #[case(RemoteKind::OpenAi, None, "https://api.openai.com/v1/")]
    #[case(RemoteKind::OpenAi, Some(" "), "https://api.openai.com/v1/")]
    #[case(RemoteKind::OpenAi, Some("http://host:1/v1"), "http://host:1/v1/")]
    #[case(RemoteKind::OpenAi, Some("http://host:1/v1/"), "http://host:1/v1/")]
    #[case(RemoteKind::OpenAi, Some("http://host:1"), "http://host:1/")]
    #[case(RemoteKind::OpenAi, Some("http://u:p@host:1/v1?api-version=1"), "http://host:1/v1/?api-version=1")]
    #[case(RemoteKind::Anthropic, Some("http://host:1"), "http://host:1/v1/")]
    #[case(RemoteKind::Anthropic, Some("http://host:1/proxy/v1"), "http://host:1/proxy/v1/")]
    #[case(RemoteKind::Anthropic, Some("http://host:1?k=v#f"), "http://host:1/v1/messages?k=v#")]
    #[case(RemoteKind::Ollama, Some("http://host:1"), "http://host:1/")]
    #[case(RemoteKind::Ollama, Some("http://host:1/?k=v"), "http://host:1/api/chat?k=v#")]
    fn bases(#[case] kind: RemoteKind, #[case] told: Option<&str>, #[case] expected: &str) {
        assert_eq!(Address::of(kind, told).unwrap_or_else(|error| panic!("{error}")).base, expected);
    }

    #[test]
    fn a_user_part_is_a_header_and_nothing_of_it_or_the_query_is_told() {
        let told = "http://bob:hunter2%21@host:1/v1?key=abc&api-key=0123456789";
        let address = Address::of(RemoteKind::OpenAi, Some(told)).unwrap_or_else(|error| panic!("{error}"));
        let sent = address.authorization.as_ref().map(|header| header.expose_secret().to_owned());
        assert_eq!(sent.as_deref(), Some("Basic Ym9iOmh1bnRlcjIh"));
        let quoted = format!("{told} hunter2! hunter2%21 Ym9iOmh1bnRlcjIh ?key=abc&api-key=0123456789 0123456789 fine");
        let hidden = address.hide(&quoted);
        for secret in ["hunter2", "abc", "0123456789", "Ym9i"] {
            assert!(!hidden.contains(secret), "{hidden}");
        }
        assert!(hidden.ends_with("fine"), "{hidden}");
    }

    #[rstest]
    #[case("host:1/v1")]
    #[case("/v1")]
    #[case("ftp://u:secret@host/v1?key=secret")]
    fn what_is_no_address_is_refused(#[case] told: &str) {
        let error = Address::of(RemoteKind::OpenAi, Some(told)).map(|_| ()).unwrap_err();
        assert!(!error.contains("secret"), "{error}");
    }
}
