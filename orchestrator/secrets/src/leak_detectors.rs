//! The leak detector of each user: it finds the user's stored secrets, and credentials by their format.
//!
//! Owns which detectors are kept in memory and when one is built again. Never logs a value, and never returns a
//! detector that does not know the secrets as they are now: a caller that gets an error must not pass the text on.

use std::{collections::HashMap, sync::Arc};

use agent::safety::{LeakDetector, LeakDetectorError, MAX_INDEXED_SECRET_BYTES, StoredSecret};
use parking_lot::Mutex;
use protocol::limits::MAX_SECRETS_TOTAL_BYTES;
use secrecy::ExposeSecret as _;

use super::{NamedSecret, SecretError, Secrets};
use base::per_user_semaphore::PerUserSemaphore;

/// Maximum size of the secrets whose detectors are kept, in bytes: two users' with the maximum each, whose indexes take
/// more than 170 MB.
const MAX_KEPT_SECRET_BYTES: usize = 2 * MAX_INDEXED_SECRET_BYTES;

/// Maximum number of detectors that are kept. One of a few ordinary keys takes less than 100 KB.
const MAX_KEPT_DETECTORS: usize = 500;

/// Detectors that are built at the same time, in all and for each user.
const MAX_BUILDS: usize = 2;
const MAX_BUILDS_PER_USER: usize = 1;

/// Texts of this size are searched off the runtime's threads: a search of so much takes more than a millisecond.
const LARGE_TEXT_BYTES: usize = 64 * 1024;

// Whatever a user may store can be looked for.
const _: () = assert!(MAX_SECRETS_TOTAL_BYTES <= MAX_INDEXED_SECRET_BYTES);

