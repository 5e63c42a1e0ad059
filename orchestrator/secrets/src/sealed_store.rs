//! The secrets of all users: sealed when they are stored, opened when a part of the process needs a value.
//!
//! Owns the way to a value. Never decides who may have one: callers name the owner whose rights they act with. Never
//! logs a value.

use std::sync::Arc;

use secrecy::SecretString;

use super::{
    cache::{Cache, NamedSecret},
    key_source::{KeySource, MasterKeyError},
    master_key::{CipherError, MasterKey},
};
use store::{AuditEntry, SealedSecret, SecretStored, Store, StoreError};

/// A secret could not be stored or read.
#[derive(Debug, thiserror::Error)]
pub enum SecretError {
    #[error(transparent)]
    Store(#[from] StoreError),
    /// The cipher refused the value.
    #[error("the value cannot be sealed")]
    Cipher,
    /// The task that opens the values ended early.
    #[error("the values could not be opened")]
    Interrupted(#[from] tokio::task::JoinError),
}

impl From<CipherError> for SecretError {
    fn from(_: CipherError) -> Self {
        Self::Cipher
    }
}

/// The secrets of all users.
pub struct Secrets {
    store: Store,
    key: MasterKey,
    cache: Arc<Cache>,
}

impl Secrets {
    /// Loads the master key, which must open the stored secrets.
    pub async fn open(store: Store, source: &KeySource) -> Result<Self, MasterKeyError> {
        let key = source.load(&store.secret_key_ids().await?)?;
        let opens = |one: SealedSecret| key.open(&one.owner, &one.name, &one.sealed).is_ok();
        if store.any_sealed_secret().await?.is_none_or(opens) {
            source.forget_previous()?;
        }
        Ok(Self { store, key, cache: Arc::default() })
    }

    /// Creates or replaces a secret. `hosts` are those that it may be sent to: see [`SealedSecret::hosts`].
    pub async fn set(
        &self,
        owner: &str,
        name: &str,
        value: &SecretString,
        hosts: Option<Vec<String>>,
        entry: &AuditEntry,
    ) -> Result<SecretStored, SecretError> {
        let secret = SealedSecret { hosts, ..self.seal(owner, name, value)? };
        Ok(self.store.put_secret(secret, entry, self.invalidation(owner)).await?)
    }

    /// Deletes a secret; false if there is none of this name.
    pub async fn delete(&self, owner: &str, name: &str, entry: &AuditEntry) -> Result<bool, SecretError> {
        Ok(self.store.delete_secret(owner, name, entry, self.invalidation(owner)).await?)
    }

    /// The secrets that the owner has set, in the order of their names. Those of routines are not among them. The value
    /// is the same allocation until one of them changes, so callers can keep what they derive from it as long as
    /// [`Arc::ptr_eq`] holds. A secret that does not open is logged and left out.
    pub async fn values_of(&self, owner: &str) -> Result<Arc<[NamedSecret]>, SecretError> {
        let generation = match self.cache.get(owner) {
            Ok(values) => return Ok(values),
            Err(generation) => generation,
        };
        let sealed = self.store.sealed_secrets(owner).await?;
        let key = self.key.clone();
        // Up to 200 values are opened.
        let values = tokio::task::spawn_blocking(move || open_all(&key, &sealed)).await?;
        Ok(self.cache.insert(owner, values, generation))
    }

    /// The value of one secret, also of a routine; `None` if there is none of this name, or if it does not open.
    pub async fn get(&self, owner: &str, name: &str) -> Result<Option<SecretString>, SecretError> {
        let sealed = self.store.sealed_secret(owner, name).await?;
        Ok(sealed.and_then(|sealed| open(&self.key, &sealed)).map(|secret| secret.value))
    }

    /// Seals a value that is stored with something else, such as a routine.
    pub fn seal(&self, owner: &str, name: &str, value: &SecretString) -> Result<SealedSecret, SecretError> {
        let sealed = self.key.seal(owner, name, value)?;
        Ok(SealedSecret { owner: owner.to_owned(), name: name.to_owned(), sealed, hosts: None })
    }

    /// To be run when a change of the owner's secrets is committed.
    pub fn invalidation(&self, owner: &str) -> impl FnOnce() + Send + 'static {
        let (cache, owner) = (Arc::clone(&self.cache), owner.to_owned());
        move || cache.invalidate(&owner)
    }
}

fn open_all(key: &MasterKey, sealed: &[SealedSecret]) -> Arc<[NamedSecret]> {
    sealed.iter().filter_map(|one| open(key, one)).collect()
}

fn open(key: &MasterKey, one: &SealedSecret) -> Option<NamedSecret> {
    let value = key.open(&one.owner, &one.name, &one.sealed);
    if value.is_err() {
        tracing::error!(user = one.owner, secret = one.name, "a stored secret does not open; it must be set again");
    }
    Some(NamedSecret { name: one.name.clone(), value: value.ok()?, hosts: one.hosts.clone().unwrap_or_default() })
}

#[cfg(test)]
mod tests;
