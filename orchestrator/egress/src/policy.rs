//! The decisions about a destination: first by its name, then by the address that it resolved to. Pure.
//!
//! Never resolves and never dials: the caller dials exactly the addresses that passed.

use std::net::SocketAddr;

use super::{
    address::{AddressKind, classify, translated},
    host::Destination,
    pattern::{HostPattern, InvalidPattern},
    presets::Presets,
};

/// The operator's ceiling, and what belongs to the orchestrator.
#[derive(Debug, Clone, Default)]
pub struct EgressPolicy {
    ceiling: Vec<HostPattern>,
    presets: Presets,
    /// The orchestrator's listeners and its engine.
    own: Vec<SocketAddr>,
}

/// The policy for one caller: the ceiling, narrowed by the job's list if the caller is a job.
#[derive(Debug, Clone)]
pub struct EgressRules<'p> {
    policy: &'p EgressPolicy,
    job: Option<Vec<HostPattern>>,
}

/// What may be spoken on a connection of the egress proxy.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Protocol {
    /// Requests that are read one by one.
    Http,
    /// Bytes that begin with a TLS `ClientHello` for the host.
    Tls,
}

impl Protocol {
    /// The protocol of a port: HTTP on port 80, TLS elsewhere.
    pub const fn of_port(port: u16) -> Self {
        if port == 80 { Self::Http } else { Self::Tls }
    }
}

/// A decision about a connection, and what it carried.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct EgressRecord {
    pub destination: Destination,
    pub allowed: bool,
    /// The entry that allows it, or what refuses it.
    pub rule: String,
    /// Bytes of the body that was sent.
    pub bytes_up: u64,
    /// Bytes of the body that was read.
    pub bytes_down: u64,
}

/// A destination that is refused. The text says who can allow it.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
pub enum EgressDenied {
    /// The job does not list it.
    #[error("{0} is not in the job's egress.allow")]
    NotListed(Destination),
    /// The operator does not allow it.
    #[error("{0} is not allowed by the operator (egress_ceiling)")]
    AboveCeiling(Destination),
    /// Its address is not public.
    #[error("{destination} has the address {}, which is {kind} and not allowed", address.ip())]
    Address {
        destination: Destination,
        /// The address that it resolved to.
        address: SocketAddr,
        kind: &'static str,
    },
}

impl EgressDenied {
    /// The decision as a record.
    pub(super) fn record(&self) -> EgressRecord {
        let destination = match self {
            Self::NotListed(destination) | Self::AboveCeiling(destination) | Self::Address { destination, .. } => {
                destination.clone()
            }
        };
        EgressRecord { destination, allowed: false, rule: self.rule().to_owned(), bytes_up: 0, bytes_down: 0 }
    }

    /// What refuses it.
    pub const fn rule(&self) -> &'static str {
        match self {
            Self::NotListed(_) => "egress.allow",
            Self::AboveCeiling(_) => "egress_ceiling",
            Self::Address { kind, .. } => kind,
        }
    }
}

impl EgressPolicy {
    /// Parses the operator's ceiling, with the built-in presets. An error names the entry by its index.
    pub fn new(ceiling: &[String], own: Vec<SocketAddr>) -> Result<Self, (usize, InvalidPattern)> {
        Self::with_presets(ceiling, own, Presets::default())
    }

    /// As [`Self::new`], with the presets of the installation.
    pub fn with_presets(
        ceiling: &[String],
        own: Vec<SocketAddr>,
        presets: Presets,
    ) -> Result<Self, (usize, InvalidPattern)> {
        let mut patterns = Vec::new();
        for (index, entry) in ceiling.iter().enumerate() {
            let hosts = presets.expand(entry).map_err(|_| (index, InvalidPattern::UnknownPreset))?;
            for host in hosts {
                patterns.push(host.parse().map_err(|error| (index, error))?);
            }
        }
        Ok(Self { ceiling: patterns, presets, own })
    }

    /// The presets of the installation.
    pub const fn presets(&self) -> &Presets {
        &self.presets
    }

    /// The policy whose ceiling has these destinations, too.
    pub(super) fn allowing(&self, destinations: impl IntoIterator<Item = Destination>) -> Self {
        let ceiling = self.ceiling.iter().cloned().chain(destinations.into_iter().map(HostPattern::from));
        Self { ceiling: ceiling.collect(), presets: self.presets.clone(), own: self.own.clone() }
    }

