//! Tests of stored secrets on a real database.

use chrono::DateTime;
use secrecy::ExposeSecret;
use tempfile::TempDir;

use super::*;

fn entry() -> AuditEntry {
    AuditEntry::by_operator("secret.set", DateTime::UNIX_EPOCH)
}

async fn fresh() -> (TempDir, Store, Secrets) {
    let directory = tempfile::tempdir().unwrap();
    let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
    let secrets = Secrets::open(store.clone(), &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
    (directory, store, secrets)
}

async fn set(secrets: &Secrets, owner: &str, name: &str, value: &str) {
    let stored = secrets.set(owner, name, &SecretString::from(value), None, &entry()).await.unwrap();
    assert!(matches!(stored, SecretStored::Done(_)), "{stored:?}");
}

async fn values(secrets: &Secrets, owner: &str) -> Vec<(String, String)> {
    let values = secrets.values_of(owner).await.unwrap();
    values.iter().map(|one| (one.name.clone(), one.value.expose_secret().to_owned())).collect()
}

fn pair(name: &str, value: &str) -> (String, String) {
    (name.to_owned(), value.to_owned())
}

#[tokio::test]
async fn an_owner_gets_its_own_values_as_they_are_now() {
    let (_directory, store, secrets) = fresh().await;
    assert_eq!(values(&secrets, "ada").await, []);
    set(&secrets, "ada", "B", "of ada").await;
    set(&secrets, "ada", "A", "first value").await;
    set(&secrets, "bob", "A", "of bob").await;
    assert_eq!(values(&secrets, "ada").await, [pair("A", "first value"), pair("B", "of ada")]);
    set(&secrets, "ada", "A", "second value").await;
    assert_eq!(values(&secrets, "ada").await, [pair("A", "second value"), pair("B", "of ada")]);
    assert_eq!(secrets.get("bob", "A").await.unwrap().unwrap().expose_secret(), "of bob");
    assert!(secrets.get("bob", "B").await.unwrap().is_none());
    assert!(secrets.delete("ada", "A", &entry()).await.unwrap());
    assert!(!secrets.delete("ada", "A", &entry()).await.unwrap());
    assert!(!secrets.delete("bob", "B", &entry()).await.unwrap(), "a secret of another user");
    assert_eq!(values(&secrets, "ada").await, [pair("B", "of ada")]);
    store.close().await;
}

#[tokio::test]
async fn values_are_opened_once_until_they_change() {
    let (_directory, store, secrets) = fresh().await;
    set(&secrets, "ada", "A", "the value").await;
    let first = secrets.values_of("ada").await.unwrap();
    set(&secrets, "bob", "A", "the value").await;
    assert!(Arc::ptr_eq(&first, &secrets.values_of("ada").await.unwrap()));
    set(&secrets, "ada", "A", "the value").await;
    assert!(!Arc::ptr_eq(&first, &secrets.values_of("ada").await.unwrap()));
    let shown = format!("{first:?}");
    assert!(!shown.contains("the value") && shown.contains("REDACTED"), "{shown}");
    store.close().await;
}

#[tokio::test]
async fn a_row_that_was_moved_or_changed_does_not_open_and_hides_no_other() {
    let (_directory, store, secrets) = fresh().await;
    for (owner, name) in [("ada", "A"), ("ada", "B"), ("ada", "C"), ("bob", "D")] {
        set(&secrets, owner, name, "the value").await;
    }
    for change in [
        "UPDATE secrets SET user_id = 'bob' WHERE name = 'A'",
        "UPDATE secrets SET name = 'E' WHERE name = 'B'",
        "UPDATE secrets SET ciphertext = x'00' || substr(ciphertext, 2) WHERE name = 'C'",
    ] {
        store.execute(change).await.unwrap();
    }
    assert_eq!(values(&secrets, "ada").await, []);
    assert_eq!(values(&secrets, "bob").await, [pair("D", "the value")]);
    assert!(secrets.get("bob", "A").await.unwrap().is_none());
    store.close().await;
}

#[tokio::test]
async fn a_user_has_at_most_200_secrets_and_can_replace_each() {
    let (_directory, store, secrets) = fresh().await;
    for n in 0..protocol::limits::MAX_SECRETS {
        set(&secrets, "ada", &format!("S{n}"), "the value").await;
    }
    let one_more = secrets.set("ada", "one.more", &SecretString::from("the value"), None, &entry()).await.unwrap();
    assert_eq!(one_more, SecretStored::LimitReached);
    set(&secrets, "ada", "S7", "another value").await;
    set(&secrets, "bob", "A", "the value").await;
    assert_eq!(secrets.values_of("ada").await.unwrap().len(), 200);
    assert!(secrets.get("ada", "one.more").await.unwrap().is_none());
    store.close().await;
}

#[tokio::test]
async fn the_values_of_an_owner_have_a_maximum_size_in_all() {
    let (_directory, store, secrets) = fresh().await;
    let largest = "x".repeat(protocol::limits::MAX_SECRET_BYTES);
    for name in ["A", "B", "C", "D"] {
        set(&secrets, "ada", name, &largest).await;
    }
    let refused = secrets.set("ada", "E", &SecretString::from("12345678"), None, &entry()).await.unwrap();
    assert_eq!(refused, SecretStored::TotalTooLarge { others: 256 * 1024 });
    set(&secrets, "ada", "D", &largest[8..]).await;
    set(&secrets, "ada", "E", "12345678").await;
    set(&secrets, "ada", "A", &largest).await;
    let refused = secrets.set("ada", "E", &SecretString::from("123456789"), None, &entry()).await.unwrap();
    assert_eq!(refused, SecretStored::TotalTooLarge { others: 256 * 1024 - 8 });
    set(&secrets, "bob", "E", &largest).await;
    assert_eq!(secrets.get("ada", "E").await.unwrap().unwrap().expose_secret(), "12345678");
    store.close().await;
}
