//! Sessions of browsers, and who a caller is.

use chrono::{DateTime, Utc};
use serde::{Deserialize, Serialize};

use crate::InstanceId;

/// The body of `POST /api/session`: what opens the session.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, rename_all = "snake_case")]
pub enum OpenSession {
    /// A one-time code, of the link that `gantry dashboard` prints.
    Code(String),
    /// A token. It is exchanged for the session and not kept.
    Token(String),
}

/// A one-time code that opens a session, as `POST /api/session/codes` returns it.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionCode {
    /// The code; a secret. It belongs into the fragment of the URL of the login page: `/login#code=…`.
    pub code: String,
    /// When it can no longer be used: 10 minutes after it was made.
    pub expires_at: DateTime<Utc>,
}

/// Who a caller is, and facts about the server.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct WhoAmI {
    /// The user.
    pub user: String,
    /// `admin`, `user` or `viewer`.
    pub role: String,
    /// The id of the session, if the caller is a browser; null for a token.
    pub session_id: Option<String>,
    /// When the session or the token ends. A session ends earlier if it is not used for 12 hours.
    pub expires_at: DateTime<Utc>,
    /// The server's version.
    pub version: String,
    /// The installation.
    pub instance: InstanceId,
    /// The server's time.
    pub now: DateTime<Utc>,
}

/// A session that was opened.
#[derive(Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct OpenedSession {
    /// Its user, and facts about the server.
    #[serde(flatten)]
    pub who: WhoAmI,
    /// 128 bits; a secret. Each change by the session sends it in the header `X-Gantry-Key`.
    pub key: String,
}

/// One open session of the caller.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct SessionSummary {
    /// Its id.
    pub id: String,
    /// When it was opened.
    pub created_at: DateTime<Utc>,
    /// When it was last renewed or looked at, to within a few minutes.
    pub last_used_at: DateTime<Utc>,
    /// When it ends at the latest.
    pub expires_at: DateTime<Utc>,
    /// The address that it was last used from, as far as the server sees it.
    pub address: Option<String>,
    /// The browser's `User-Agent`.
    pub agent: Option<String>,
    /// Whether it is the session of this request.
    pub current: bool,
}

impl std::fmt::Debug for OpenSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(match self {
            Self::Code(_) => "OpenSession::Code",
            Self::Token(_) => "OpenSession::Token",
        })
    }
}

impl std::fmt::Debug for OpenedSession {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("OpenedSession").field("who", &self.who).finish_non_exhaustive()
    }
}

impl std::fmt::Debug for SessionCode {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("SessionCode").field("expires_at", &self.expires_at).finish_non_exhaustive()
    }
}
