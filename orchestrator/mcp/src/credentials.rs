//! The headers of a server's requests, with the values of secrets in them.
//!
//! Guarantees that a value is only in memory. A connection is opened again when one of them changes.

use agent::safety::{LeakDetector, StoredSecret};
use secrecy::{ExposeSecret, SecretString};

use super::{error::McpError, server::ConfiguredServer};
use base::digest::sha256_hex_of_parts;
use config::McpTransport;
use egress::Host;
use secrets::Secrets;

/// The headers of one connection.
#[derive(Debug, Default)]
pub(super) struct Credentials {
    pub(super) headers: Vec<(String, SecretString)>,
    /// Changes with any value.
    pub(super) digest: String,
    /// Finds the values in what the server answers.
    pub(super) detector: Option<LeakDetector>,
}

/// Reads the secrets that a server's headers name.
pub(super) async fn credentials(
    server: &ConfiguredServer,
    user: &str,
    secrets: &Secrets,
) -> Result<Credentials, McpError> {
    let McpTransport::Http { url, headers, secrets_of } = &server.transport else { return Ok(Credentials::default()) };
    if headers.is_empty() {
        return Ok(Credentials::default());
    }
    let owner = secrets_of.as_deref().unwrap_or(user);
    let unavailable =
        |cause: &str| McpError::Unavailable { server: server.name.clone(), cause: cause.to_owned(), retry_after: None };
    let values = secrets.values_of(owner).await.map_err(|error| {
        tracing::error!(
            user = owner,
            error = &error as &dyn std::error::Error,
            "secrets for an MCP server cannot be read"
        );
        unavailable("its secrets cannot be read")
    })?;
    let host = host_of(url);
    let mut found = Vec::with_capacity(headers.len());
    let mut values_in_use = Vec::with_capacity(headers.len());
    for (name, template) in headers {
        let missing = |not_for| McpError::MissingSecret {
            server: server.name.clone(),
            secret: template.secret.clone(),
            owner: owner.to_owned(),
            is_own: owner == user,
            not_for,
        };
        let secret = values.iter().find(|one| one.name == template.secret).ok_or_else(|| missing(None))?;
        if !secret.is_for(&host) {
            return Err(missing(Some(host)));
        }
        let value = format!("{}{}{}", template.prefix, secret.value.expose_secret(), template.suffix);
        found.push((name.clone(), SecretString::from(value)));
        values_in_use.push(StoredSecret { name: &template.secret, value: secret.value.expose_secret() });
    }
    let parts: Vec<&[u8]> = found
        .iter()
        .flat_map(|(name, value)| [name.as_bytes(), b"\0", value.expose_secret().as_bytes(), b"\0"])
        .collect();
    let digest = sha256_hex_of_parts(&parts);
    let detector = LeakDetector::new(values_in_use).map_err(|_| unavailable("its secrets are too large"))?;
    Ok(Credentials { headers: found, digest, detector: Some(detector) })
}

/// The host of a URL of the configuration, as secrets name it.
fn host_of(url: &str) -> String {
    let uri = url.parse::<http::Uri>().ok();
    let host = uri.as_ref().and_then(http::Uri::host).unwrap_or_default();
    Host::parse(host).map_or_else(|_| host.to_owned(), |host| host.to_string())
}
