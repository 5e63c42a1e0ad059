//! Private keys in PEM form: from the line that begins one to the line that ends it. Pure.
//!
//! The line alone is no secret: it occurs in code and in documentation. A block begins where a line break follows it.

/// The lines that begin a private key.
pub(super) const BEGIN_MARKERS: [&str; 8] = [
    "-----BEGIN PRIVATE KEY-----",
    "-----BEGIN ENCRYPTED PRIVATE KEY-----",
    "-----BEGIN RSA PRIVATE KEY-----",
    "-----BEGIN EC PRIVATE KEY-----",
    "-----BEGIN DSA PRIVATE KEY-----",
    "-----BEGIN OPENSSH PRIVATE KEY-----",
    "-----BEGIN PGP PRIVATE KEY BLOCK-----",
    "---- BEGIN SSH2 ENCRYPTED PRIVATE KEY ----",
];

/// A longer block is no key: an RSA key of 16,384 bits has 13 KB.
const MAX_BLOCK_BYTES: usize = 16 * 1024;

const END_MARKER: &[u8] = b"-----END ";
const DASHES: &[u8] = b"-----";

/// Where the text is in relation to a private key.
#[derive(Debug, Default)]
pub(super) enum KeyBlock {
    /// Outside.
    #[default]
    Outside,
    /// After the line that begins a key, which itself began here.
    Marker(usize),
    /// Inside a key.
    Inside(Body),
}

/// The part of a key that was seen.
#[derive(Debug)]
pub(super) struct Body {
    start: usize,
    /// The last bytes, as many as the end marker has.
    tail: Vec<u8>,
    /// Where the end marker ended.
    end_marker: Option<usize>,
}

impl KeyBlock {
    /// The line that begins a key ended before the next byte.
    pub(super) fn begin(&mut self, start: usize) {
        if matches!(self, Self::Outside) {
            *self = Self::Marker(start);
        }
    }

    /// Where the possible block began.
    pub(super) const fn start(&self) -> Option<usize> {
        match self {
            Self::Outside => None,
            Self::Marker(start) | Self::Inside(Body { start, .. }) => Some(*start),
        }
    }

    /// Takes the byte at this offset. Returns the range of a block that ended.
    pub(super) fn push(&mut self, byte: u8, at: usize) -> Option<std::ops::Range<usize>> {
        match self {
            Self::Outside => None,
            // A backslash begins an escaped line break, as in JSON.
            Self::Marker(start) => {
                let body = Body { start: *start, tail: Vec::new(), end_marker: None };
                *self = if matches!(byte, b'\r' | b'\n' | b'\\') { Self::Inside(body) } else { Self::Outside };
                None
            }
            Self::Inside(body) => {
                let start = body.start;
                let end = if !is_key_byte(byte) {
                    at
                } else if body.ends_with(byte, at) || at - start >= MAX_BLOCK_BYTES {
                    at + 1
                } else {
                    return None;
                };
                *self = Self::Outside;
                Some(start..end)
            }
        }
    }

    /// The range of a block that the end of the text ended.
    pub(super) fn finish(&mut self, at: usize) -> Option<std::ops::Range<usize>> {
        match std::mem::take(self) {
            Self::Inside(body) => Some(body.start..at),
            Self::Outside | Self::Marker(_) => None,
        }
    }
}

impl Body {
    /// Whether the block ends with this byte.
    fn ends_with(&mut self, byte: u8, at: usize) -> bool {
        if self.tail.len() == END_MARKER.len() {
            self.tail.remove(0);
        }
        self.tail.push(byte);
        match self.end_marker {
            None => {
                self.end_marker = (self.tail == END_MARKER).then_some(at);
                false
            }
            Some(marker) => at - marker > DASHES.len() && self.tail.ends_with(DASHES),
        }
    }
}

/// Base64, line breaks also as escapes, and the characters of a key's headers.
const fn is_key_byte(byte: u8) -> bool {
    byte.is_ascii_alphanumeric()
        || matches!(byte, b'+' | b'/' | b'=' | b'\r' | b'\n' | b'\\' | b'-' | b':' | b',' | b' ')
}