    /// Whether no destination is allowed to anyone.
    pub const fn is_empty(&self) -> bool {
        self.ceiling.is_empty()
    }

    /// Whether the ceiling allows everything that this entry of a job's list allows.
    pub fn contains(&self, entry: &HostPattern) -> bool {
        self.ceiling.iter().any(|allowed| allowed.contains(entry))
    }

    /// The rules for a caller that is no job: the ceiling.
    pub const fn rules(&self) -> EgressRules<'_> {
        EgressRules { policy: self, job: None }
    }

    /// The rules for a job with this list. An entry that is invalid allows nothing.
    pub fn rules_of_job(&self, list: &[String]) -> EgressRules<'_> {
        let entries = list.iter().filter_map(|entry| HostPattern::of_job(entry).ok());
        EgressRules { policy: self, job: Some(entries.collect()) }
    }
}

impl EgressRules<'_> {
    /// The entry that allows a destination: the job's, if the caller is a job.
    pub fn rule_of(&self, to: &Destination) -> Option<String> {
        let list = self.job.as_ref().unwrap_or(&self.policy.ceiling);
        list.iter().find(|entry| entry.matches(to)).map(ToString::to_string)
    }

    /// Decides by name and port.
    pub fn check_destination(&self, to: &Destination) -> Result<(), EgressDenied> {
        let matches = |list: &[HostPattern]| list.iter().any(|entry| entry.matches(to));
        if self.job.as_ref().is_some_and(|list| !matches(list)) {
            return Err(EgressDenied::NotListed(to.clone()));
        }
        if !matches(&self.policy.ceiling) {
            return Err(EgressDenied::AboveCeiling(to.clone()));
        }
        Ok(())
    }

    /// Decides about an address that an allowed destination resolved to. `is_own_host`: the address belongs to the host
    /// that the orchestrator runs on.
    pub(crate) fn check_address(
        &self,
        to: &Destination,
        address: SocketAddr,
        is_own_host: bool,
    ) -> Result<(), EgressDenied> {
        let denied = |kind| Err(EgressDenied::Address { destination: to.clone(), address, kind });
        if self.policy.is_own(SocketAddr::new(translated(address.ip()), address.port()), is_own_host) {
            return denied("the orchestrator's or its engine's");
        }
        let kind = match classify(address.ip()) {
            AddressKind::Forbidden(kind) => return denied(kind),
            AddressKind::Local(kind) => kind,
            AddressKind::Public if is_own_host => "the orchestrator's host's",
            AddressKind::Public => return Ok(()),
        };
        let as_destination = Destination::from(address);
        let is_named = self.policy.ceiling.iter().any(|entry| entry.names_address(&as_destination));
        if is_named { Ok(()) } else { denied(kind) }
    }
}

