//! A worker's credentials: the secret that it generates for its session, and the token of its attempt.
//!
//! The secret exists in this process's memory and in the header of its requests. Never in an argument, an environment,
//! a file or a log.

use std::{
    fmt::{self, Write},
    fs, io,
    path::Path,
    time::Duration,
};

use rustix::rand::{GetRandomFlags, getrandom};

/// 256 bits, as 64 hexadecimal digits in the header.
const SECRET_BYTES: usize = 32;
/// A container of the pool may wait long for its job, and looking costs one system call.
const TOKEN_POLL: Duration = Duration::from_millis(50);

/// The secret of one worker process.
pub(crate) struct SessionSecret(String);

impl SessionSecret {
    /// Generates a secret from the kernel's random generator.
    pub(crate) fn generate() -> io::Result<Self> {
        let mut bytes = [0_u8; SECRET_BYTES];
        // The kernel answers requests of up to 256 bytes whole.
        let filled = getrandom(&mut bytes, GetRandomFlags::empty())?;
        if filled != SECRET_BYTES {
            return Err(io::ErrorKind::UnexpectedEof.into());
        }
        let mut digits = String::with_capacity(2 * SECRET_BYTES);
        for byte in bytes {
            // Writing to a string does not fail.
            let _ = write!(digits, "{byte:02x}");
        }
        Ok(Self(digits))
    }

    /// The secret in plain text, for the header.
    pub(crate) fn expose(&self) -> &str {
        &self.0
    }
}

impl fmt::Debug for SessionSecret {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("SessionSecret(…)")
    }
}

/// Reads the token, and waits for the file where it is not there yet: a container of the pool gets it with its job. It
/// is read once, since the orchestrator removes it when the session is open.
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
    fn each_secret_is_64_digits_of_its_own_and_never_printed() {
        let (one, other) = (SessionSecret::generate().unwrap(), SessionSecret::generate().unwrap());
        assert_ne!(one.expose(), other.expose());
        for secret in [one, other] {
            assert_eq!(secret.expose().len(), 64);
            assert!(secret.expose().bytes().all(|digit| matches!(digit, b'0'..=b'9' | b'a'..=b'f')));
            assert!(!format!("{secret:?}").contains(secret.expose()));
        }
    }
}
