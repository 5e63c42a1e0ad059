//! The entries of egress lists: `host`, `host:port`, `*.suffix`, `*`. Pure.

use std::{fmt, str::FromStr};

use super::host::{Destination, Host, InvalidHost};

/// The port of an entry that names none.
const DEFAULT_PORT: u16 = 443;

/// An entry of an egress list.
#[derive(Debug, Clone, PartialEq, Eq, Hash)]
pub struct HostPattern {
    hosts: Hosts,
    port: u16,
}

#[derive(Debug, Clone, PartialEq, Eq, Hash)]
enum Hosts {
    /// `*`: every host.
    Any,
    /// `*.suffix`: every name below this one, at any depth, without the name itself.
    Below(String),
    One(Host),
}

/// Text that is no entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
pub enum InvalidPattern {
    #[error("the host {0}")]
    Host(#[from] InvalidHost),
    #[error("the port must be a number from 1 to 65535")]
    Port,
    /// `*.` is not followed by a name.
    #[error("*. must be followed by a name, such as *.example.org")]
    Suffix,
    /// A job cannot ask for every host.
    #[error("* is not allowed here; name the hosts")]
    Any,
    /// A preset of the ceiling.
    #[error("the preset, or one that it names, is not known; define it as a key of [egress.presets]")]
    UnknownPreset,
}

impl HostPattern {
    /// Parses an entry of a job's list, which cannot be `*`.
    pub fn of_job(entry: &str) -> Result<Self, InvalidPattern> {
        let pattern: Self = entry.parse()?;
        if pattern.hosts == Hosts::Any { Err(InvalidPattern::Any) } else { Ok(pattern) }
    }

    /// Whether the entry allows this destination by its name and port.
    pub fn matches(&self, destination: &Destination) -> bool {
        self.port == destination.port
            && match (&self.hosts, &destination.host) {
                (Hosts::Any, _) => true,
                (Hosts::Below(suffix), Host::Name(name)) => is_below(name, suffix),
                (Hosts::Below(_), Host::Address(_)) => false,
                (Hosts::One(host), other) => host == other,
            }
    }

    /// Whether every destination that `other` allows is allowed by this entry, too.
    pub fn contains(&self, other: &Self) -> bool {
        match (&self.hosts, &other.hosts) {
            _ if self.port != other.port => false,
            (Hosts::Any, _) => true,
            (_, Hosts::Any) | (Hosts::One(_), Hosts::Below(_)) => false,
            (Hosts::Below(suffix), Hosts::Below(name)) => name == suffix || is_below(name, suffix),
            (_, Hosts::One(host)) => self.matches(&Destination { host: host.clone(), port: other.port }),
        }
    }

    /// The host and port of an entry for one host.
    pub(super) const fn single(&self) -> Option<(&Host, u16)> {
        match &self.hosts {
            Hosts::One(host) => Some((host, self.port)),
            Hosts::Any | Hosts::Below(_) => None,
        }
    }

    /// Whether the entry names this very address and port.
    pub(super) fn names_address(&self, destination: &Destination) -> bool {
        matches!(self.hosts, Hosts::One(Host::Address(_))) && self.matches(destination)
    }
}

fn is_below(name: &str, suffix: &str) -> bool {
    name.strip_suffix(suffix).is_some_and(|rest| rest.len() > 1 && rest.ends_with('.'))
}

/// The entry that allows this destination only.
impl From<Destination> for HostPattern {
    fn from(Destination { host, port }: Destination) -> Self {
        Self { hosts: Hosts::One(host), port }
    }
}

impl FromStr for HostPattern {
    type Err = InvalidPattern;

    fn from_str(entry: &str) -> Result<Self, InvalidPattern> {
        let (host, port) = match entry.rsplit_once(':') {
            // The colons of an IPv6 address are inside its brackets.
            Some((host, port)) if !port.ends_with(']') => (host, parse_port(port)?),
            _ => (entry, DEFAULT_PORT),
        };
        let hosts = match host.strip_prefix('*') {
            Some("") => Hosts::Any,
            Some(rest) => match rest.strip_prefix('.').map(Host::parse) {
                Some(Ok(Host::Name(suffix))) => Hosts::Below(suffix),
                _ => return Err(InvalidPattern::Suffix),
            },
            None => Hosts::One(Host::parse(host)?),
        };
        Ok(Self { hosts, port })
    }
}

/// Parses a port without signs and leading zeros.
fn parse_port(text: &str) -> Result<u16, InvalidPattern> {
    let port = text.parse().ok().filter(|port: &u16| *port > 0 && port.to_string() == text);
    port.ok_or(InvalidPattern::Port)
}

impl fmt::Display for HostPattern {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.hosts {
            Hosts::Any => write!(f, "*:{}", self.port),
            Hosts::Below(suffix) => write!(f, "*.{suffix}:{}", self.port),
            Hosts::One(host) => write!(f, "{host}:{}", self.port),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    fn destination(text: &str) -> Destination {
        let (host, port) = text.rsplit_once(':').unwrap();
        Destination { host: Host::parse(host).unwrap(), port: port.parse().unwrap() }
    }

