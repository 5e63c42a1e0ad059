//! The master key: seals users' secrets, and opens them.
//!
//! Owns the cipher (XChaCha20-Poly1305); the only user of its crate. Never stores anything.

use std::fmt;

use base::digest::sha256_hex_of_parts;
use base64::{Engine as _, prelude::BASE64_STANDARD};
use chacha20poly1305::{
    KeyInit as _, XChaCha20Poly1305, XNonce,
    aead::{Aead as _, Payload},
};
use config::master_key_bytes;
use secrecy::{ExposeSecret, SecretString, zeroize::Zeroizing};
use store::SealedValue;

/// Bytes of a key; the cipher's.
const KEY_BYTES: usize = 32;
/// Bytes of a nonce. With this many, random ones never repeat.
const NONCE_BYTES: usize = 24;
/// Hexadecimal digits of a key's id: enough to tell an operator's keys apart.
const ID_DIGITS: usize = 16;
/// The purpose and the version of what is authenticated beside a value.
const PURPOSE: &[u8] = b"gantry secret v1";

/// The key that seals users' secrets. `Debug` shows its id only.
#[derive(Clone)]
pub struct MasterKey {
    key: Zeroizing<[u8; KEY_BYTES]>,
    id: String,
}

impl fmt::Debug for MasterKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("MasterKey").field("id", &self.id).finish_non_exhaustive()
    }
}

/// A value cannot be sealed or opened: it was sealed with another key, or for another owner or name, or it was changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("the value does not open with the master key")]
pub(super) struct CipherError;

impl MasterKey {
    /// Parses the base64 of 32 bytes.
    pub fn from_base64(text: &str) -> Option<Self> {
        master_key_bytes(text).map(Self::from_bytes)
    }

    pub fn generate() -> Self {
        Self::from_bytes(Zeroizing::new(rand::random()))
    }

    fn from_bytes(key: Zeroizing<[u8; KEY_BYTES]>) -> Self {
        let mut id = sha256_hex_of_parts(&[b"gantry master key id\0", &key[..]]);
        id.truncate(ID_DIGITS);
        Self { key, id }
    }

    /// The key in base64, as it is written to a file.
    pub(super) fn to_base64(&self) -> Zeroizing<String> {
        Zeroizing::new(BASE64_STANDARD.encode(&self.key[..]))
    }

    /// Identifies the key; reveals nothing of it.
    pub fn id(&self) -> &str {
        &self.id
    }

    /// Seals a value, so that it opens only with this key, for this owner and under this name.
    pub(super) fn seal(&self, owner: &str, name: &str, value: &SecretString) -> Result<SealedValue, CipherError> {
        let nonce: [u8; NONCE_BYTES] = rand::random();
        let aad = associated_data(owner, name, &self.id);
        let payload = Payload { msg: value.expose_secret().as_bytes(), aad: &aad };
        let ciphertext = self.cipher().encrypt(&XNonce::from(nonce), payload).map_err(|_| CipherError)?;
        Ok(SealedValue { key_id: self.id.clone(), nonce: nonce.to_vec(), ciphertext })
    }

    /// Opens a value that was sealed for this owner and name.
    pub(super) fn open(&self, owner: &str, name: &str, sealed: &SealedValue) -> Result<SecretString, CipherError> {
        let nonce: [u8; NONCE_BYTES] = sealed.nonce.as_slice().try_into().map_err(|_| CipherError)?;
        let aad = associated_data(owner, name, &sealed.key_id);
        let payload = Payload { msg: &sealed.ciphertext, aad: &aad };
        let bytes = Zeroizing::new(self.cipher().decrypt(&XNonce::from(nonce), payload).map_err(|_| CipherError)?);
        std::str::from_utf8(&bytes).map(SecretString::from).map_err(|_| CipherError)
    }

    fn cipher(&self) -> XChaCha20Poly1305 {
        XChaCha20Poly1305::new((&*self.key).into())
    }
}

