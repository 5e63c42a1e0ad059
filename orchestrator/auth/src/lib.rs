//! Tokens of users of the public API, cookies of their browsers' sessions, and tokens of workers.
//!
//! Owns the signing key and the kinds of token; none is accepted in place of another. The only importer of the
//! JWT library. Revocation is the store's.

mod key;
mod worker;

use std::fmt;

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use chrono::{DateTime, Utc};
use jsonwebtoken::{Algorithm, Header, Validation, errors::ErrorKind};
use protocol::{ActorRole, InstanceId, JobId, is_user_name};
use serde::{Deserialize, Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use uuid::Uuid;

pub use key::{KeyError, SigningKey};
pub use worker::{WorkerToken, WorkerTokens};

const PUBLIC_ISSUER: &str = "gantry";
const PUBLIC_AUDIENCE: &str = "gantry-api";
const SESSION_AUDIENCE: &str = "gantry-session";
const WORKER_AUDIENCE: &str = "gantry-worker";
/// Maximum token size; tokens issued here have about 300 bytes.
const MAX_TOKEN_BYTES: usize = 8 * 1024;
const MAX_JTI_BYTES: usize = 128;
/// A worker's token outlives the job's own time limit by this much: the job's
/// row ends it, not the clock.
const WORKER_TOKEN_SLACK: chrono::Duration = chrono::Duration::hours(24);

/// The role of a user.
#[derive(
    Debug,
    Clone,
    Copy,
    PartialEq,
    Eq,
    Hash,
    Serialize,
    Deserialize,
    strum::EnumString,
    strum::IntoStaticStr,
    strum::VariantArray,
)]
#[serde(rename_all = "snake_case")]
#[strum(serialize_all = "snake_case")]
pub enum Role {
    /// Reads and changes everything.
    Admin,
    /// Reads and changes what belongs to the user.
    User,
    /// Reads what belongs to the user.
    Viewer,
}

impl Role {
    /// The name in a token.
    pub fn as_str(self) -> &'static str {
        self.into()
    }

    /// Parses the name in a token.
    pub fn parse(text: &str) -> Option<Self> {
        text.parse().ok()
    }

    /// Whether the role may make changes.
    pub const fn may_write(self) -> bool {
        matches!(self, Self::Admin | Self::User)
    }

    /// Whether the role sees what belongs to other users.
    pub const fn sees_all(self) -> bool {
        matches!(self, Self::Admin)
    }
}

impl From<Role> for ActorRole {
    fn from(role: Role) -> Self {
        match role {
            Role::Admin => Self::Admin,
            Role::User => Self::User,
            Role::Viewer => Self::Viewer,
        }
    }
}

/// An authenticated caller of the public API.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Identity {
    pub user: String,
    pub role: Role,
    /// The id of the token, by which it is revoked, or of the session.
    pub jti: String,
    /// Whether a browser's session was presented, in place of a token.
    pub is_session: bool,
    pub expires_at: DateTime<Utc>,
}

impl Identity {
    /// Whether the caller sees what belongs to `owner`.
    pub fn may_see(&self, owner: &str) -> bool {
        self.user == owner || self.role.sees_all()
    }
}

/// The bearer of a worker token.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct WorkerIdentity {
    pub job_id: JobId,
    pub attempt: u32,
    /// The token's id.
    pub jti: String,
}

/// A new token. `Debug` does not show it.
#[derive(Clone, PartialEq, Eq)]
pub struct IssuedToken {
    /// The token itself; a secret.
    pub token: String,
    pub jti: String,
    pub expires_at: DateTime<Utc>,
}

impl fmt::Debug for IssuedToken {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("IssuedToken")
            .field("jti", &self.jti)
            .field("expires_at", &self.expires_at)
            .finish_non_exhaustive()
    }
}

/// Why a token is invalid. Callers get 401 for all of them; the log has the reason.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum TokenError {
    /// Not a JWT, or a claim is missing or has the wrong type.
    #[error("malformed token")]
    Malformed,
    /// Signed with another algorithm than HS256.
    #[error("wrong algorithm")]
    WrongAlgorithm,
    /// Not signed with this key.
    #[error("wrong signature")]
    WrongSignature,
    #[error("wrong issuer")]
    WrongIssuer,
    /// Made for another API.
    #[error("wrong audience")]
    WrongAudience,
    #[error("expired token")]
    Expired,
    /// It is not valid yet.
    #[error("token not valid yet")]
    NotYet,
    /// Its header names an extension that must be understood.
    #[error("critical header extension")]
    Critical,
    /// A role that does not exist.
    #[error("unknown role")]
    UnknownRole,
    /// The user name is invalid.
    #[error("invalid user name")]
    BadUser,
    /// It could not be signed.
    #[error("the token cannot be signed")]
    Signing,
}

