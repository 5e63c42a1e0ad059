//! What an access token says about itself.

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use protocol::{ActorRole, is_user_name};
use serde_json::Value;

/// Maximum token size; tokens issued here have about 300 bytes.
const MAX_TOKEN_BYTES: usize = 8 * 1024;

/// What a token says about itself, without any check: for a client that shows it, never for a decision about access.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct UnverifiedClaims {
    pub(crate) user: String,
    /// The role, if this version knows it.
    pub(crate) role: Option<ActorRole>,
    pub(crate) expires_at: Option<DateTime<Utc>>,
}

impl UnverifiedClaims {
    /// Reads the claims. `None` if the token has no valid user.
    pub(crate) fn of(token: &str) -> Option<Self> {
        let payload = token.split('.').nth(1).filter(|_| token.len() <= MAX_TOKEN_BYTES)?;
        let claims: Value = serde_json::from_slice(&BASE64_URL_SAFE_NO_PAD.decode(payload).ok()?).ok()?;
        let user = claims.get("sub")?.as_str().filter(|user| is_user_name(user))?.to_owned();
        let role = claims.get("role").and_then(|role| serde_json::from_value(role.clone()).ok());
        let expires_at = claims.get("exp").and_then(Value::as_i64).and_then(|at| DateTime::from_timestamp(at, 0));
        Some(Self { user, role, expires_at })
    }
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    #[test]
    fn the_claims_of_a_token_are_read_without_its_key() {
        let part = |value: &Value| BASE64_URL_SAFE_NO_PAD.encode(value.to_string());
        let token = |claims: &Value| format!("{}.{}.c2ln", part(&json!({"alg": "HS256"})), part(claims));
        let claims = json!({"sub": "ada@example.org", "role": "user", "exp": 1_800_000_000, "jti": "j"});
        let expires_at = DateTime::from_timestamp(1_800_000_000, 0);
        let wanted = UnverifiedClaims { user: "ada@example.org".to_owned(), role: Some(ActorRole::User), expires_at };
        assert_eq!(UnverifiedClaims::of(&token(&claims)), Some(wanted));
        for other in ["", "a.b.c", "no-jwt", &token(&json!({"sub": "a/b"}))] {
            assert_eq!(UnverifiedClaims::of(other), None, "{other}");
        }
    }
}