/// What is authenticated beside a value. Each part has its length before it, so that no two triples have the same
/// bytes.
fn associated_data(owner: &str, name: &str, key_id: &str) -> Vec<u8> {
    let mut data = PURPOSE.to_vec();
    for part in [owner, name, key_id] {
        data.extend_from_slice(&(part.len() as u64).to_be_bytes());
        data.extend_from_slice(part.as_bytes());
    }
    data
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn key() -> MasterKey {
        MasterKey::from_base64("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8=").unwrap()
    }

    fn secret(text: &str) -> SecretString {
        SecretString::from(text)
    }

    #[rstest]
    #[case("")]
    #[case("not base64 at all, though long enough to be")]
    #[case("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHg==")]
    #[case("AAECAwQFBgcICQoLDA0ODxAREhMUFRYXGBkaGxwdHh8g")]
    fn a_key_is_the_base64_of_32_bytes(#[case] text: &str) {
        assert!(MasterKey::from_base64(text).is_none());
    }

    #[test]
    fn a_key_is_the_same_after_it_was_written() {
        let key = MasterKey::generate();
        let same = MasterKey::from_base64(&key.to_base64()).unwrap();
        assert_eq!(same.id(), key.id());
        assert_ne!(MasterKey::generate().id(), key.id());
        let sealed = key.seal("ada", "TOKEN", &secret("the value")).unwrap();
        assert_eq!(same.open("ada", "TOKEN", &sealed).unwrap().expose_secret(), "the value");
        let shown = format!("{key:?}");
        assert!(!shown.contains(key.to_base64().as_str()) && shown.contains(key.id()), "{shown}");
    }

    #[test]
    fn a_value_opens_only_as_it_was_sealed() {
        let sealed = key().seal("ada", "TOKEN", &secret("the value")).unwrap();
        assert_eq!(key().open("ada", "TOKEN", &sealed).unwrap().expose_secret(), "the value");
        for (owner, name) in [("bob", "TOKEN"), ("ada", "OTHER"), ("adaT", "OKEN"), ("", "adaTOKEN")] {
            assert_eq!(key().open(owner, name, &sealed).unwrap_err(), CipherError, "{owner} {name}");
        }
        let flip = |bytes: &[u8]| bytes.iter().enumerate().map(|(i, b)| if i == 3 { b ^ 1 } else { *b }).collect();
        for changed in [
            SealedValue { key_id: "another".to_owned(), ..sealed.clone() },
            SealedValue { nonce: flip(&sealed.nonce), ..sealed.clone() },
            SealedValue { nonce: sealed.nonce[1..].to_vec(), ..sealed.clone() },
            SealedValue { ciphertext: flip(&sealed.ciphertext), ..sealed.clone() },
            SealedValue { ciphertext: vec![], ..sealed.clone() },
        ] {
            assert!(key().open("ada", "TOKEN", &changed).is_err(), "{changed:?}");
        }
        assert!(MasterKey::generate().open("ada", "TOKEN", &sealed).is_err());
    }

    #[test]
    fn equal_values_are_sealed_differently() {
        let seal = || key().seal("ada", "TOKEN", &secret("the value")).unwrap();
        let (one, other) = (seal(), seal());
        assert_ne!(one.nonce, other.nonce);
        assert_ne!(one.ciphertext, other.ciphertext);
    }

    proptest! {
        #[test]
        fn whatever_is_sealed_opens(owner in ".*", name in ".*", value in ".*") {
            let sealed = key().seal(&owner, &name, &secret(&value)).unwrap();
            let opened = key().open(&owner, &name, &sealed).unwrap();
            prop_assert_eq!(opened.expose_secret(), value.as_str());
        }

        #[test]
        fn different_labels_are_authenticated_differently(one in any::<[String; 3]>(), other in any::<[String; 3]>()) {
            let data = |[owner, name, id]: &[String; 3]| associated_data(owner, name, id);
            prop_assert_eq!(data(&one) == data(&other), one == other);
        }
    }
}
