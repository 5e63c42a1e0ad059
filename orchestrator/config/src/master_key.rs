//! The form of the master key in the configuration and in its file: 32 bytes in base64.

use base64::{Engine as _, prelude::BASE64_STANDARD};
use secrecy::zeroize::Zeroizing;

/// Bytes of the key.
const KEY_BYTES: usize = 32;

/// The bytes of a key; `None` if the text is not the base64 of 32 bytes.
pub fn master_key_bytes(text: &str) -> Option<Zeroizing<[u8; KEY_BYTES]>> {
    let bytes = Zeroizing::new(BASE64_STANDARD.decode(text).ok()?);
    <[u8; KEY_BYTES]>::try_from(bytes.as_slice()).ok().map(Zeroizing::new)
}
