//! The operator's tool policy and the users' tool permissions.
//!
//! Guarantees that a policy that cannot be read is reported as invalid, never ignored.

use agent::ToolPolicy;
use chrono::{DateTime, Utc};
use protocol::{AdminToolPolicy, AuditOutcome, PermissionState};

use serde_json::{Map, Value, from_value};

use super::audit;
use crate::{AuditEntry, Connection, Store, StoreError, sqlite::rows::text};

/// The operator's stored policy.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum StoredPolicy {
    /// The policy; empty if none was set.
    Valid(AdminToolPolicy),
    /// The stored document is not a policy.
    Invalid,
}

impl Store {
    /// What applies to the calls of one user.
    pub async fn tool_policy_of(&self, user: &str) -> Result<ToolPolicy, StoreError> {
        let rows: Vec<(Option<String>, String)> = sqlx::query_as(
            "SELECT NULL, document FROM tool_policy UNION ALL SELECT tool, permission FROM tool_permissions WHERE user_id = $1",
        )
        .bind(user)
        .fetch_all(&self.read)
        .await?;
        let mut policy = ToolPolicy::default();
        for (tool, value) in rows {
            match tool {
                Some(tool) => {
                    // A permission that is not known is the strictest one.
                    let permission = PermissionState::parse(&value).unwrap_or(PermissionState::Disabled);
                    policy.permissions.insert(tool, permission);
                }
                None => match parse(&value) {
                    StoredPolicy::Valid(AdminToolPolicy { disabled_tools, mut user_disabled_tools }) => {
                        let own = user_disabled_tools.remove(user).unwrap_or_default();
                        disabled_tools.iter().chain(&own).for_each(|tool| policy.disable(tool));
                    }
                    StoredPolicy::Invalid => policy.is_invalid = true,
                },
            }
        }
        Ok(policy)
    }

    /// The operator's policy.
    pub async fn admin_tool_policy(&self) -> Result<StoredPolicy, StoreError> {
        let document: Option<String> =
            sqlx::query_scalar("SELECT document FROM tool_policy").fetch_optional(&self.read).await?;
        Ok(document.map_or_else(|| StoredPolicy::Valid(AdminToolPolicy::default()), |document| parse(&document)))
    }

    /// Replaces the operator's policy.
    pub async fn set_admin_tool_policy(&self, policy: &AdminToolPolicy, audit: AuditEntry) -> Result<(), StoreError> {
        let document = text(policy)?;
        self.write(transaction!(|tx| {
            sqlx::query(
                "INSERT INTO tool_policy (id, document, updated_at) VALUES (1, $1, $2) \
                 ON CONFLICT (id) DO UPDATE SET document = excluded.document, updated_at = excluded.updated_at",
            )
            .bind(document)
            .bind(audit.at)
            .execute(&mut tx.db)
            .await?;
            audit::insert(&mut tx.db, &audit, AuditOutcome::Done, None).await
        }))
        .await
    }

    /// Sets a user's permission for a tool.
    pub async fn set_tool_permission(
        &self,
        (user, tool): (&str, &str),
        permission: PermissionState,
        audit: AuditEntry,
    ) -> Result<(), StoreError> {
        let (user, tool) = (user.to_owned(), tool.to_owned());
        self.write(transaction!(|tx| {
            if permission == PermissionState::Default {
                sqlx::query("DELETE FROM tool_permissions WHERE user_id = $1 AND tool = $2")
                    .bind(user)
                    .bind(tool)
                    .execute(&mut tx.db)
                    .await?;
            } else {
                upsert(&mut tx.db, (user, tool), permission, audit.at).await?;
            }
            audit::insert(&mut tx.db, &audit, AuditOutcome::Done, None).await
        }))
        .await
    }
}

pub(crate) async fn permission(db: &mut Connection, user: &str, tool: &str) -> Result<PermissionState, StoreError> {
    let stored: Option<String> =
        sqlx::query_scalar("SELECT permission FROM tool_permissions WHERE user_id = $1 AND tool = $2")
            .bind(user)
            .bind(tool)
            .fetch_optional(db)
            .await?;
    // As in `tool_policy_of`: a permission that is not known is the strictest one.
    Ok(stored
        .map_or(PermissionState::Default, |name| PermissionState::parse(&name).unwrap_or(PermissionState::Disabled)))
}

/// Sets a user's permission for a tool.
pub(crate) async fn upsert(
    db: &mut Connection,
    (user, tool): (String, String),
    permission: PermissionState,
    at: DateTime<Utc>,
) -> Result<(), StoreError> {
    sqlx::query(
        "INSERT INTO tool_permissions (user_id, tool, permission, updated_at) VALUES ($1, $2, $3, $4) \
         ON CONFLICT (user_id, tool) DO UPDATE SET permission = excluded.permission, updated_at = excluded.updated_at",
    )
    .bind(user)
    .bind(tool)
    .bind(permission.as_str())
    .bind(at)
    .execute(db)
    .await?;
    Ok(())
}

fn parse(document: &str) -> StoredPolicy {
    // A list would also be read as a policy, field by field.
    let policy = serde_json::from_str::<Map<String, Value>>(document).and_then(|object| from_value(object.into()));
    policy.map_or(StoredPolicy::Invalid, StoredPolicy::Valid)
}
