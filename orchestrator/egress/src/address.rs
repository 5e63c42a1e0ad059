//! What an address is to the host that dials it. Pure.

use std::net::{IpAddr, Ipv4Addr, Ipv6Addr};

use ipnet::{Ipv4Net, Ipv6Net};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum AddressKind {
    /// Reachable over the Internet.
    Public,
    /// Of this host or its network: allowed where the operator names the very address.
    Local(&'static str),
    /// Never allowed.
    Forbidden(&'static str),
}

const fn v4(a: u8, b: u8, c: u8, d: u8, prefix: u8) -> Ipv4Net {
    Ipv4Net::new_assert(Ipv4Addr::new(a, b, c, d), prefix)
}

const fn v6(first: [u16; 3], prefix: u8) -> Ipv6Net {
    Ipv6Net::new_assert(Ipv6Addr::new(first[0], first[1], first[2], 0, 0, 0, 0, 0), prefix)
}

/// Sources: the IANA registry of special-purpose IPv4 addresses. Networks that are not listed are public.
const IPV4: [(Ipv4Net, AddressKind); 18] = [
    (v4(0, 0, 0, 0, 8), AddressKind::Forbidden("an unspecified address")),
    (v4(10, 0, 0, 0, 8), AddressKind::Local("a private address")),
    (v4(100, 64, 0, 0, 10), AddressKind::Forbidden("a shared address of a provider's network")),
    (v4(127, 0, 0, 0, 8), AddressKind::Local("a loopback address")),
    // Azure's metadata service has a public address.
    (v4(168, 63, 129, 16, 32), AddressKind::Forbidden("the address of a metadata service")),
    // The metadata service of most clouds among them.
    (v4(169, 254, 0, 0, 16), AddressKind::Forbidden("a link-local address")),
    (v4(172, 16, 0, 0, 12), AddressKind::Local("a private address")),
    (v4(192, 0, 0, 0, 24), AddressKind::Forbidden("a reserved address")),
    (v4(192, 0, 2, 0, 24), DOCUMENTATION),
    (v4(192, 31, 196, 0, 24), AddressKind::Forbidden("a reserved address")),
    (v4(192, 52, 193, 0, 24), AddressKind::Forbidden("a reserved address")),
    (v4(192, 88, 99, 0, 24), AddressKind::Forbidden("an address that is translated to IPv6")),
    (v4(192, 168, 0, 0, 16), AddressKind::Local("a private address")),
    (v4(192, 175, 48, 0, 24), AddressKind::Forbidden("a reserved address")),
    (v4(198, 18, 0, 0, 15), AddressKind::Local("an address for benchmarks")),
    (v4(198, 51, 100, 0, 24), DOCUMENTATION),
    (v4(203, 0, 113, 0, 24), DOCUMENTATION),
    // Multicast, reserved, broadcast.
    (v4(224, 0, 0, 0, 3), AddressKind::Forbidden("a multicast or reserved address")),
];

/// Sources: the IANA registry of special-purpose IPv6 addresses. The first network that contains an address decides;
/// what is outside `2000::/3` and not listed is not public.
const IPV6: [(Ipv6Net, AddressKind); 12] = [
    (Ipv6Net::new_assert(Ipv6Addr::LOCALHOST, 128), AddressKind::Local("a loopback address")),
    // IPv4 addresses in disguise: what they are dialled as depends on the network.
    (
        Ipv6Net::new_assert(Ipv6Addr::new(0, 0, 0, 0, 0, 0xffff, 0, 0), 96),
        AddressKind::Forbidden("a mapped IPv4 address"),
    ),
    (v6([0x64, 0xff9b, 0], 32), TRANSLATED),
    (v6([0x2001, 0, 0], 23), AddressKind::Forbidden("a reserved or translated address")),
    (v6([0x2001, 0xdb8, 0], 32), DOCUMENTATION),
    (v6([0x2002, 0, 0], 16), TRANSLATED),
    (v6([0x3fff, 0, 0], 20), AddressKind::Forbidden("a reserved address")),
    (
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd00, 0xec2, 0, 0, 0, 0, 0, 0x254), 128),
        AddressKind::Forbidden("the address of a metadata service"),
    ),
    (
        Ipv6Net::new_assert(Ipv6Addr::new(0xfd20, 0xce, 0, 0, 0, 0, 0, 0x254), 128),
        AddressKind::Forbidden("the address of a metadata service"),
    ),
    (v6([0xfc00, 0, 0], 7), AddressKind::Local("a private address")),
    (v6([0xfe80, 0, 0], 10), AddressKind::Forbidden("a link-local address")),
    (v6([0xff00, 0, 0], 8), AddressKind::Forbidden("a multicast address")),
];

