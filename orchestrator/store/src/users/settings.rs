//! Users' settings.

use protocol::{AuditOutcome, UserSettings};

use crate::{AuditEntry, Store, StoreError, access::audit, sqlite::rows::text};

impl Store {
    /// A user's settings; the defaults if the user has set none.
    pub async fn settings(&self, user: &str) -> Result<UserSettings, StoreError> {
        let stored: Option<String> = sqlx::query_scalar("SELECT settings FROM user_settings WHERE user_id = $1")
            .bind(user)
            .fetch_optional(&self.read)
            .await?;
        let Some(stored) = stored else { return Ok(UserSettings::default()) };
        serde_json::from_str(&stored).map_err(|_| StoreError::Inconsistent {
            table: "user_settings",
            column: "settings",
            id: user.to_owned(),
        })
    }

    /// Replaces a user's settings.
    pub async fn put_settings(
        &self,
        user: &str,
        settings: &UserSettings,
        entry: &AuditEntry,
    ) -> Result<(), StoreError> {
        let (user, settings, entry) = (user.to_owned(), text(settings)?, entry.clone());
        self.write(transaction!(|tx| {
            sqlx::query(
                "INSERT INTO user_settings (user_id, settings, updated_at) VALUES ($1, $2, $3) \
                 ON CONFLICT (user_id) DO UPDATE SET settings = excluded.settings, updated_at = excluded.updated_at",
            )
            .bind(user)
            .bind(settings)
            .bind(entry.at)
            .execute(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &entry, AuditOutcome::Done, None).await
        }))
        .await
    }
}
