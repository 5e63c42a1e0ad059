//! Memory: documents of a user, as the public API takes and returns them.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::{ParseIdError, UserId, WorkId, ids::parse_uuid};

/// `GET /api/memory`: one version of a document.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryDocument {
    /// The path.
    pub path: String,
    /// The text.
    pub content: String,
    /// The version's number; the first one is 1.
    pub version: u64,
    /// When this version was written.
    pub updated_at: DateTime<Utc>,
}

/// The body of `PUT /api/memory`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct MemoryContent {
    /// The text; at most 1 MiB of UTF-8.
    pub content: String,
}

/// A document without its text, in lists and as the result of a write.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryEntry {
    /// The path.
    pub path: String,
    /// The number of the current version.
    pub version: u64,
    /// The size of the current version.
    pub bytes: u64,
    /// When the current version was written.
    pub updated_at: DateTime<Utc>,
}

/// One row of `GET /api/memory/versions`.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryVersion {
    /// The version's number.
    pub version: u64,
    /// Its size.
    pub bytes: u64,
    /// When it was written.
    pub created_at: DateTime<Utc>,
    /// Who wrote it: `user:NAME`, `job:ID`, `run:ID` or `thread:ID`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub by: MemoryAuthor,
}

/// One row of `GET /api/memory/search`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct MemoryMatch {
    /// The path.
    pub path: String,
    /// The part of the text that matches best, on one line.
    pub snippet: String,
    /// The relevance: a larger one is better. Scores of different searches cannot be compared.
    pub score: f64,
}

/// Who wrote a version.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum MemoryAuthor {
    /// The user, over the API.
    User(UserId),
    /// The agent of a job, a run of a routine or a chat thread.
    Agent(WorkId),
}

impl MemoryAuthor {
    /// What the author worked on; `None` for a user.
    pub const fn work(&self) -> Option<WorkId> {
        if let Self::Agent(work) = self { Some(*work) } else { None }
    }
}

/// The text names no author.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ParseMemoryAuthorError;

impl fmt::Display for ParseMemoryAuthorError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be user:NAME, job:ID, run:ID or thread:ID")
    }
}

impl std::error::Error for ParseMemoryAuthorError {}

impl fmt::Display for MemoryAuthor {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::User(user) => write!(f, "user:{}", user.as_str()),
            Self::Agent(work) => work.fmt(f),
        }
    }
}

impl FromStr for MemoryAuthor {
    type Err = ParseMemoryAuthorError;

    fn from_str(text: &str) -> Result<Self, Self::Err> {
        let (kind, id) = text.split_once(':').ok_or(ParseMemoryAuthorError)?;
        if kind == "user" {
            return Ok(Self::User(UserId(id.to_owned())));
        }
        let id = parse_uuid(id).map_err(|ParseIdError| ParseMemoryAuthorError)?;
        WorkId::of_kind(kind, id).map(Self::Agent).ok_or(ParseMemoryAuthorError)
    }
}

impl Serialize for MemoryAuthor {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for MemoryAuthor {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        String::deserialize(deserializer)?.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_author_is_read_as_it_is_written() {
        let id = "0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d";
        for text in ["user:ada", "user:a:b", &format!("job:{id}"), &format!("run:{id}"), &format!("thread:{id}")] {
            let author: MemoryAuthor = text.parse().unwrap();
            assert_eq!(serde_json::to_value(&author).unwrap(), text);
            assert_eq!(serde_json::from_value::<MemoryAuthor>(text.into()).unwrap(), author);
        }
        for text in ["", "ada", "job:ada", "robot:1"] {
            assert_eq!(text.parse::<MemoryAuthor>(), Err(ParseMemoryAuthorError), "{text}");
        }
    }
}
