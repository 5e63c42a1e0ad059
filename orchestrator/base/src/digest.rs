//! SHA-256 digests in hexadecimal, as they are stored and compared: of tokens, request bodies and container settings.

use std::fmt::Write as _;

use sha2::{Digest as _, Sha256};

/// The SHA-256 of `bytes` as 64 lowercase hexadecimal digits.
pub fn sha256_hex(bytes: &[u8]) -> String {
    sha256_hex_of_parts(&[bytes])
}

/// The SHA-256 of the concatenation of `parts`, which is not built.
pub fn sha256_hex_of_parts(parts: &[&[u8]]) -> String {
    let mut digest = Sha256::new();
    for part in parts {
        digest.update(part);
    }
    digest.finalize().iter().fold(String::with_capacity(64), |mut hex, byte| {
        // Writing to a string cannot fail.
        let _ = write!(hex, "{byte:02x}");
        hex
    })
}

#[cfg(test)]
mod tests {
    #[test]
    fn a_digest_is_lowercase_hexadecimal() {
        let of_nothing = "e3b0c44298fc1c149afbf4c8996fb92427ae41e4649b934ca495991b7852b855";
        assert_eq!(super::sha256_hex(b""), of_nothing);
        assert_eq!(super::sha256_hex_of_parts(&[b"a", b"", b"bc"]), super::sha256_hex(b"abc"));
    }
}