/// There is no detector, so nothing may be passed on.
#[derive(Debug, Clone, thiserror::Error)]
pub enum DetectorError {
    /// The secrets cannot be read.
    #[error("the owner's secrets cannot be read")]
    Secrets(#[source] Arc<SecretError>),
    #[error("the owner's secrets cannot be looked for")]
    Index(#[from] LeakDetectorError),
    /// The task that builds the detector ended early.
    #[error("the leak detector could not be built")]
    Interrupted,
}

impl DetectorError {
    /// Whether trying again may help.
    pub fn is_transient(&self) -> bool {
        match self {
            Self::Secrets(error) => matches!(&**error, SecretError::Store(error) if error.is_transient()),
            Self::Index(_) => false,
            Self::Interrupted => true,
        }
    }
}

impl From<SecretError> for DetectorError {
    fn from(error: SecretError) -> Self {
        Self::Secrets(Arc::new(error))
    }
}

/// The detectors of all users. Clones share everything.
#[derive(Clone)]
pub struct LeakDetectors(Arc<Shared>);

struct Shared {
    secrets: Arc<Secrets>,
    /// For users without a secret.
    formats_only: Arc<LeakDetector>,
    builds: PerUserSemaphore,
    kept: Mutex<DetectorCache>,
}

/// The detectors that are kept. The least recently used ones make room for others.
#[derive(Default)]
struct DetectorCache {
    detectors: HashMap<String, Entry>,
    secret_bytes: usize,
    uses: u64,
}

struct Entry {
    /// What the detector was built from. Held, so that no other list of secrets has its address.
    values: Arc<[NamedSecret]>,
    detector: Arc<LeakDetector>,
    secret_bytes: usize,
    last_use: u64,
}

impl LeakDetectors {
    pub fn new(secrets: Arc<Secrets>) -> Result<Self, DetectorError> {
        let shared = Shared {
            secrets,
            formats_only: Arc::new(LeakDetector::new([])?),
            builds: PerUserSemaphore::new(MAX_BUILDS, MAX_BUILDS_PER_USER),
            kept: Mutex::default(),
        };
        Ok(Self(Arc::new(shared)))
    }

    /// The detector that knows the owner's secrets as they are now.
    pub async fn of(&self, owner: &str) -> Result<Arc<LeakDetector>, DetectorError> {
        let shared = &self.0;
        let values = shared.secrets.values_of(owner).await?;
        if values.is_empty() {
            return Ok(Arc::clone(&shared.formats_only));
        }
        if let Some(kept) = shared.kept.lock().get(owner, &values) {
            return Ok(kept);
        }
        let _permit = shared.builds.acquire(owner).await.map_err(|_| DetectorError::Interrupted)?;
        // Another caller may have built it meanwhile.
        if let Some(kept) = shared.kept.lock().get(owner, &values) {
            return Ok(kept);
        }
        let secret_bytes = values.iter().map(|one| one.value.expose_secret().len()).sum();
        let of_values = Arc::clone(&values);
        let built = tokio::task::spawn_blocking(move || build(&of_values)).await;
        let detector = Arc::new(built.map_err(|_| DetectorError::Interrupted)??);
        let entry = Entry { values, detector: Arc::clone(&detector), secret_bytes, last_use: 0 };
        shared.kept.lock().insert(owner, entry);
        Ok(detector)
    }
}

#[cfg(any(test, feature = "test-util"))]
impl LeakDetectors {
    /// Stores a secret that the detectors then find.
    ///
    /// # Panics
    /// If it cannot be stored.
    pub async fn store_for_test(&self, owner: &str, value: &str) {
        let entry = store::AuditEntry::by_operator("secret.set", chrono::DateTime::UNIX_EPOCH);
        self.0.secrets.set(owner, "TOKEN", &secrecy::SecretString::from(value), None, &entry).await.expect("a secret");
    }
}

impl DetectorCache {
    /// The owner's detector, if it was built from these values.
    fn get(&mut self, owner: &str, values: &Arc<[NamedSecret]>) -> Option<Arc<LeakDetector>> {
        self.uses += 1;
        let entry = self.detectors.get_mut(owner).filter(|entry| Arc::ptr_eq(&entry.values, values))?;
        entry.last_use = self.uses;
        Some(Arc::clone(&entry.detector))
    }

    fn insert(&mut self, owner: &str, entry: Entry) {
        self.remove(owner);
        while !self.detectors.is_empty()
            && (self.detectors.len() >= MAX_KEPT_DETECTORS
                || self.secret_bytes + entry.secret_bytes > MAX_KEPT_SECRET_BYTES)
        {
            let oldest = self.detectors.iter().min_by_key(|(_, entry)| entry.last_use);
            let Some(oldest) = oldest.map(|(owner, _)| owner.clone()) else { break };
            self.remove(&oldest);
        }
        self.uses += 1;
        self.secret_bytes += entry.secret_bytes;
        self.detectors.insert(owner.to_owned(), Entry { last_use: self.uses, ..entry });
    }

    fn remove(&mut self, owner: &str) {
        if let Some(entry) = self.detectors.remove(owner) {
            self.secret_bytes -= entry.secret_bytes;
        }
    }
}

/// Runs a search of texts of this size, off the runtime's threads if they are large.
pub async fn search<T: Send + 'static>(
    bytes: usize,
    search: impl FnOnce() -> T + Send + 'static,
) -> Result<T, DetectorError> {
    if bytes < LARGE_TEXT_BYTES {
        return Ok(search());
    }
    tokio::task::spawn_blocking(search).await.map_err(|_| DetectorError::Interrupted)
}

fn build(values: &[NamedSecret]) -> Result<LeakDetector, LeakDetectorError> {
    LeakDetector::new(values.iter().map(|one| StoredSecret { name: &one.name, value: one.value.expose_secret() }))
}

#[cfg(test)]
mod tests {
    use chrono::DateTime;
    use secrecy::SecretString;
    use tempfile::TempDir;

    use protocol::RoutineId;

    use super::*;
    use domain::routine::{secret::RoutineSecret, signature::MAX_SECRET_BYTES};
    use store::{AuditEntry, Store};

    use crate::KeySource;

    async fn fresh() -> (TempDir, Store, Arc<Secrets>, LeakDetectors) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let secrets = Secrets::open(store.clone(), &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
        let secrets = Arc::new(secrets);
        let detectors = LeakDetectors::new(Arc::clone(&secrets)).unwrap();
        (directory, store, secrets, detectors)
    }

    fn entry() -> AuditEntry {
        AuditEntry::by_operator("secret.set", DateTime::UNIX_EPOCH)
    }

    async fn set(secrets: &Secrets, owner: &str, value: &str) {
        secrets.set(owner, "TOKEN", &SecretString::from(value), None, &entry()).await.unwrap();
    }

