//! Users' secrets on the wire: a value goes in and never comes back.

use std::fmt;

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::limits::MAX_SECRET_NAME_BYTES;

/// `POST /api/secrets`. `Debug` does not show the value.
#[derive(Clone, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct SetSecret {
    /// 1 to 64 letters, digits and `_.-`.
    pub name: String,
    /// 8 bytes to 64 KiB. No response contains it.
    pub value: String,
    /// Stores a value that ordinary text contains, too: it is then redacted wherever it occurs.
    #[serde(default)]
    pub force: bool,
    /// The hosts that it may be sent to, at most 20, each a name or an address without a port: it is used for no other.
    /// An empty list: any host. Without it a secret keeps its hosts, and a new one has none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hosts: Option<Vec<String>>,
}

impl fmt::Debug for SetSecret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("SetSecret").field("name", &self.name).finish_non_exhaustive()
    }
}

/// What the API tells about a secret.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[cfg_attr(feature = "sqlx", derive(sqlx::FromRow))]
pub struct SecretSummary {
    /// Its name.
    pub name: String,
    /// When a secret of this name was created.
    pub created_at: DateTime<Utc>,
    /// When its value was last set.
    pub updated_at: DateTime<Utc>,
    /// The hosts that it may be sent to; empty: any host.
    #[serde(default)]
    #[cfg_attr(feature = "sqlx", sqlx(json))]
    pub hosts: Vec<String>,
}

/// Whether `name` is a valid name of a secret: 1 to 64 letters, digits and `_.-`, but not `.` or `..`, which no URL can have as
/// a component.
pub fn is_secret_name(name: &str) -> bool {
    (1..=MAX_SECRET_NAME_BYTES).contains(&name.len())
        && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
        && !matches!(name, "." | "..")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn debug_shows_no_value() {
        let secret = SetSecret { name: "TOKEN".to_owned(), value: "hunter22".to_owned(), force: false, hosts: None };
        let shown = format!("{secret:?}");
        assert!(shown.contains("TOKEN") && !shown.contains("hunter"), "{shown}");
    }

    #[test]
    fn names_are_plain() {
        for name in ["a", "GITHUB_TOKEN", "a.b-c_D9", &"x".repeat(64)] {
            assert!(is_secret_name(name), "{name}");
        }
        for name in ["", " ", "a b", "a/b", "ä", "a\n", &"x".repeat(65)] {
            assert!(!is_secret_name(name), "{name:?}");
        }
    }

    #[test]
    fn a_name_is_a_component_of_a_url() {
        for (name, is_valid) in
            [("a", true), ("a.b-C_9", true), ("...", true), ("", false), (".", false), ("..", false)]
        {
            assert_eq!(is_secret_name(name), is_valid, "{name:?}");
        }
        assert!(is_secret_name(&"x".repeat(64)) && !is_secret_name(&"x".repeat(65)));
        assert!(!is_secret_name("a/b") && !is_secret_name("é") && !is_secret_name("a\n"));
    }
}
