//! The beginning of a TLS connection: the name of the server that the client asks for. Pure.
//!
//! Reads only what is in plain text and ends nothing: the bytes go on as they came. Of an encrypted `ClientHello` the outer
//! name counts.

use rustls::server::Acceptor;

use super::host::Host;

/// Maximum bytes until the `ClientHello` is complete. With keys of post-quantum groups it has 2 KiB.
const MAX_HELLO_BYTES: usize = 16 * 1024;

/// Reads a `ClientHello` piece by piece.
#[derive(Default)]
pub struct HelloReader {
    acceptor: Acceptor,
    received: Vec<u8>,
}

/// What has been read so far.
#[derive(Debug, PartialEq, Eq)]
pub enum Hello {
    /// More bytes are needed.
    Incomplete,
    /// A whole `ClientHello`, with the name that it asks for.
    Complete(Option<String>),
    /// The bytes are no `ClientHello`.
    Invalid,
}

impl HelloReader {
    /// Reads the next bytes of the connection. Not to be called after the end.
    pub fn read(&mut self, mut bytes: &[u8]) -> Hello {
        if self.received.len() + bytes.len() > MAX_HELLO_BYTES {
            return Hello::Invalid;
        }
        self.received.extend_from_slice(bytes);
        while !bytes.is_empty() {
            if self.acceptor.read_tls(&mut bytes).is_err() {
                return Hello::Invalid;
            }
            match self.acceptor.accept() {
                Ok(None) => {}
                Ok(Some(accepted)) => {
                    return Hello::Complete(accepted.client_hello().server_name().map(str::to_owned));
                }
                Err(_) => return Hello::Invalid,
            }
        }
        Hello::Incomplete
    }

    /// All bytes that were read.
    pub fn into_received(self) -> Vec<u8> {
        self.received
    }
}

/// Whether a client that asks for this name means this host. A client that connects to an address names none.
pub fn is_name_of(name: Option<&str>, host: &Host) -> bool {
    match (name, host) {
        (Some(name), Host::Name(host)) => name.eq_ignore_ascii_case(host),
        (None, Host::Address(_)) => true,
        (None, Host::Name(_)) | (Some(_), Host::Address(_)) => false,
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn with_length(bytes: &[u8]) -> Vec<u8> {
        let length = u16::try_from(bytes.len()).unwrap().to_be_bytes();
        [&length, bytes].concat()
    }

    fn extension(kind: u16, content: &[u8]) -> Vec<u8> {
        [kind.to_be_bytes().to_vec(), with_length(content)].concat()
    }

    fn sni(name: &str) -> Vec<u8> {
        extension(0, &with_length(&[vec![0], with_length(name.as_bytes())].concat()))
    }

    /// The extension of an encrypted `ClientHello`, as an outer one.
    fn encrypted(payload: &[u8]) -> Vec<u8> {
        extension(0xfe0d, &[vec![0, 0, 1, 0, 1, 5], with_length(&[8; 32]), with_length(payload)].concat())
    }

    /// A `ClientHello` with these extensions and the algorithms of signatures.
    fn hello(extensions: &[Vec<u8>]) -> Vec<u8> {
        let algorithms = extension(13, &with_length(&[4, 3]));
        let extensions = with_length(&[extensions.concat(), algorithms].concat());
        let body = [vec![3, 3], vec![7; 32], vec![0], with_length(&[0x13, 1]), vec![1, 0], extensions].concat();
        let length = u32::try_from(body.len()).unwrap().to_be_bytes();
        let handshake = [vec![1], length[1..].to_vec(), body].concat();
        [vec![22, 3, 1], with_length(&handshake)].concat()
    }

    #[rstest]
    #[case::name(&[sni("a.example")], Some("a.example"))]
    #[case::no_name(&[], None)]
    #[case::address_as_name(&[sni("192.0.2.1")], None)]
    // Browsers send one everywhere, with a payload of random bytes: the outer name counts.
    #[case::encrypted_hello(&[encrypted(&[9; 64]), sni("outer.example")], Some("outer.example"))]
    fn the_name_in_plain_text_is_read(#[case] extensions: &[Vec<u8>], #[case] expected: Option<&str>) {
        let bytes = hello(extensions);
        let mut whole = HelloReader::default();
        assert_eq!(whole.read(&bytes), Hello::Complete(expected.map(str::to_owned)));
        assert_eq!(whole.into_received(), bytes);
        let mut pieces = HelloReader::default();
        let (last, first) = bytes.split_last().unwrap();
        assert!(first.iter().all(|byte| pieces.read(&[*byte]) == Hello::Incomplete));
        assert_eq!(pieces.read(&[*last]), Hello::Complete(expected.map(str::to_owned)));
    }

    #[rstest]
    #[case::http(b"GET / HTTP/1.1\r\nHost: a.example\r\n\r\n".to_vec())]
    #[case::ssh(b"SSH-2.0-OpenSSH_9.2\r\n".to_vec())]
    #[case::two_names(hello(&[sni("a.example"), sni("b.example")]))]
    #[case::trailing_dot(hello(&[sni("a.example.")]))]
    #[case::nul(hello(&[sni("a.example\0")]))]
    #[case::endless([vec![22, 3, 1, 0x40, 0, 1, 0, 0xff, 0], vec![0; MAX_HELLO_BYTES]].concat())]
    fn other_beginnings_are_refused(#[case] bytes: Vec<u8>) {
        let mut reader = HelloReader::default();
        let found = reader.read(&bytes);
        let is_refused = match &found {
            Hello::Invalid => true,
            Hello::Complete(name) => !is_name_of(name.as_deref(), &Host::parse("a.example").unwrap()),
            Hello::Incomplete => false,
        };
        assert!(is_refused, "{found:?}");
    }

    #[rstest]
    #[case(Some("A.example"), "a.example", true)]
    #[case(Some("b.example"), "a.example", false)]
    #[case(Some("x.a.example"), "a.example", false)]
    #[case(None, "a.example", false)]
    #[case(None, "192.0.2.1", true)]
    #[case(Some("a.example"), "192.0.2.1", false)]
    fn a_name_is_that_of_its_host_only(#[case] name: Option<&str>, #[case] host: &str, #[case] expected: bool) {
        assert_eq!(is_name_of(name, &Host::parse(host).unwrap()), expected);
    }

    proptest! {
        #[test]
        fn any_bytes_are_read_to_an_end(bytes in proptest::collection::vec(any::<u8>(), 0..200)) {
            let _ = HelloReader::default().read(&[vec![22, 3, 1], bytes].concat());
        }
    }
}