    async fn shown(detectors: &LeakDetectors, owner: &str) -> String {
        detectors.of(owner).await.unwrap().redact("first-value and second-value").0.into_owned()
    }

    #[tokio::test]
    async fn a_detector_knows_its_owners_secrets_as_they_are_now() {
        let (_directory, store, secrets, detectors) = fresh().await;
        assert_eq!(shown(&detectors, "ada").await, "first-value and second-value");
        set(&secrets, "ada", "first-value").await;
        assert_eq!(shown(&detectors, "ada").await, "[redacted] and second-value");
        assert_eq!(shown(&detectors, "bob").await, "first-value and second-value");
        set(&secrets, "ada", "second-value").await;
        assert_eq!(shown(&detectors, "ada").await, "first-value and [redacted]");
        assert!(secrets.delete("ada", "TOKEN", &entry()).await.unwrap());
        assert_eq!(shown(&detectors, "ada").await, "first-value and second-value");
        store.close().await;
    }

    #[tokio::test]
    async fn secrets_of_routines_are_not_looked_for_however_many_there_are() {
        let (_directory, store, secrets, detectors) = fresh().await;
        set(&secrets, "ada", "first-value").await;
        // More than a detector can index.
        let value = SecretString::from("x".repeat(MAX_SECRET_BYTES));
        let names: Vec<_> = (0..=MAX_INDEXED_SECRET_BYTES / MAX_SECRET_BYTES)
            .map(|_| RoutineSecret::Webhook.name(RoutineId::generate()))
            .collect();
        let audit = entry();
        let stored = names.iter().map(|name| secrets.set("ada", name, &value, None, &audit));
        futures_util::future::try_join_all(stored).await.unwrap();
        assert_eq!(shown(&detectors, "ada").await, "[redacted] and second-value");
        let read = secrets.get("ada", &names[0]).await.unwrap().unwrap();
        assert_eq!(read.expose_secret().len(), MAX_SECRET_BYTES);
        store.close().await;
    }

    #[tokio::test]
    async fn a_detector_is_built_once_for_callers_at_the_same_time() {
        let (_directory, store, secrets, detectors) = fresh().await;
        set(&secrets, "ada", "first-value").await;
        let (one, other) = tokio::join!(detectors.of("ada"), detectors.of("ada"));
        let one = one.unwrap();
        assert!(Arc::ptr_eq(&one, &other.unwrap()));
        set(&secrets, "bob", "first-value").await;
        detectors.of("bob").await.unwrap();
        assert!(Arc::ptr_eq(&one, &detectors.of("ada").await.unwrap()));
        store.close().await;
    }

    #[tokio::test]
    async fn without_the_secrets_there_is_no_detector() {
        let (_directory, store, secrets, detectors) = fresh().await;
        set(&secrets, "ada", "first-value").await;
        store.close().await;
        assert!(matches!(detectors.of("ada").await, Err(DetectorError::Secrets(_))));
    }

    #[test]
    fn the_least_recently_used_detectors_make_room() {
        let mut kept = DetectorCache::default();
        let detector = Arc::new(LeakDetector::new([]).unwrap());
        let values: Arc<[NamedSecret]> = [].into();
        let entry = |secret_bytes| Entry {
            values: Arc::clone(&values),
            detector: Arc::clone(&detector),
            secret_bytes,
            last_use: 0,
        };
        kept.insert("ada", entry(MAX_INDEXED_SECRET_BYTES));
        kept.insert("bob", entry(MAX_INDEXED_SECRET_BYTES));
        assert!(kept.get("ada", &values).is_some());
        kept.insert("cleo", entry(1));
        assert!(kept.get("bob", &values).is_none());
        assert!(kept.get("ada", &values).is_some());
        assert_eq!(kept.secret_bytes, MAX_INDEXED_SECRET_BYTES + 1);
        for n in 0..MAX_KEPT_DETECTORS {
            kept.insert(&format!("user {n}"), entry(0));
        }
        assert_eq!((kept.detectors.len(), kept.secret_bytes), (MAX_KEPT_DETECTORS, 0));
        let changed: Arc<[NamedSecret]> =
            [NamedSecret { name: "TOKEN".to_owned(), value: SecretString::from("first-value"), hosts: Vec::new() }]
                .into();
        assert!(kept.get("user 7", &values).is_some());
        assert!(kept.get("user 7", &changed).is_none());
    }
}
