//! Where the master key comes from: the configuration, or a file in the data directory.
//!
//! Owns the file's names, the check that a key is the one of the stored secrets, and the end of a rotation that was
//! interrupted. Never creates a key while there are secrets that it does not open.

use std::{
    io,
    path::{Path, PathBuf},
};

use secrecy::{ExposeSecret, SecretString};

use super::master_key::MasterKey;
use base::{failpoint, key_file};

/// The key in the data directory.
const KEY_FILE: &str = "master.key";
/// The next key, while a rotation is in progress.
const NEXT_KEY_FILE: &str = "master.key.next";
/// The key before the last rotation, until a start has opened a value with the present one.
const PREVIOUS_KEY_FILE: &str = "master.key.previous";

/// Why there is no master key. Each is one line that names what to change.
#[derive(Debug, thiserror::Error)]
pub enum MasterKeyError {
    /// The file cannot be read or created.
    #[error("the master key {path} cannot be read or created")]
    File {
        path: PathBuf,
        #[source]
        source: io::Error,
    },
    /// The text is no key.
    #[error("the master key {origin} is not 32 bytes in base64; restore it from a copy")]
    Malformed {
        /// The file or the variable.
        origin: String,
    },
    /// There are secrets, and no key.
    #[error(
        "the master key {path} is missing and the stored secrets need it; restore it, set GANTRY_MASTER_KEY to it, or {}",
        discard_advice()
    )]
    Missing { path: PathBuf },
    /// The secrets were sealed with another key.
    #[error(
        "the master key {origin} (id {id}) does not open the stored secrets, which are sealed with the key of id {needed}; restore that key, or {}",
        discard_advice()
    )]
    WrongKey {
        /// The file or the variable.
        origin: String,
        id: String,
        /// The ids of the keys that open the secrets.
        needed: String,
    },
    /// The database cannot be read.
    #[error("cannot read the stored secrets")]
    Store(#[from] store::StoreError),
}

const fn discard_advice() -> &'static str {
    "delete the secrets that do not open with `gantry secret rotate-key --discard-unreadable`"
}

/// The place of the master key.
#[derive(Debug, Clone)]
pub enum KeySource {
    /// `GANTRY_MASTER_KEY` or its `_FILE` form.
    Configured(SecretString),
    DataDir(PathBuf),
}

impl KeySource {
    /// The configured key or, without one, the file in the data directory.
    pub fn new(configured: Option<&SecretString>, data_dir: &Path) -> Self {
        configured.map_or_else(|| Self::DataDir(data_dir.to_owned()), |key| Self::Configured(key.clone()))
    }

    /// The key with which the values of `stored` ids open. Creates one in the data directory if there is neither a key
    /// nor a secret.
    pub(super) fn load(&self, stored: &[String]) -> Result<MasterKey, MasterKeyError> {
        if let Self::DataDir(data_dir) = self {
            finish_rotation(data_dir, stored)?;
        }
        match self.find()? {
            Some(key) => self.check(key, stored),
            None if stored.is_empty() => self.create(),
            None => Err(MasterKeyError::Missing { path: PathBuf::from(self.origin()) }),
        }
    }

    /// The key that is there, whether or not it opens anything.
    pub(super) fn find(&self) -> Result<Option<MasterKey>, MasterKeyError> {
        match self {
            Self::Configured(text) => {
                MasterKey::from_base64(text.expose_secret()).map(Some).ok_or_else(|| self.malformed())
            }
            Self::DataDir(data_dir) => {
                let path = key_path(data_dir);
                let Some(text) = key_file::read(&path).map_err(at(&path))? else { return Ok(None) };
                MasterKey::from_base64(&text).map(Some).ok_or_else(|| self.malformed())
            }
        }
    }

    /// Removes the key before the last rotation, once the present one has opened a value.
    pub(super) fn forget_previous(&self) -> Result<(), MasterKeyError> {
        let Self::DataDir(data_dir) = self else { return Ok(()) };
        let previous = data_dir.join(PREVIOUS_KEY_FILE);
        key_file::remove(&previous).map_err(at(&previous))
    }

    fn create(&self) -> Result<MasterKey, MasterKeyError> {
        let path = PathBuf::from(self.origin());
        let text = key_file::read_or_create(&path, || MasterKey::generate().to_base64()).map_err(at(&path))?;
        MasterKey::from_base64(&text).ok_or_else(|| self.malformed())
    }

    fn check(&self, key: MasterKey, stored: &[String]) -> Result<MasterKey, MasterKeyError> {
        let others: Vec<&str> = stored.iter().map(String::as_str).filter(|id| *id != key.id()).collect();
        if others.is_empty() {
            return Ok(key);
        }
        Err(MasterKeyError::WrongKey { origin: self.origin(), id: key.id().to_owned(), needed: others.join(", ") })
    }

    fn malformed(&self) -> MasterKeyError {
        MasterKeyError::Malformed { origin: self.origin() }
    }

    /// The name of the place in an error.
    fn origin(&self) -> String {
        match self {
            Self::Configured(_) => "GANTRY_MASTER_KEY".to_owned(),
            Self::DataDir(data_dir) => key_path(data_dir).display().to_string(),
        }
    }
}

/// Path of the key in the data directory.
pub fn key_path(data_dir: &Path) -> PathBuf {
    data_dir.join(KEY_FILE)
}

/// Writes the next key beside the present one, which stays in force.
pub(super) fn stage_next_key(data_dir: &Path, key: &MasterKey) -> Result<(), MasterKeyError> {
    let next = data_dir.join(NEXT_KEY_FILE);
    key_file::write(&next, &key.to_base64()).map_err(at(&next))
}

/// Completes a rotation whose process ended between its steps: the next key is in force exactly if the stored values
/// are sealed with it. If all of them are sealed with the previous key, as in a database that was restored from a copy,
/// that one is in force again.
pub(super) fn finish_rotation(data_dir: &Path, stored: &[String]) -> Result<(), MasterKeyError> {
    let next = data_dir.join(NEXT_KEY_FILE);
    // A file that was cut off while it was written is no key, and nothing was sealed with it.
    if let Some(text) = key_file::read(&next).map_err(at(&next))? {
        let in_force = MasterKey::from_base64(&text).is_some_and(|key| stored.iter().any(|id| id == key.id()));
        return if in_force { promote_next_key(data_dir) } else { key_file::remove(&next).map_err(at(&next)) };
    }
    let (path, previous) = (key_path(data_dir), data_dir.join(PREVIOUS_KEY_FILE));
    let Some(text) = key_file::read(&previous).map_err(at(&previous))? else { return Ok(()) };
    if MasterKey::from_base64(&text).is_some_and(|key| [key.id()] == *stored) {
        tracing::warn!("the stored secrets are sealed with the previous master key, which is in force again");
        return key_file::rename(&previous, &path).map_err(at(&path));
    }
    Ok(())
}

/// Puts the next key in force, and keeps the present one as the previous.
pub(super) fn promote_next_key(data_dir: &Path) -> Result<(), MasterKeyError> {
    let (path, previous) = (key_path(data_dir), data_dir.join(PREVIOUS_KEY_FILE));
    if let Some(present) = key_file::read(&path).map_err(at(&path))? {
        key_file::write(&previous, &present).map_err(at(&previous))?;
    }
    failpoint::reach("rotate.before_rename");
    key_file::rename(&data_dir.join(NEXT_KEY_FILE), &path).map_err(at(&path))
}

fn at(path: &Path) -> impl Fn(io::Error) -> MasterKeyError {
    let path = path.to_owned();
    move |source| MasterKeyError::File { path: path.clone(), source }
}
