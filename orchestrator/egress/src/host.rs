//! The one grammar of hosts. Pure.
//!
//! A host is a DNS name in lower case, or an IP address in its canonical form. Everything that some parser could read
//! as something else is refused: other spellings of IPv4 addresses, trailing dots, user information, escapes, control
//! characters, letters beyond ASCII.

use std::{
    fmt,
    net::{IpAddr, Ipv4Addr, Ipv6Addr, SocketAddr},
};

/// RFC 1035.
const MAX_NAME_BYTES: usize = 253;
const MAX_LABEL_BYTES: usize = 63;

/// A host of a URL or of an entry in a list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub enum Host {
    Name(String),
    Address(IpAddr),
}

/// A host and port to connect to.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct Destination {
    pub host: Host,
    pub port: u16,
}

/// Text that is no host.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct InvalidHost(pub(super) &'static str);

impl Host {
    /// Parses a host as it is written in a URL: IPv6 addresses are in brackets.
    pub fn parse(text: &str) -> Result<Self, InvalidHost> {
        if let Some(rest) = text.strip_prefix('[') {
            let address = rest.strip_suffix(']').and_then(|address| address.parse::<Ipv6Addr>().ok());
            return address
                .map(Self::from)
                .ok_or(InvalidHost("must be an IPv6 address in brackets, such as [2001:db8::1]"));
        }
        if let Ok(address) = text.parse::<Ipv4Addr>() {
            return Ok(Self::from(address));
        }
        check_name(text)?;
        Ok(Self::Name(text.to_ascii_lowercase()))
    }
}

fn check_name(name: &str) -> Result<(), InvalidHost> {
    if name.is_empty() {
        return Err(InvalidHost("must name a host"));
    }
    if !name.is_ascii() {
        return Err(InvalidHost("must be ASCII; write an international name in its xn-- form"));
    }
    if name.len() > MAX_NAME_BYTES {
        return Err(InvalidHost("must be at most 253 characters"));
    }
    let is_label = |label: &str| {
        let allowed = |byte: u8| byte.is_ascii_alphanumeric() || byte == b'-' || byte == b'_';
        (1..=MAX_LABEL_BYTES).contains(&label.len())
            && label.bytes().all(allowed)
            && !label.starts_with('-')
            && !label.ends_with('-')
    };
    if !name.split('.').all(is_label) {
        return Err(InvalidHost("must be a host name such as api.example.org, or an IP address"));
    }
    // The last label of a name is never a number; `127.1`, `0x7f.1` and `2130706433` are addresses to some parsers.
    let last = name.rsplit('.').next().unwrap_or_default().to_ascii_lowercase();
    let is_hex = last.strip_prefix("0x").is_some_and(|digits| digits.bytes().all(|byte| byte.is_ascii_hexdigit()));
    if is_hex || last.bytes().all(|byte| byte.is_ascii_digit()) {
        return Err(InvalidHost("must be an IPv4 address as four decimal numbers, such as 192.0.2.1"));
    }
    Ok(())
}

impl From<Ipv4Addr> for Host {
    fn from(address: Ipv4Addr) -> Self {
        Self::Address(IpAddr::V4(address))
    }
}

impl From<Ipv6Addr> for Host {
    fn from(address: Ipv6Addr) -> Self {
        Self::Address(IpAddr::V6(address))
    }
}

impl fmt::Display for Host {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Name(name) => f.write_str(name),
            Self::Address(IpAddr::V4(address)) => write!(f, "{address}"),
            Self::Address(IpAddr::V6(address)) => write!(f, "[{address}]"),
        }
    }
}

impl fmt::Display for Destination {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}:{}", self.host, self.port)
    }
}

impl From<SocketAddr> for Destination {
    fn from(address: SocketAddr) -> Self {
        Self { host: Host::Address(address.ip()), port: address.port() }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("example.org", "example.org")]
    #[case("API.Example.ORG", "api.example.org")]
    #[case("localhost", "localhost")]
    #[case("xn--bcher-kva.example", "xn--bcher-kva.example")]
    #[case("_dmarc.a-b.c1", "_dmarc.a-b.c1")]
    #[case("192.0.2.1", "192.0.2.1")]
    #[case("[2001:DB8:0::1]", "[2001:db8::1]")]
    #[case("[::ffff:127.0.0.1]", "[::ffff:127.0.0.1]")]
    fn hosts_have_one_form(#[case] text: &str, #[case] shown: &str) {
        assert_eq!(Host::parse(text).unwrap().to_string(), shown);
    }

    #[rstest]
    #[case("")]
    #[case(".")]
    #[case("example.org.")]
    #[case("a..b")]
    #[case("-a.b")]
    #[case("a-.b")]
    #[case("user@host")]
    #[case("host:443")]
    #[case("a b")]
    #[case("a\0b")]
    #[case("a\r\nb")]
    #[case("a%2eb")]
    #[case("a/b")]
    #[case("a\\b")]
    #[case("bücher.example")]
    #[case("example。org")]
    #[case("127.1")]
    #[case("2130706433")]
    #[case("0x7f000001")]
    #[case("0x7f.0.0.1")]
    #[case("a.0x")]
    #[case("0177.0.0.1")]
    #[case("127.0.0.1.")]
    #[case("127.0.0.01")]
    #[case("256.0.0.1")]
    #[case("1.2.3.4.5")]
    #[case("::1")]
    #[case("[::1")]
    #[case("[::1%eth0]")]
    #[case("[127.0.0.1]")]
    #[case("*.example.org")]
    fn ambiguous_hosts_are_refused(#[case] text: &str) {
        assert!(Host::parse(text).is_err(), "{text:?}");
    }

    #[test]
    fn names_have_limits() {
        assert!(Host::parse(&"a".repeat(63)).is_ok());
        assert!(Host::parse(&"a".repeat(64)).is_err());
        assert!(Host::parse(&["a"; 127].join(".")).is_ok());
        assert!(Host::parse(&["a"; 128].join(".")).is_err());
    }

    proptest! {
        #[test]
        fn the_form_of_a_host_is_a_host(text in "[a-zA-Z0-9._:\\[\\]%@-]{0,20}") {
            if let Ok(host) = Host::parse(&text) {
                prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
            }
        }

        #[test]
        fn addresses_are_addresses(address in any::<IpAddr>()) {
            let host = Host::Address(address);
            prop_assert_eq!(Host::parse(&host.to_string()), Ok(host));
        }
    }
}