#[derive(Serialize)]
struct NewPublicClaims<'a> {
    iss: &'a str,
    aud: &'a str,
    sub: &'a str,
    role: Role,
    jti: &'a str,
    iat: i64,
    exp: i64,
}

#[derive(Deserialize)]
struct PublicClaims {
    sub: String,
    role: String,
    jti: String,
    nbf: Option<f64>,
    exp: f64,
}

#[derive(Serialize)]
struct NewWorkerClaims<'a> {
    iss: String,
    aud: &'a str,
    sub: String,
    attempt: u32,
    jti: &'a str,
    exp: i64,
}

#[derive(Deserialize)]
struct WorkerClaims {
    iss: String,
    sub: String,
    attempt: u32,
    jti: String,
    nbf: Option<f64>,
    exp: f64,
}

impl SigningKey {
    /// Issues a token for the public API.
    pub fn issue(
        &self,
        user: &str,
        role: Role,
        now: DateTime<Utc>,
        ttl: chrono::Duration,
    ) -> Result<IssuedToken, TokenError> {
        let (jti, expires_at) = (new_jti(), now.checked_add_signed(ttl).ok_or(TokenError::Signing)?);
        let who = Identity { user: user.to_owned(), role, jti, is_session: false, expires_at };
        let token = self.sign_identity(PUBLIC_AUDIENCE, &who, now)?;
        Ok(IssuedToken { token, jti: who.jti, expires_at })
    }

    /// Signs the cookie of a browser's session.
    pub fn issue_session(&self, who: &Identity, now: DateTime<Utc>) -> Result<String, TokenError> {
        self.sign_identity(SESSION_AUDIENCE, who, now)
    }

    fn sign_identity(&self, audience: &str, who: &Identity, now: DateTime<Utc>) -> Result<String, TokenError> {
        if !is_user_name(&who.user) {
            return Err(TokenError::BadUser);
        }
        self.sign(&NewPublicClaims {
            iss: PUBLIC_ISSUER,
            aud: audience,
            sub: &who.user,
            role: who.role,
            jti: &who.jti,
            iat: now.timestamp(),
            exp: who.expires_at.timestamp(),
        })
    }

    /// Verifies a token of the public API.
    pub fn verify(&self, token: &str, now: DateTime<Utc>) -> Result<Identity, TokenError> {
        let claims: PublicClaims = self.open(token, &self.public)?;
        in_time(claims.nbf, claims.exp, now)?;
        identity(claims)
    }

    /// Verifies the cookie of a session.
    pub fn verify_session(&self, cookie: &str, now: DateTime<Utc>) -> Result<Identity, TokenError> {
        let claims: PublicClaims = self.open(cookie, &self.session)?;
        in_time(claims.nbf, claims.exp, now)?;
        Ok(Identity { is_session: true, ..identity(claims)? })
    }

    /// The bearer of a public token that may have expired. Only for the audit of a refusal, never for authorization.
    pub fn identity_ignoring_time(&self, token: &str) -> Result<Identity, TokenError> {
        identity(self.open(token, &self.public)?)
    }

    /// Issues a token for the worker of an attempt.
    pub fn issue_worker(
        &self,
        instance: InstanceId,
        job_id: JobId,
        attempt: u32,
        expires_at: DateTime<Utc>,
    ) -> Result<IssuedToken, TokenError> {
        let jti = new_jti();
        let claims = NewWorkerClaims {
            iss: instance.to_string(),
            aud: WORKER_AUDIENCE,
            sub: job_id.to_string(),
            attempt,
            jti: &jti,
            exp: expires_at.timestamp(),
        };
        Ok(IssuedToken { token: self.sign(&claims)?, jti, expires_at })
    }

    /// Verifies a worker token.
    pub(crate) fn verify_worker(
        &self,
        token: &str,
        instance: InstanceId,
        now: DateTime<Utc>,
    ) -> Result<WorkerIdentity, TokenError> {
        let claims: WorkerClaims = self.open(token, &self.worker)?;
        if claims.iss != instance.to_string() {
            return Err(TokenError::WrongIssuer);
        }
        in_time(claims.nbf, claims.exp, now)?;
        let job_id = claims.sub.parse().map_err(|_| TokenError::Malformed)?;
        Ok(WorkerIdentity { job_id, attempt: claims.attempt, jti: checked_jti(claims.jti)? })
    }

