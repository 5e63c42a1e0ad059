//! A worker's credentials: the generated secret of its session and the token of its attempt.
//!
//! The secret exists only in this process's memory and in request headers, never in arguments, the environment, files
//! or logs.

use std::{
    fmt::{self, Write},
    fs, io,
    path::Path,
    time::Duration,
};

use rustix::rand::{GetRandomFlags, getrandom};

/// 256 bits, as 64 hexadecimal digits in the header.
const SECRET_BYTES: usize = 32;
/// A container of the pool may wait a long time for its job. A check costs one system call.
const TOKEN_POLL: Duration = Duration::from_millis(50);

/// The secret of one worker process.
pub(crate) struct SessionSecret(String);

impl SessionSecret {
    /// Generates a secret from the kernel's random generator.
    pub(crate) fn generate() -> io::Result<Self> {
        let mut bytes = [0_u8; SECRET_BYTES];
        // The kernel never returns fewer bytes for requests of up to 256 bytes.
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if filled != SECRET_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut digits = String::with_capacity(2 * SECRET_BYTES);
        for byte in bytes {
            // Writing to a `String` cannot fail.
            let _ = write!(digits, "{byte:02x}");
        }
        Ok(Self(digits))
    }

    /// The secret in plain text, for the request header.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionSecret(…)")
    }
}

/// Reads the token and waits until the file exists: a container of the pool gets it with its job. It is read only once:
/// the orchestrator removes the file when the session is open.
pub(crate) async fn token(file: &Path) -> io::Result<String> {
    let mut waiting = false;
    loop {
        match fs::read_to_string(file) {
            Ok(token) if !token.trim().is_empty() => return Ok(token),
            Ok(_) => {}
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(error),
        }
        if !waiting {
            tracing::info!("waiting for the token");
            waiting = true;
        }
        tokio::time::sleep(TOKEN_POLL).await;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn secrets_are_unique_have_64_digits_and_are_not_printed() {
        let (one, other) = (SessionSecret::generate().unwrap(), SessionSecret::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        for secret in [one, other] {
            assert_eq!(secret.expose().len(), 64);
            assert!(secret.expose().bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
            assert!(!format!("{secret:?}").contains(secret.expose()));
        }
    }
}
