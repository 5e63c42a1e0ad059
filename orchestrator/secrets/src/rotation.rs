//! Rotation of the master key, while no server runs on the data directory.
//!
//! Owns the order of the steps. The next key is on the disk before a secret is sealed with it, all secrets change in
//! one transaction, and only when that is on the disk, too, the next key replaces the present one, which is kept as the
//! previous one until a start has opened a value. A start after an interruption completes or undoes the rotation.

use base::failpoint;
use store::{AuditEntry, ResealCounts, Resealed, SealedSecret, Store, StoreError};

use super::{
    key_source::{KeySource, MasterKeyError, finish_rotation, promote_next_key, stage_next_key},
    master_key::MasterKey,
};

/// Why the key was not rotated. Nothing was changed, except with [`RotateError::NotOnDisk`].
#[derive(Debug, thiserror::Error)]
pub enum RotateError {
    /// The present key cannot be used.
    #[error(transparent)]
    Key(#[from] MasterKeyError),
    /// The configuration sets the key, so the next one must be given.
    #[error(
        "GANTRY_MASTER_KEY sets the master key: give the next one with --new-key-file, and set the variable to it afterwards"
    )]
    NewKeyRequired,
    /// The next key is the present one.
    #[error("the next key is the present one")]
    SameKey,
    /// A secret does not open, or the database failed.
    #[error("cannot seal the stored secrets with the next key")]
    Store(#[from] StoreError),
    /// The secrets are sealed with the next key, and that may not survive a power cut.
    #[error(
        "the stored secrets are encrypted with the next key, but the database could not be written to the disk; the next start \
         of the server completes the rotation"
    )]
    NotOnDisk(#[source] StoreError),
}

/// What to do with secrets that the present key does not open.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum UnreadableSecrets {
    /// Change nothing and fail.
    Refuse,
    Discard,
}

/// A completed rotation.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Rotated {
    /// The id of the key that is in force now.
    pub key_id: String,
    /// What happened to the secrets.
    pub counts: ResealCounts,
    /// The operator must set `GANTRY_MASTER_KEY` to the new key before the next start.
    pub is_configured: bool,
}

/// Seals every secret with `new_key`, or with a generated key where the key is in the data directory.
pub async fn rotate(
    store: &Store,
    source: &KeySource,
    new_key: Option<MasterKey>,
    unreadable: UnreadableSecrets,
    entry: &AuditEntry,
) -> Result<Rotated, RotateError> {
    let stored = store.secret_key_ids().await.map_err(MasterKeyError::from)?;
    let data_dir = match source {
        KeySource::DataDir(data_dir) => Some(data_dir),
        KeySource::Configured(_) => None,
    };
    if let Some(data_dir) = data_dir {
        finish_rotation(data_dir, &stored)?;
    }
    let present = match unreadable {
        UnreadableSecrets::Refuse => Some(source.load(&stored)?),
        UnreadableSecrets::Discard => source.find()?,
    };
    let next = match new_key {
        Some(key) => key,
        None if data_dir.is_some() => MasterKey::generate(),
        None => return Err(RotateError::NewKeyRequired),
    };
    if present.as_ref().is_some_and(|present| present.id() == next.id()) {
        return Err(RotateError::SameKey);
    }
    if let Some(data_dir) = data_dir {
        stage_next_key(data_dir, &next)?;
    }
    failpoint::reach("rotate.before_commit");
    let key_id = next.id().to_owned();
    let counts = store.reseal_secrets(move |one| reseal(present.as_ref(), &next, unreadable, one), entry).await?;
    failpoint::reach("rotate.after_commit");
    store.sync_to_disk().await.map_err(RotateError::NotOnDisk)?;
    failpoint::reach("rotate.after_sync");
    if let Some(data_dir) = data_dir {
        promote_next_key(data_dir)?;
    }
    Ok(Rotated { key_id, counts, is_configured: data_dir.is_none() })
}

fn reseal(
    present: Option<&MasterKey>,
    next: &MasterKey,
    unreadable: UnreadableSecrets,
    secret: &SealedSecret,
) -> Resealed {
    let SealedSecret { owner, name, sealed, .. } = secret;
    let value = present.and_then(|present| present.open(owner, name, sealed).ok());
    match (value.map(|value| next.seal(owner, name, &value)), unreadable) {
        (Some(Ok(sealed)), _) => Resealed::With(sealed),
        (None, UnreadableSecrets::Discard) => Resealed::Deleted,
        (Some(Err(_)), _) | (None, UnreadableSecrets::Refuse) => Resealed::Unreadable,
    }
}

#[cfg(test)]
mod tests;