    fn sign(&self, claims: &impl Serialize) -> Result<String, TokenError> {
        jsonwebtoken::encode(&Header::new(Algorithm::HS256), claims, &self.encoding).map_err(|_| TokenError::Signing)
    }

    fn open<T: DeserializeOwned>(&self, token: &str, validation: &Validation) -> Result<T, TokenError> {
        if token.len() > MAX_TOKEN_BYTES {
            return Err(TokenError::Malformed);
        }
        if is_critical(token)? {
            return Err(TokenError::Critical);
        }
        jsonwebtoken::decode(token, &self.decoding, validation).map(|data| data.claims).map_err(|error| {
            match error.kind() {
                ErrorKind::InvalidAlgorithm | ErrorKind::InvalidAlgorithmName => TokenError::WrongAlgorithm,
                ErrorKind::InvalidSignature => TokenError::WrongSignature,
                ErrorKind::InvalidIssuer => TokenError::WrongIssuer,
                ErrorKind::InvalidAudience => TokenError::WrongAudience,
                _ => TokenError::Malformed,
            }
        })
    }
}

/// The checks of tokens for an audience, except the issuer.
fn validation(audience: &str) -> Validation {
    let mut validation = Validation::new(Algorithm::HS256);
    validation.set_required_spec_claims(&["exp", "iss", "aud", "sub"]);
    validation.set_audience(&[audience]);
    validation.leeway = 0;
    // The library would use the system clock; `in_time` uses the caller's.
    validation.validate_exp = false;
    validation.validate_nbf = false;
    validation
}

fn identity(claims: PublicClaims) -> Result<Identity, TokenError> {
    let role = Role::parse(&claims.role).ok_or(TokenError::UnknownRole)?;
    if !is_user_name(&claims.sub) {
        return Err(TokenError::BadUser);
    }
    let expires_at = whole_second(claims.exp);
    Ok(Identity { user: claims.sub, role, jti: checked_jti(claims.jti)?, is_session: false, expires_at })
}

/// A time of a token in whole seconds, clamped to the range of `DateTime`.
fn whole_second(seconds: f64) -> DateTime<Utc> {
    #[expect(clippy::cast_possible_truncation, reason = "a float becomes the nearest number that there is")]
    let seconds = seconds as i64;
    let end = if seconds < 0 { DateTime::<Utc>::MIN_UTC } else { DateTime::<Utc>::MAX_UTC };
    DateTime::from_timestamp(seconds, 0).unwrap_or(end)
}

/// 128 random bits, for a code or a key.
pub fn random_secret() -> String {
    BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; 16]>())
}

/// An id for a new token or session.
pub fn new_jti() -> String {
    #[expect(clippy::disallowed_methods, reason = "a token's id belongs to no table; it is made here and nowhere else")]
    Uuid::new_v4().to_string()
}

/// Whether `text` is a valid token id.
pub fn is_jti(text: &str) -> bool {
    (1..=MAX_JTI_BYTES).contains(&text.len())
}

fn checked_jti(jti: String) -> Result<String, TokenError> {
    if is_jti(&jti) { Ok(jti) } else { Err(TokenError::Malformed) }
}

/// Whether the header has critical extensions (RFC 7515, `crit`); none is supported.
fn is_critical(token: &str) -> Result<bool, TokenError> {
    let header = token.split('.').next().unwrap_or_default();
    let header = BASE64_URL_SAFE_NO_PAD.decode(header).map_err(|_| TokenError::Malformed)?;
    let header: Map<String, Value> = serde_json::from_slice(&header).map_err(|_| TokenError::Malformed)?;
    Ok(header.contains_key("crit"))
}

/// Checks `nbf` (inclusive) and `exp` (exclusive), both in seconds with a fraction.
fn in_time(nbf: Option<f64>, exp: f64, now: DateTime<Utc>) -> Result<(), TokenError> {
    let seconds = u64::try_from(now.timestamp()).unwrap_or(0);
    let now = std::time::Duration::new(seconds, now.timestamp_subsec_nanos()).as_secs_f64();
    match nbf {
        Some(nbf) if nbf > now => Err(TokenError::NotYet),
        _ if exp > now => Ok(()),
        _ => Err(TokenError::Expired),
    }
}

#[cfg(test)]
mod tests;