impl EgressPolicy {
    fn is_own(&self, address: SocketAddr, is_own_host: bool) -> bool {
        self.own.iter().any(|own| {
            let is_here = is_own_host || address.ip().is_loopback();
            own.port() == address.port() && (own.ip() == address.ip() || (own.ip().is_unspecified() && is_here))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::net::IpAddr;

    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;
    use crate::Host;

    fn policy(ceiling: &[&str]) -> EgressPolicy {
        let ceiling: Vec<String> = ceiling.iter().map(|entry| (*entry).to_owned()).collect();
        let own = vec!["0.0.0.0:8080".parse().unwrap(), "127.0.0.1:9090".parse().unwrap()];
        EgressPolicy::new(&ceiling, own).unwrap()
    }

    fn to(text: &str) -> Destination {
        let (host, port) = text.rsplit_once(':').unwrap();
        Destination { host: Host::parse(host).unwrap(), port: port.parse().unwrap() }
    }

    #[rstest]
    #[case(&["a.example"], None, "a.example:443", "ok")]
    #[case(&[], None, "a.example:443", "not allowed by the operator")]
    #[case(&["*"], None, "a.example:443", "ok")]
    #[case(&["*"], Some(vec![]), "a.example:443", "not in the job's")]
    #[case(&["*"], Some(vec!["a.example"]), "a.example:443", "ok")]
    #[case(&["*"], Some(vec!["*"]), "a.example:443", "not in the job's")]
    #[case(&["*"], Some(vec!["no host at all", "a.example"]), "a.example:443", "ok")]
    #[case(&["b.example"], Some(vec!["a.example"]), "a.example:443", "not allowed by the operator")]
    #[case(&["*.example"], Some(vec!["a.example"]), "b.example:443", "not in the job's")]
    #[case(&["*.example"], Some(vec!["a.example:80"]), "a.example:80", "not allowed by the operator")]
    fn a_destination_must_be_in_both_lists(
        #[case] ceiling: &[&str],
        #[case] job: Option<Vec<&str>>,
        #[case] destination: &str,
        #[case] expected: &str,
    ) {
        let policy = policy(ceiling);
        let list = job.map(|list| list.into_iter().map(str::to_owned).collect::<Vec<_>>());
        let rules = list.map_or_else(|| policy.rules(), |list| policy.rules_of_job(&list));
        let decision =
            rules.check_destination(&to(destination)).map_or_else(|error| error.to_string(), |()| "ok".into());
        assert!(decision.contains(expected), "{decision}");
    }

    #[rstest]
    #[case("1.1.1.1:443", false, true)]
    // The host's own public address.
    #[case("1.1.1.1:443", true, false)]
    #[case("1.0.0.1:443", true, true)]
    #[case("10.0.0.1:443", false, false)]
    // The operator names it.
    #[case("10.0.0.2:443", false, true)]
    #[case("10.0.0.2:80", false, false)]
    #[case("127.0.0.1:7000", true, true)]
    #[case("127.0.0.1:7001", true, false)]
    #[case("[::1]:7000", true, true)]
    // The orchestrator's listeners, although the operator names them.
    #[case("127.0.0.1:8080", true, false)]
    #[case("127.0.0.1:9090", true, false)]
    #[case("10.0.0.2:8080", true, false)]
    #[case("1.0.0.1:8080", true, false)]
    // Another host's port of the same number.
    #[case("10.0.0.3:8080", false, true)]
    // Never, although the operator names them.
    #[case("169.254.169.254:80", false, false)]
    #[case("[::ffff:10.0.0.2]:443", false, false)]
    // NAT64: what is behind it is judged, and that of another network is never named.
    #[case("[64:ff9b::1.1.1.1]:443", false, true)]
    #[case("[64:ff9b::1.1.1.1]:443", true, false)]
    #[case("[64:ff9b::10.0.0.2]:443", false, false)]
    #[case("[64:ff9b::1.0.0.1]:8080", true, false)]
    fn an_address_is_decided_by_what_it_is(#[case] address: &str, #[case] is_own_host: bool, #[case] allowed: bool) {
        let policy = policy(&[
            "*",
            "10.0.0.2",
            "127.0.0.1:7000",
            "[::1]:7000",
            "127.0.0.1:8080",
            "127.0.0.1:9090",
            "10.0.0.2:8080",
            "1.0.0.1",
            "1.0.0.1:8080",
            "10.0.0.3:8080",
            "169.254.169.254:80",
            "[::ffff:10.0.0.2]",
            "[64:ff9b::10.0.0.2]",
            "[64:ff9b::1.0.0.1]:8080",
        ]);
        let decision = policy.rules().check_address(&to("a.example:443"), address.parse().unwrap(), is_own_host);
        assert_eq!(decision.is_ok(), allowed, "{decision:?}");
    }

    #[test]
    fn a_job_cannot_list_more_than_the_ceiling() {
        let policy = policy(&["*.example.org", "a.example:80"]);
        for (entry, contained) in
            [("*.example.org", true), ("a.example:80", true), ("a.example", false), ("*.org", false)]
        {
            assert_eq!(policy.contains(&entry.parse().unwrap()), contained, "{entry}");
        }
    }

    #[test]
    fn an_invalid_ceiling_is_an_error() {
        let error = EgressPolicy::new(&["a.example".to_owned(), "http://b".to_owned()], vec![]).unwrap_err();
        assert_eq!(error, (1, InvalidPattern::Port));
    }

    proptest! {
        #[test]
        fn only_public_addresses_pass_a_ceiling_of_names(ip in any::<IpAddr>(), port in any::<u16>(), own in any::<bool>()) {
            let policy = policy(&["*", "*:80", "*.example"]);
            let address = SocketAddr::new(ip, port);
            let decision = policy.rules().check_address(&to("a.example:443"), address, own);
            prop_assert_eq!(decision.is_ok(), !own && classify(ip) == AddressKind::Public);
        }
    }
}
