//! The signing key: configured, or created once in the data directory.

use std::{
    fmt, io,
    path::{Path, PathBuf},
};

use base64::{Engine as _, prelude::BASE64_URL_SAFE_NO_PAD};
use jsonwebtoken::{DecodingKey, EncodingKey, Validation};
use secrecy::{ExposeSecret, SecretString, zeroize::Zeroizing};

use super::{PUBLIC_AUDIENCE, PUBLIC_ISSUER, SESSION_AUDIENCE, WORKER_AUDIENCE, validation};
use base::key_file;

const KEY_FILE: &str = "jwt.key";
const KEY_BYTES: usize = 32;

/// The key in the data directory cannot be used.
#[derive(Debug, thiserror::Error)]
pub enum KeyError {
    /// It cannot be read or created.
    #[error("the signing key {path} cannot be read or created")]
    File {
        path: String,
        #[source]
        source: io::Error,
    },
    /// It is truncated: remove it, which invalidates all tokens, or set `GANTRY_JWT_SECRET`.
    #[error("the signing key {path} is too short; remove it to create a new one, which invalidates all tokens")]
    TooShort { path: String },
}

/// Signs and verifies tokens.
#[derive(Clone)]
pub struct SigningKey {
    pub(super) encoding: EncodingKey,
    pub(super) decoding: DecodingKey,
    /// The checks of tokens of the public API.
    pub(super) public: Validation,
    /// The checks of the cookies of sessions.
    pub(super) session: Validation,
    /// The checks of worker tokens, without the issuer: that is the install.
    pub(super) worker: Validation,
}

impl fmt::Debug for SigningKey {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("SigningKey")
    }
}

impl SigningKey {
    /// The configured secret or, without one, the key in the data directory, which is created if it does not exist. The
    /// directory must exist.
    pub fn load(secret: Option<&SecretString>, data_dir: &Path) -> Result<Self, KeyError> {
        match secret {
            Some(secret) => Ok(Self::from_secret(secret.expose_secret().as_bytes())),
            None => Self::from_directory(data_dir),
        }
    }

    /// Path of the key in the data directory.
    pub fn file(data_dir: &Path) -> PathBuf {
        data_dir.join(KEY_FILE)
    }

    /// Uses the bytes of the secret as the key.
    pub fn from_secret(secret: &[u8]) -> Self {
        let (encoding, decoding) = (EncodingKey::from_secret(secret), DecodingKey::from_secret(secret));
        let of_users = |audience| {
            let mut validation = validation(audience);
            validation.set_issuer(&[PUBLIC_ISSUER]);
            validation
        };
        let (public, session) = (of_users(PUBLIC_AUDIENCE), of_users(SESSION_AUDIENCE));
        Self { encoding, decoding, public, session, worker: validation(WORKER_AUDIENCE) }
    }

    fn from_directory(data_dir: &Path) -> Result<Self, KeyError> {
        let path = Self::file(data_dir);
        let generate = || Zeroizing::new(BASE64_URL_SAFE_NO_PAD.encode(rand::random::<[u8; KEY_BYTES]>()));
        // The text itself is the key, so that another program can use the file as a secret.
        let key = key_file::read_or_create(&path, generate)
            .map_err(|source| KeyError::File { path: path.display().to_string(), source })?;
        if key.len() < KEY_BYTES {
            return Err(KeyError::TooShort { path: path.display().to_string() });
        }
        Ok(Self::from_secret(key.as_bytes()))
    }
}