    #[rstest]
    #[case("api.example.org", "api.example.org:443", true)]
    #[case("API.example.org", "api.example.org:443", true)]
    #[case("api.example.org", "api.example.org:80", false)]
    #[case("api.example.org:80", "api.example.org:80", true)]
    #[case("api.example.org", "example.org:443", false)]
    #[case("example.org", "api.example.org:443", false)]
    #[case("*.example.org", "api.example.org:443", true)]
    #[case("*.example.org", "a.b.example.org:443", true)]
    #[case("*.example.org", "example.org:443", false)]
    #[case("*.example.org", "evilexample.org:443", false)]
    #[case("*.example.org", "example.org.evil.net:443", false)]
    #[case("*.example.org:8443", "api.example.org:8443", true)]
    #[case("*.example.org", "192.0.2.1:443", false)]
    #[case("*", "anything.example:443", true)]
    #[case("*", "anything.example:80", false)]
    #[case("*:80", "192.0.2.1:80", true)]
    #[case("192.0.2.1", "192.0.2.1:443", true)]
    #[case("192.0.2.1", "192.0.2.2:443", false)]
    #[case("[2001:db8::1]", "[2001:db8:0::1]:443", true)]
    #[case("[2001:db8::1]:80", "[2001:db8::1]:80", true)]
    fn entries_match_destinations(#[case] entry: &str, #[case] to: &str, #[case] matches: bool) {
        assert_eq!(entry.parse::<HostPattern>().unwrap().matches(&destination(to)), matches);
    }

    #[rstest]
    #[case("", "the host must name a host")]
    #[case("a:0", "the port must")]
    #[case("a:065", "the port must")]
    #[case("a:+80", "the port must")]
    #[case("a:65536", "the port must")]
    #[case("a:", "the port must")]
    #[case("https://a", "the port must")]
    #[case("a/b", "the host must be a host name")]
    #[case("*.", "*. must be followed by a name")]
    #[case("*.10.0.0.1", "*. must be followed by a name")]
    #[case("*a.example", "*. must be followed by a name")]
    #[case("a.*.example", "the host must be a host name")]
    #[case("::1", "the host must")]
    #[case("*:*", "the port must")]
    fn other_text_is_refused(#[case] entry: &str, #[case] expected: &str) {
        let error = entry.parse::<HostPattern>().unwrap_err().to_string();
        assert!(error.starts_with(expected), "{error}");
    }

    #[test]
    fn a_job_names_its_hosts() {
        assert_eq!(HostPattern::of_job("*:80"), Err(InvalidPattern::Any));
        assert!(HostPattern::of_job("*.example.org").is_ok());
    }

    #[rstest]
    #[case("*", "*.a.example", true)]
    #[case("*", "a.example:80", false)]
    #[case("*.example.org", "*.example.org", true)]
    #[case("*.example.org", "*.api.example.org", true)]
    #[case("*.api.example.org", "*.example.org", false)]
    #[case("*.example.org", "example.org", false)]
    #[case("example.org", "example.org:443", true)]
    #[case("api.example.org", "*.example.org", false)]
    #[case("*.example.org", "*", false)]
    fn entries_contain_entries(#[case] outer: &str, #[case] inner: &str, #[case] contains: bool) {
        assert_eq!(outer.parse::<HostPattern>().unwrap().contains(&inner.parse().unwrap()), contains);
    }

    fn entry() -> impl Strategy<Value = HostPattern> {
        "(\\*|(\\*\\.)?[ab](\\.[ab]){0,3}|10\\.0\\.0\\.[12])(:(80|443))?".prop_map(|text| text.parse().unwrap())
    }

    proptest! {
        #[test]
        fn a_contained_entry_matches_no_more_than_its_container(
            outer in entry(),
            inner in entry(),
            host in "[ab](\\.[ab]){0,4}|10\\.0\\.0\\.[12]",
            port in prop::sample::select(vec![80_u16, 443]),
        ) {
            let to = Destination { host: Host::parse(&host).unwrap(), port };
            prop_assert!(!outer.contains(&inner) || !inner.matches(&to) || outer.matches(&to));
            prop_assert!(outer.contains(&outer));
        }

        #[test]
        fn the_form_of_an_entry_is_the_entry(entry in entry()) {
            prop_assert_eq!(entry.to_string().parse::<HostPattern>(), Ok(entry));
        }
    }
}
