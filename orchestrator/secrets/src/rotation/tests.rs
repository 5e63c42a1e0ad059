//! Tests of the rotation on a real database, and of starts after it.

use std::{fs, os::unix::fs::PermissionsExt, path::Path};

use chrono::DateTime;
use secrecy::{ExposeSecret, SecretString};
use tempfile::TempDir;

use super::*;
use crate::{Secrets, key_source::key_path};

fn entry() -> AuditEntry {
    AuditEntry::by_operator("secret.rotate_key", DateTime::UNIX_EPOCH)
}

/// A data directory with secrets of two users.
async fn install(source: impl Fn(&Path) -> KeySource) -> (TempDir, Store, KeySource) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let source = source(directory.path());
    let secrets = Secrets::open(store.clone(), &source).await.unwrap();
    for (owner, name) in [("ada", "A"), ("ada", "B"), ("bob", "A")] {
        let value = SecretString::from(format!("the value of {owner} {name}"));
        secrets.set(owner, name, &value, None, &entry()).await.unwrap();
    }
    (directory, store, source)
}

fn in_data_dir(directory: &Path) -> KeySource {
    KeySource::DataDir(directory.to_owned())
}

async fn rotated(store: &Store, source: &KeySource, unreadable: UnreadableSecrets) -> Result<Rotated, RotateError> {
    rotate(store, source, None, unreadable, &entry()).await
}

/// What a start with this key makes of the secrets.
async fn values(store: &Store, source: &KeySource) -> Result<Vec<String>, MasterKeyError> {
    let secrets = Secrets::open(store.clone(), source).await?;
    let mut found = vec![];
    for owner in ["ada", "bob"] {
        let values = secrets.values_of(owner).await.unwrap();
        found.extend(values.iter().map(|one| one.value.expose_secret().to_owned()));
    }
    Ok(found)
}

const ALL: [&str; 3] = ["the value of ada A", "the value of ada B", "the value of bob A"];

fn files(directory: &TempDir) -> Vec<String> {
    let names = fs::read_dir(directory.path()).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
    let mut names: Vec<String> = names.filter(|name| name.contains("key")).collect();
    names.sort();
    names
}

#[tokio::test]
async fn every_secret_is_sealed_with_the_next_key() {
    let (directory, store, source) = install(in_data_dir).await;
    let before = (store.secret_key_ids().await.unwrap(), fs::read(key_path(directory.path())).unwrap());
    let done = rotated(&store, &source, UnreadableSecrets::Refuse).await.unwrap();
    assert_eq!(done.counts, ResealCounts { resealed: 3, deleted: 0 });
    assert!(!done.is_configured);
    let after = (store.secret_key_ids().await.unwrap(), fs::read(key_path(directory.path())).unwrap());
    assert_eq!(after.0, [done.key_id]);
    assert!(before.0 != after.0 && before.1 != after.1);
    assert_eq!(files(&directory), ["master.key", "master.key.previous"]);
    assert_eq!(fs::read(directory.path().join("master.key.previous")).unwrap(), before.1);
    let log = fs::metadata(directory.path().join("gantry.db-wal")).unwrap();
    assert_eq!(log.len(), 0, "the sealed values are in the database before the key is replaced");
    let mode = fs::metadata(key_path(directory.path())).unwrap().permissions().mode();
    assert_eq!(mode & 0o777, 0o600);
    assert_eq!(values(&store, &source).await.unwrap(), ALL);
    assert_eq!(files(&directory), ["master.key"]);
    store.close().await;
}

#[tokio::test]
async fn values_that_are_sealed_with_the_previous_key_put_it_in_force_again() {
    let (directory, store, source) = install(in_data_dir).await;
    let copy = directory.path().join("copy.db");
    store::backup(&format!("sqlite://{}/gantry.db", directory.path().display()), &copy).await.unwrap();
    let present = source.find().unwrap().unwrap();
    rotated(&store, &source, UnreadableSecrets::Refuse).await.unwrap();
    store.close().await;
    let restored = Store::open(&format!("sqlite://{}", copy.display())).await.unwrap();
    assert_eq!(values(&restored, &source).await.unwrap(), ALL);
    assert_eq!(source.find().unwrap().unwrap().id(), present.id());
    assert_eq!(files(&directory), ["master.key"]);
    restored.close().await;
}

#[tokio::test]
async fn an_interruption_before_the_commit_leaves_the_present_key_in_force() {
    let (directory, store, source) = install(in_data_dir).await;
    stage_next_key(directory.path(), &MasterKey::generate()).unwrap();
    assert_eq!(values(&store, &source).await.unwrap(), ALL);
    assert_eq!(files(&directory), ["master.key"]);
    // As when the process ended while it wrote the file.
    fs::write(directory.path().join("master.key.next"), "AAECAwQF").unwrap();
    assert_eq!(values(&store, &source).await.unwrap(), ALL);
    assert_eq!(files(&directory), ["master.key"]);
    store.close().await;
}