/// Networks that mirror public registries use these.
const DOCUMENTATION: AddressKind = AddressKind::Local("an address for documentation");

const TRANSLATED: AddressKind = AddressKind::Forbidden("a translated IPv4 address");

const GLOBAL_UNICAST: Ipv6Net = v6([0x2000, 0, 0], 3);

/// The prefix under which a host without IPv4 reaches all IPv4 addresses through NAT64.
const NAT64: Ipv6Net = Ipv6Net::new_assert(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, 0, 0), 96);

/// The IPv4 address that a NAT64 gateway dials for this one; other addresses as they are.
pub(super) fn translated(address: IpAddr) -> IpAddr {
    match address {
        IpAddr::V6(translated) if NAT64.contains(&translated) => {
            let [.., a, b, c, d] = translated.octets();
            Ipv4Addr::new(a, b, c, d).into()
        }
        other => other,
    }
}

pub(super) fn classify(address: IpAddr) -> AddressKind {
    let dialled = translated(address);
    if dialled != address {
        // A private address would be one of the gateway's network, which is not what an operator names.
        return if classify(dialled) == AddressKind::Public { AddressKind::Public } else { TRANSLATED };
    }
    let found = match address {
        IpAddr::V4(address) => IPV4.iter().find(|(network, _)| network.contains(&address)).map(|(_, kind)| *kind),
        IpAddr::V6(address) => {
            let outside = (!GLOBAL_UNICAST.contains(&address)).then_some(AddressKind::Forbidden("a reserved address"));
            IPV6.iter().find(|(network, _)| network.contains(&address)).map(|(_, kind)| *kind).or(outside)
        }
    };
    found.unwrap_or(AddressKind::Public)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("1.1.1.1", "public")]
    #[case("93.184.216.34", "public")]
    #[case("100.63.255.255", "public")]
    #[case("100.128.0.0", "public")]
    #[case("172.15.255.255", "public")]
    #[case("172.32.0.0", "public")]
    #[case("223.255.255.255", "public")]
    #[case("2606:4700::1111", "public")]
    #[case("2a00:1450:4001::200e", "public")]
    #[case("127.0.0.1", "local")]
    #[case("127.255.255.254", "local")]
    #[case("10.0.0.1", "local")]
    #[case("172.16.0.1", "local")]
    #[case("172.31.255.255", "local")]
    #[case("192.168.1.1", "local")]
    #[case("::1", "local")]
    #[case("fd12:3456::1", "local")]
    #[case("0.0.0.0", "forbidden")]
    #[case("0.1.2.3", "forbidden")]
    #[case("100.64.0.1", "forbidden")]
    #[case("100.100.100.200", "forbidden")]
    #[case("168.63.129.16", "forbidden")]
    #[case("169.254.169.254", "forbidden")]
    #[case("169.254.170.2", "forbidden")]
    #[case("192.0.0.192", "forbidden")]
    #[case("192.0.2.1", "local")]
    #[case("192.88.99.1", "forbidden")]
    #[case("198.18.0.1", "local")]
    #[case("198.51.100.1", "local")]
    #[case("203.0.113.1", "local")]
    #[case("224.0.0.1", "forbidden")]
    #[case("239.255.255.255", "forbidden")]
    #[case("240.0.0.1", "forbidden")]
    #[case("255.255.255.255", "forbidden")]
    #[case("::", "forbidden")]
    #[case("::127.0.0.1", "forbidden")]
    #[case("::ffff:127.0.0.1", "forbidden")]
    #[case("::ffff:1.1.1.1", "forbidden")]
    #[case("::ffff:0:127.0.0.1", "forbidden")]
    #[case("64:ff9b::101:101", "public")]
    #[case("64:ff9b::7f00:1", "forbidden")]
    #[case("64:ff9b::a00:1", "forbidden")]
    #[case("64:ff9b::a9fe:a9fe", "forbidden")]
    #[case("64:ff9b::1:0:101:101", "forbidden")]
    #[case("64:ff9b:1::a00:1", "forbidden")]
    #[case("100::1", "forbidden")]
    #[case("2001::1", "forbidden")]
    #[case("2001:db8::1", "local")]
    #[case("2002:7f00:1::", "forbidden")]
    #[case("3fff::1", "forbidden")]
    #[case("5f00::1", "forbidden")]
    #[case("fd00:ec2::254", "forbidden")]
    #[case("fd20:ce::254", "forbidden")]
    #[case("fe80::1", "forbidden")]
    #[case("fec0::1", "forbidden")]
    #[case("ff02::1", "forbidden")]
    fn addresses_are_classified(#[case] address: &str, #[case] expected: &str) {
        let kind = match classify(address.parse().unwrap()) {
            AddressKind::Public => "public",
            AddressKind::Local(_) => "local",
            AddressKind::Forbidden(_) => "forbidden",
        };
        assert_eq!(kind, expected);
    }

    /// Addresses of which many are in special networks.
    fn address() -> impl Strategy<Value = IpAddr> {
        let first = prop::sample::select(vec![0_u8, 10, 100, 127, 169, 172, 192, 198, 203, 224, 255]);
        let second = prop_oneof![any::<u8>(), prop::sample::select(vec![0_u8, 16, 51, 64, 168, 254])];
        let v4 = (first, second, any::<[u8; 2]>()).prop_map(|(a, b, [c, d])| Ipv4Addr::new(a, b, c, d));
        let high = prop::sample::select(vec![0_u16, 0x64, 0x2001, 0x2002, 0xfc00, 0xfd00, 0xfe80, 0xff02]);
        let v6 = (high, any::<[u16; 7]>()).prop_map(|(a, [b, c, d, e, f, g, h])| Ipv6Addr::new(a, b, c, d, e, f, g, h));
        prop_oneof![v4.prop_map(IpAddr::V4), v6.prop_map(IpAddr::V6), any::<IpAddr>()]
    }

    proptest! {
        #[test]
        fn an_ipv4_address_inside_an_ipv6_address_is_forbidden(inner in any::<Ipv4Addr>()) {
            let [a, b, c, d] = inner.octets().map(u16::from);
            let (high, low) = ((a << 8) | b, (c << 8) | d);
            let translated = classify(Ipv6Addr::new(0x64, 0xff9b, 0, 0, 0, 0, high, low).into());
            let is_public = classify(inner.into()) == AddressKind::Public;
            prop_assert_eq!(translated == AddressKind::Public, is_public);
            prop_assert!(is_public || matches!(translated, AddressKind::Forbidden(_)));
            let forms = [
                inner.to_ipv6_mapped(),
                Ipv6Addr::new(0x64, 0xff9b, 1, 0, 0, 0, high, low),
                Ipv6Addr::new(0x2002, high, low, 0, 0, 0, 0, 1),
                Ipv6Addr::new(0x2001, 0, 0, 0, 0, 0, !high, !low),
            ];
            for form in forms {
                prop_assert!(matches!(classify(form.into()), AddressKind::Forbidden(_)), "{form}");
            }
        }

        #[test]
        fn an_address_that_the_standard_library_calls_special_is_not_public(address in address()) {
            let special = match address {
                IpAddr::V4(a) => a.is_private() || a.is_link_local() || a.is_broadcast() || a.is_documentation(),
                IpAddr::V6(a) => a.is_unique_local() || a.is_unicast_link_local() || a.to_ipv4().is_some(),
            };
            if special || address.is_loopback() || address.is_multicast() || address.is_unspecified() {
                prop_assert_ne!(classify(address), AddressKind::Public);
            }
        }
    }
}
