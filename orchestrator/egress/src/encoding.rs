//! Compressed bodies: which encodings are accepted, and how a body is decoded. Pure.
//!
//! A body is decoded after it was read, so that at most twice its limit is in memory.

use std::io::Read;

use brotli_decompressor::Decompressor;
use flate2::read::{DeflateDecoder, MultiGzDecoder, ZlibDecoder};

use super::client::BodyEnd;

/// The encodings that can be decoded, as `Accept-Encoding` has them.
pub(super) const ACCEPTED: &str = "gzip, deflate, br";

/// Size of the buffer between a body and its decoder.
const BUFFER_BYTES: usize = 8 * 1024;

/// Decodes a body, at most this many bytes of it. It is returned as it is if it does not have the encoding, or if the
/// encoding is unknown.
pub(super) fn decode(
    encoding: &str,
    body: Vec<u8>,
    end: BodyEnd,
    max_bytes: usize,
) -> Result<(Vec<u8>, BodyEnd), Vec<u8>> {
    let encoding = encoding.trim().to_ascii_lowercase();
    if body.is_empty() || matches!(encoding.as_str(), "" | "identity") {
        return Ok((body, end));
    }
    let decoder: Box<dyn Read + '_> = match encoding.as_str() {
        "gzip" | "x-gzip" => Box::new(MultiGzDecoder::new(body.as_slice())),
        // RFC 9110, 8.4.1.2: some servers leave out the zlib format.
        "deflate" if is_zlib(&body) => Box::new(ZlibDecoder::new(body.as_slice())),
        "deflate" => Box::new(DeflateDecoder::new(body.as_slice())),
        "br" if !has_large_window(&body) => Box::new(Decompressor::new(body.as_slice(), BUFFER_BYTES)),
        _ => return Err(body),
    };
    let mut output = Vec::new();
    let result = decoder.take(max_bytes as u64 + 1).read_to_end(&mut output);
    if output.len() > max_bytes {
        output.truncate(max_bytes);
        return Ok((output, BodyEnd::TooLarge));
    }
    match (result, end) {
        (Err(_), _) if output.is_empty() => Err(body),
        (Err(_), BodyEnd::Complete) => Ok((output, BodyEnd::BrokenOff)),
        (_, end) => Ok((output, end)),
    }
}

/// RFC 1950, 2.2: the method is deflate, and the first two bytes are a multiple of 31.
fn is_zlib(body: &[u8]) -> bool {
    matches!(body, [first, second, ..] if first & 0x0f == 8 && u16::from_be_bytes([*first, *second]) % 31 == 0)
}

/// RFC 7932, 9.1: not a valid first byte. An extension of brotli begins with it a window of up to 1 GB, which the decoder
/// would allocate.
fn has_large_window(body: &[u8]) -> bool {
    body.first().is_some_and(|first| first & 0x7f == 0x11)
}

#[cfg(test)]
pub(super) mod tests {
    use std::io::Write as _;

    use flate2::{
        Compression,
        write::{DeflateEncoder, GzEncoder, ZlibEncoder},
    };
    use rstest::rstest;

    use super::*;

    const TEXT: &[u8] = b"hello hello hello hello";
    /// The text in brotli.
    const BROTLI: &[u8] = b"\x1b\x16\x00\xf8\x8d\x94\x6e\xde\x44\x55\x86\x96\x6c\x20\x6f\x21\x4f\x1c\xe0\x38";

    pub(crate) fn encoded(format: &str, text: &[u8]) -> Vec<u8> {
        let level = Compression::default();
        match format {
            "gzip" => {
                let mut encoder = GzEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "zlib" => {
                let mut encoder = ZlibEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            "raw" => {
                let mut encoder = DeflateEncoder::new(Vec::new(), level);
                encoder.write_all(text).unwrap();
                encoder.finish().unwrap()
            }
            _ => BROTLI.to_vec(),
        }
    }

    #[rstest]
    #[case("gzip", "gzip")]
    #[case("X-Gzip", "gzip")]
    #[case("deflate", "zlib")]
    #[case("deflate", "raw")]
    #[case("br", "br")]
    fn a_body_is_decoded(#[case] encoding: &str, #[case] format: &str) {
        let body = encoded(format, TEXT);
        assert_eq!(decode(encoding, body, BodyEnd::Complete, 1_000), Ok((TEXT.to_vec(), BodyEnd::Complete)));
    }

    #[test]
    fn the_limit_is_of_the_decoded_body() {
        let body = encoded("gzip", &vec![b'x'; 50_000_000]);
        assert!(body.len() < 100_000);
        let (output, end) = decode("gzip", body, BodyEnd::Complete, 1_000).unwrap();
        assert_eq!((output.len(), end), (1_000, BodyEnd::TooLarge));
        let exact = decode("br", encoded("br", TEXT), BodyEnd::Complete, TEXT.len());
        assert_eq!(exact, Ok((TEXT.to_vec(), BodyEnd::Complete)));
    }

    #[test]
    fn a_body_without_its_end_is_what_can_be_decoded() {
        let text: Vec<u8> = (0..100_000_u32).flat_map(|n| n.wrapping_mul(2_654_435_761).to_be_bytes()).collect();
        let body = encoded("gzip", &text)[..200_000].to_vec();
        for (end, expected) in [(BodyEnd::Complete, BodyEnd::BrokenOff), (BodyEnd::TooLarge, BodyEnd::TooLarge)] {
            let (output, end) = decode("gzip", body.clone(), end, 1_000_000).unwrap();
            assert!(output.len() > 100_000 && text.starts_with(&output), "{}", output.len());
            assert_eq!(end, expected);
        }
    }

    #[rstest]
    #[case("zstd")]
    #[case("gzip")]
    #[case("deflate")]
    #[case("br")]
    #[case("gzip, br")]
    fn another_body_is_left_as_it_is(#[case] encoding: &str) {
        let body = b"\xff\xfe\xfd plain text".to_vec();
        assert_eq!(decode(encoding, body.clone(), BodyEnd::Complete, 1_000), Err(body));
    }

    /// 0x11 and the window's size in bits.
    #[test]
    fn a_large_window_is_not_allocated() {
        let body = b"\x11\x1e\x00\x00\x00".to_vec();
        assert_eq!(decode("br", body.clone(), BodyEnd::Complete, 100), Err(body));
    }

    #[rstest]
    #[case("identity")]
    #[case("")]
    fn a_body_may_have_no_encoding(#[case] encoding: &str) {
        assert_eq!(decode(encoding, TEXT.to_vec(), BodyEnd::Complete, 10), Ok((TEXT.to_vec(), BodyEnd::Complete)));
        assert_eq!(decode("gzip", vec![], BodyEnd::Complete, 10), Ok((vec![], BodyEnd::Complete)));
    }
}
