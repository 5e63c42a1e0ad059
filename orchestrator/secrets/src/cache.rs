//! The opened secrets of owners whose values are in use, so that they are not read and opened for every model call.
//!
//! Owns what is remembered and when it is forgotten. Never reads the database.

use std::{collections::HashMap, sync::Arc};

use parking_lot::Mutex;
use secrecy::{ExposeSecret, SecretString};

/// Memory for values. Beyond it everything is forgotten and read again when it is needed: an owner has at most 256 KiB.
const MAX_BYTES: usize = 64 * 1024 * 1024;
/// Counted for an owner and for a value besides their texts.
const ENTRY_BYTES: usize = 100;

/// A secret with its value.
#[derive(Debug, Clone)]
pub struct NamedSecret {
    pub name: String,
    pub value: SecretString,
    /// The hosts that it may be sent to; empty: any host.
    pub hosts: Vec<String>,
}

impl NamedSecret {
    /// Whether it may be sent to a host, which is a name in lower case or an address in its canonical form.
    pub fn is_for(&self, host: &str) -> bool {
        self.hosts.is_empty() || self.hosts.iter().any(|one| one == host)
    }
}

/// A moment between two changes of any secret.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) struct Generation(u64);

/// The cache. Shared with the store, which forgets an owner's values in the moment in which a change of them is
/// committed.
#[derive(Default)]
pub(super) struct Cache(Mutex<CachedSecrets>);

#[derive(Default)]
struct CachedSecrets {
    owners: HashMap<String, Arc<[NamedSecret]>>,
    bytes: usize,
    changes: u64,
}

impl Cache {
    /// The owner's values, if they are here; otherwise the generation to read them in.
    pub(super) fn get(&self, owner: &str) -> Result<Arc<[NamedSecret]>, Generation> {
        let state = self.0.lock();
        state.owners.get(owner).cloned().ok_or(Generation(state.changes))
    }

    /// Remembers values that were read in this generation, unless a secret has changed since. Returns those that
    /// another caller has read meanwhile, if there are any: all callers get the same ones.
    pub(super) fn insert(&self, owner: &str, values: Arc<[NamedSecret]>, read_in: Generation) -> Arc<[NamedSecret]> {
        let mut state = self.0.lock();
        if state.changes != read_in.0 {
            return values;
        }
        if let Some(known) = state.owners.get(owner) {
            return Arc::clone(known);
        }
        let bytes = size(owner, &values);
        if state.bytes + bytes > MAX_BYTES {
            *state = CachedSecrets { changes: state.changes, ..CachedSecrets::default() };
        }
        state.owners.insert(owner.to_owned(), Arc::clone(&values));
        state.bytes += bytes;
        values
    }

    /// Forgets an owner's values, also those that are being read.
    pub(super) fn invalidate(&self, owner: &str) {
        let mut state = self.0.lock();
        state.changes += 1;
        state.remove(owner);
    }
}

impl CachedSecrets {
    fn remove(&mut self, owner: &str) {
        if let Some(values) = self.owners.remove(owner) {
            self.bytes -= size(owner, &values);
        }
    }
}

fn size(owner: &str, values: &[NamedSecret]) -> usize {
    let of_value = |one: &NamedSecret| {
        ENTRY_BYTES
            + one.name.len()
            + one.value.expose_secret().len()
            + one.hosts.iter().map(String::len).sum::<usize>()
    };
    ENTRY_BYTES + owner.len() + values.iter().map(of_value).sum::<usize>()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn values(value: &str) -> Arc<[NamedSecret]> {
        [NamedSecret { name: "TOKEN".to_owned(), value: SecretString::from(value), hosts: Vec::new() }].into()
    }

    #[test]
    fn values_are_remembered_until_they_change() {
        let cache = Cache::default();
        let generation = cache.get("ada").unwrap_err();
        let read = values("one");
        cache.insert("ada", Arc::clone(&read), generation);
        let again = cache.insert("ada", values("one"), generation);
        assert!(Arc::ptr_eq(&again, &read), "callers at the same time get the same value");
        assert!(Arc::ptr_eq(&cache.get("ada").unwrap(), &read), "the same value while nothing changes");
        cache.invalidate("bob");
        assert!(cache.get("ada").is_ok());
        cache.invalidate("ada");
        assert!(cache.get("ada").is_err());
    }

    #[test]
    fn values_that_were_read_before_a_change_are_not_remembered() {
        let cache = Cache::default();
        let generation = cache.get("ada").unwrap_err();
        cache.invalidate("ada");
        cache.insert("ada", values("old"), generation);
        assert!(cache.get("ada").is_err());
    }

    #[test]
    fn the_memory_is_bounded() {
        let cache = Cache::default();
        let large = values(&"x".repeat(MAX_BYTES / 3));
        for owner in ["a", "b", "b", "c"] {
            let generation = Generation(0);
            cache.insert(owner, Arc::clone(&large), generation);
            assert!(cache.0.lock().bytes <= MAX_BYTES);
        }
        let kept = ["a", "b", "c"].map(|owner| cache.get(owner).is_ok());
        assert_eq!(kept, [false, false, true]);
        cache.invalidate("c");
        assert_eq!(cache.0.lock().bytes, 0);
    }
}
