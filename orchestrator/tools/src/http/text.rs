//! The body of a response as text: its character encoding, as WHATWG's Encoding Standard names them. Pure.

use encoding_rs::{Encoding, UTF_8, UTF_16BE, UTF_16LE, WINDOWS_1252};

/// How far an XML declaration is searched for the encoding.
const MAX_DECLARATION_BYTES: usize = 256;

/// A body as text.
#[derive(Debug, PartialEq, Eq)]
pub(super) struct Text {
    pub(super) text: String,
    /// The encoding that some bytes do not have; they are U+FFFD in the text.
    pub(super) not_all_are: Option<&'static str>,
}

/// The body as text, `None` if it is binary. `is_cut`: its end is missing.
pub(super) fn decode(body: &[u8], content_type: &str, is_cut: bool) -> Option<Text> {
    let with_mark = Encoding::for_bom(body).map(|(encoding, _)| encoding);
    let declared = with_mark.or_else(|| charset(content_type)).or_else(|| xml_encoding(body));
    // Servers name this one by default, also for files which are UTF-8.
    let encoding = declared.filter(|encoding| *encoding != WINDOWS_1252 || !is_utf8(body, is_cut)).unwrap_or(UTF_8);
    if body.contains(&0) && encoding != UTF_16LE && encoding != UTF_16BE {
        return None;
    }
    let mut decoder = encoding.new_decoder_with_bom_removal();
    let mut text = String::with_capacity(decoder.max_utf8_buffer_length(body.len())?);
    // The last character of a body that is cut may be incomplete, and is left out.
    let (_, _, has_errors) = decoder.decode_to_string(body, &mut text, !is_cut);
    if has_errors && declared.is_none() && !content_type.starts_with("text/") {
        return None;
    }
    text.shrink_to_fit();
    Some(Text { text, not_all_are: has_errors.then(|| encoding.name()) })
}

/// The `charset` of a content type.
fn charset(content_type: &str) -> Option<&'static Encoding> {
    let parameters = content_type.split(';').skip(1).filter_map(|parameter| parameter.split_once('='));
    let mut charsets = parameters.filter(|(name, _)| name.trim().eq_ignore_ascii_case("charset"));
    Encoding::for_label(charsets.next()?.1.trim().trim_matches(['"', '\'']).as_bytes())
}

/// The encoding that an XML document declares. One whose declaration can be read is not UTF-16, whatever it names.
fn xml_encoding(body: &[u8]) -> Option<&'static Encoding> {
    let start = String::from_utf8_lossy(&body[..body.len().min(MAX_DECLARATION_BYTES)]);
    let (declaration, _) = start.strip_prefix("<?xml")?.split_once("?>")?;
    let value = declaration.split_once("encoding")?.1.trim_start().strip_prefix('=')?.trim_start();
    let label = value.strip_prefix(['"', '\''])?.split(['"', '\'']).next()?;
    Encoding::for_label(label.as_bytes()).map(Encoding::output_encoding)
}

/// Whether the bytes are UTF-8; of a body that is cut, up to its last character.
fn is_utf8(body: &[u8], is_cut: bool) -> bool {
    std::str::from_utf8(body).map_or_else(|error| is_cut && error.error_len().is_none(), |_| true)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("application/json", b"{\"a\": \"\xc3\xa9\"}", "{\"a\": \"é\"}")]
    #[case("", b"", "")]
    #[case("application/octet-stream", b"plain", "plain")]
    #[case("text/html; charset=ISO-8859-1", b"caf\xe9", "café")]
    #[case("text/plain; charset=windows-1252", b"\x93quoted\x94 \x96 \x805", "“quoted” – €5")]
    #[case("text/plain; charset=iso-8859-1", b"\x805", "€5")]
    #[case("text/plain; charset=us-ascii", b"\x805", "€5")]
    #[case("text/plain; charset=iso-8859-1", b"caf\xc3\xa9", "café")]
    #[case("text/html; charset=Shift_JIS", b"\x93\xfa\x96\x7b", "日本")]
    #[case("text/html; x=y; Charset=\"koi8-r\"", b"\xcd\xc9\xd2", "мир")]
    #[case("application/json; charset=gb2312", b"\xd6\xd0", "中")]
    #[case("text/csv", b"\xff\xfea\0\xe9\0", "aé")]
    #[case("text/csv; charset=utf-8", b"\xfe\xff\0a\0\xe9", "aé")]
    #[case("text/csv; charset=utf-16le", b"a\0\xe9\0", "aé")]
    #[case("text/csv", b"\xef\xbb\xbfa", "a")]
    #[case(
        "application/xml",
        b"<?xml version='1.0' encoding='iso-8859-15'?><a>\xa4</a>",
        "<?xml version='1.0' encoding='iso-8859-15'?><a>€</a>"
    )]
    #[case("text/xml", b"<?xml encoding = \"utf-16\"?>\xc3\xa9", "<?xml encoding = \"utf-16\"?>é")]
    fn a_body_has_the_encoding_that_is_declared(
        #[case] content_type: &str,
        #[case] body: &[u8],
        #[case] expected: &str,
    ) {
        let expected = Text { text: expected.to_owned(), not_all_are: None };
        assert_eq!(decode(body, content_type, false), Some(expected));
    }

    #[rstest]
    #[case("text/html", b"caf\xe9!", "caf\u{fffd}!", "UTF-8")]
    #[case("application/json; charset=utf-8", b"caf\xe9!", "caf\u{fffd}!", "UTF-8")]
    #[case("text/html; charset=euc-jp", b"a\xff", "a\u{fffd}", "EUC-JP")]
    fn other_bytes_are_replaced(
        #[case] content_type: &str,
        #[case] body: &[u8],
        #[case] text: &str,
        #[case] encoding: &'static str,
    ) {
        let expected = Text { text: text.to_owned(), not_all_are: Some(encoding) };
        assert_eq!(decode(body, content_type, false), Some(expected));
    }

    #[rstest]
    #[case("image/png", b"\x89PNG\r\n\x1a\n")]
    #[case("text/plain", b"a\0b")]
    #[case("application/octet-stream; charset=iso-8859-1", b"\xe9\0")]
    fn other_content_is_binary(#[case] content_type: &str, #[case] body: &[u8]) {
        assert_eq!(decode(body, content_type, false), None);
    }

    #[rstest]
    #[case("application/json", b"caf\xc3", "caf")]
    #[case("text/html; charset=shift_jis", b"\x93\xfa\x96", "日")]
    #[case("text/html; charset=iso-8859-1", b"caf\xc3", "caf")]
    fn a_cut_body_ends_with_a_whole_character(#[case] content_type: &str, #[case] body: &[u8], #[case] text: &str) {
        let expected = Text { text: text.to_owned(), not_all_are: None };
        assert_eq!(decode(body, content_type, true), Some(expected));
    }
}
