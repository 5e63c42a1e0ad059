//! Users' settings.

use domain::ExpectedVersion;
use protocol::{AuditOutcome, UserSettings};

use crate::{
    AuditEntry, Connection, Store, StoreError,
    access::audit,
    sqlite::rows::{count, text},
};

/// The outcome of replacing settings. A user who has set none is at version 0.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SettingsWriteOutcome {
    Stored {
        version: u64,
    },
    /// Nothing is stored: the settings have another version.
    VersionMismatch {
        current: u64,
    },
}

/// The time zone of a user.
pub(crate) async fn timezone(db: &mut Connection, user: &str) -> Result<String, StoreError> {
    let zone: Option<Option<String>> = sqlx::query_scalar(
        "SELECT CASE WHEN json_valid(settings) THEN settings->>'timezone' END FROM user_settings WHERE user_id = $1",
    )
    .bind(user)
    .fetch_optional(db)
    .await?;
    Ok(zone.flatten().unwrap_or_else(|| UserSettings::default().zone_name().to_owned()))
}

impl Store {
    /// A user's settings; the defaults if the user has set none.
    pub async fn settings(&self, user: &str) -> Result<UserSettings, StoreError> {
        Ok(self.settings_with_version(user).await?.0)
    }

    /// A user's settings with their version.
    pub async fn settings_with_version(&self, user: &str) -> Result<(UserSettings, u64), StoreError> {
        let stored: Option<(String, i64)> =
            sqlx::query_as("SELECT settings, version FROM user_settings WHERE user_id = $1")
                .bind(user)
                .fetch_optional(&self.read)
                .await?;
        let Some((stored, version)) = stored else { return Ok((UserSettings::default(), 0)) };
        let settings = serde_json::from_str(&stored).map_err(|_| StoreError::Inconsistent {
            table: "user_settings",
            column: "settings",
            id: user.to_owned(),
        })?;
        Ok((settings, count(version)))
    }

    /// Replaces a user's settings, if they have the expected version.
    pub async fn put_settings(
        &self,
        user: &str,
        settings: &UserSettings,
        expected: Option<ExpectedVersion>,
        entry: &AuditEntry,
    ) -> Result<SettingsWriteOutcome, StoreError> {
        let (user, settings, entry) = (user.to_owned(), text(settings)?, entry.clone());
        self.write(transaction!(|tx| {
            let current: Option<i64> = sqlx::query_scalar("SELECT version FROM user_settings WHERE user_id = $1")
                .bind(&user)
                .fetch_optional(&mut tx.db)
                .await?;
            let current = count(current.unwrap_or(0));
            if expected.is_some_and(|expected| !expected.allows(Some(current))) {
                return Ok(SettingsWriteOutcome::VersionMismatch { current });
            }
            let version: i64 = sqlx::query_scalar(
                "INSERT INTO user_settings (user_id, settings, updated_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (user_id) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at, \
                 version = version + 1 RETURNING version",
            )
            .bind(user)
            .bind(settings)
            .bind(entry.at)
            .fetch_one(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await?;
            Ok(SettingsWriteOutcome::Stored { version: count(version) })
        }))
        .await
    }
}