#[tokio::test]
async fn an_interruption_after_the_commit_puts_the_next_key_in_force() {
    let (directory, store, source) = install(in_data_dir).await;
    let present = source.find().unwrap().unwrap();
    let next = MasterKey::generate();
    stage_next_key(directory.path(), &next).unwrap();
    let (sealing, all) = (next.clone(), UnreadableSecrets::Refuse);
    store.reseal_secrets(move |one| reseal(Some(&present), &sealing, all, one), &entry()).await.unwrap();
    assert_eq!(values(&store, &source).await.unwrap(), ALL);
    assert_eq!(files(&directory), ["master.key"]);
    assert_eq!(source.find().unwrap().unwrap().id(), next.id());
    store.close().await;
}

#[tokio::test]
async fn a_secret_that_does_not_open_stops_the_rotation_or_is_deleted() {
    let (directory, store, source) = install(in_data_dir).await;
    store.execute("UPDATE secrets SET name = 'C' WHERE user_id = 'bob'").await.unwrap();
    let before = store.sealed_secrets("ada").await.unwrap();
    let error = rotated(&store, &source, UnreadableSecrets::Refuse).await.unwrap_err();
    assert_eq!(base::error_chain(&error), format!("{error}: inconsistent row: secrets.ciphertext of C of bob"));
    assert_eq!(store.sealed_secrets("ada").await.unwrap(), before, "all secrets change or none");
    assert_eq!(values(&store, &source).await.unwrap(), ALL[..2]);
    let done = rotated(&store, &source, UnreadableSecrets::Discard).await.unwrap();
    assert_eq!(done.counts, ResealCounts { resealed: 2, deleted: 1 });
    assert_eq!(files(&directory), ["master.key", "master.key.previous"]);
    assert_eq!(values(&store, &source).await.unwrap(), ALL[..2]);
    assert_eq!(files(&directory), ["master.key"]);
    store.close().await;
}

#[tokio::test]
async fn a_configured_key_is_replaced_by_the_one_that_is_given() {
    let key = MasterKey::generate();
    let configured = |key: &MasterKey| KeySource::Configured(SecretString::from(key.to_base64().as_str()));
    let (directory, store, source) = install(|_| configured(&key)).await;
    let missing = rotated(&store, &source, UnreadableSecrets::Refuse).await.unwrap_err();
    assert!(matches!(missing, RotateError::NewKeyRequired), "{missing}");
    let same = rotate(&store, &source, Some(key.clone()), UnreadableSecrets::Refuse, &entry()).await.unwrap_err();
    assert!(matches!(same, RotateError::SameKey), "{same}");
    let next = MasterKey::generate();
    let done = rotate(&store, &source, Some(next.clone()), UnreadableSecrets::Refuse, &entry()).await.unwrap();
    assert_eq!((done.key_id.as_str(), done.is_configured, done.counts.resealed), (next.id(), true, 3));
    assert_eq!(values(&store, &configured(&next)).await.unwrap(), ALL);
    let error = values(&store, &configured(&key)).await.unwrap_err().to_string();
    assert!(error.starts_with("the master key GANTRY_MASTER_KEY (id "), "{error}");
    assert!(error.contains(key.id()) && error.contains(next.id()) && !error.contains('\n'), "{error}");
    assert_eq!(files(&directory), Vec::<String>::new());
    store.close().await;
}

#[tokio::test]
async fn a_lost_key_is_never_replaced_while_it_is_needed() {
    let (directory, store, source) = install(in_data_dir).await;
    fs::remove_file(key_path(directory.path())).unwrap();
    for result in [
        values(&store, &source).await.map(drop).map_err(|error| error.to_string()),
        rotated(&store, &source, UnreadableSecrets::Refuse).await.map(drop).map_err(|error| error.to_string()),
    ] {
        let error = result.unwrap_err();
        assert!(error.contains("master.key is missing") && error.contains("--discard-unreadable"), "{error}");
    }
    assert_eq!(files(&directory), Vec::<String>::new());
    let done = rotated(&store, &source, UnreadableSecrets::Discard).await.unwrap();
    assert_eq!(done.counts, ResealCounts { resealed: 0, deleted: 3 });
    assert_eq!(values(&store, &source).await.unwrap(), Vec::<String>::new());
    assert_eq!(files(&directory), ["master.key"]);
    store.close().await;
}

#[tokio::test]
async fn a_damaged_key_file_is_reported_and_kept() {
    let (directory, store, source) = install(in_data_dir).await;
    let path = key_path(directory.path());
    fs::write(&path, "not a key").unwrap();
    let error = values(&store, &source).await.unwrap_err();
    assert!(matches!(error, MasterKeyError::Malformed { .. }) && error.to_string().contains("master.key"), "{error}");
    assert_eq!(fs::read_to_string(&path).unwrap(), "not a key");
    store.close().await;
}
