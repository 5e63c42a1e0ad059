//! Ids: newtypes from one macro, so that a job's id is never mistaken for a prompt's.
//!
//! Owns making and parsing them. The only place that reads the clock for a UUIDv7.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Serialize};
use uuid::Uuid;

/// The text is not a UUID.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseIdError;

impl fmt::Display for ParseIdError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a UUID in its hyphenated form (36 characters)")
    }
}

impl std::error::Error for ParseIdError {}

/// One spelling per id: braces, URNs and undashed forms are refused.
pub(crate) fn parse_uuid(text: &str) -> Result<Uuid, ParseIdError> {
    if text.len() != 36 {
        return Err(ParseIdError);
    }
    Uuid::try_parse(text).map_err(|_| ParseIdError)
}

macro_rules! uuid_ids {
    ($($(#[$doc:meta])* $name:ident,)+) => {$(
        $(#[$doc])*
        #[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize)]
        #[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
        #[cfg_attr(feature = "sqlx", derive(sqlx::Type), sqlx(transparent))]
        #[serde(transparent)]
        pub struct $name(Uuid);

        // Accepts only the spelling that `FromStr` accepts.
        impl<'de> Deserialize<'de> for $name {
            fn deserialize<D: serde::Deserializer<'de>>(reader: D) -> Result<Self, D::Error> {
                let text = std::borrow::Cow::<'de, str>::deserialize(reader)?;
                text.parse().map_err(serde::de::Error::custom)
            }
        }

        impl $name {
            /// Generates an id; ids are ordered by their creation time (UUIDv7).
            #[expect(clippy::disallowed_methods, reason = "this is where ids are made")]
            pub fn generate() -> Self {
                Self(Uuid::now_v7())
            }

            /// The id that sorts before every other.
            pub const fn nil() -> Self {
                Self(Uuid::nil())
            }

            /// Wraps a UUID, such as that of a stored row.
            pub const fn from_uuid(id: Uuid) -> Self {
                Self(id)
            }

            /// The UUID.
            pub const fn as_uuid(&self) -> &Uuid {
                &self.0
            }
        }

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                self.0.hyphenated().fmt(f)
            }
        }

        impl FromStr for $name {
            type Err = ParseIdError;
            fn from_str(text: &str) -> Result<Self, Self::Err> {
                parse_uuid(text).map(Self)
            }
        }
    )+};
}

uuid_ids! {
    /// One task given to an agent.
    JobId,
    /// A follow-up prompt to a job.
    PromptId,
    /// A notification to a user.
    NotificationId,
    /// A routine: work that is started by a schedule or an event.
    RoutineId,
    /// One run of a routine.
    RunId,
    /// A delivery: of a webhook that arrived, or of a notification that is posted.
    DeliveryId,
    /// A message or an event of a system that may fire routines.
    RoutineEventId,
    /// A chat thread.
    ThreadId,
    /// An entry of a chat thread.
    MessageId,
    /// A gate: a tool call that waits for a person.
    GateId,
    /// One install of the orchestrator; labels what it makes in the engine.
    InstanceId,
}

impl JobId {
    /// The last 12 hex digits: the hostname of the job's container.
    pub fn short(&self) -> String {
        let text = self.0.simple().to_string();
        text[20..].to_owned()
    }
}

/// A user: the subject of the token that a request carries.
#[derive(Debug, Clone, Default, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(transparent)]
pub struct UserId(pub String);

impl UserId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }
}

/// Names one model call or tool call within a job's attempt. Chosen by the caller, at most 200 bytes.
#[derive(Debug, Clone, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(transparent)]
pub struct CallId(pub String);

impl CallId {
    /// The id as text.
    pub fn as_str(&self) -> &str {
        &self.0
    }

    /// Generates an id that no other call has.
    #[expect(clippy::disallowed_methods, reason = "this is where ids are made")]
    pub fn generate() -> Self {
        Self(Uuid::now_v7().simple().to_string())
    }
}

impl From<&str> for CallId {
    fn from(id: &str) -> Self {
        Self(id.to_owned())
    }
}

impl fmt::Display for CallId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.0)
    }
}
