//! The loopback addresses that the hosts of a job's list have inside its container. Pure.

use std::net::Ipv4Addr;

use protocol::{EgressName, MAX_EGRESS_NAMES};

use super::{host::Host, pattern::HostPattern};

/// Hosts in each block of addresses: the last number of an address is 1 to 250.
const HOSTS_PER_BLOCK: usize = 250;
/// The first block is `127.0.64.0/24`: far from the addresses that programs listen on.
const FIRST_BLOCK: usize = 64;

/// The names of a list: one for each entry that is a single host name, with one address for all ports of a host. Further
/// hosts than 64 have none and are reached through the proxy, as are wildcards. `localhost` stays what it is.
pub fn names(list: &[String]) -> Vec<EgressName> {
    let mut hosts: Vec<String> = Vec::new();
    let mut names: Vec<EgressName> = Vec::new();
    for entry in list.iter().filter_map(|entry| HostPattern::of_job(entry).ok()) {
        let Some((Host::Name(host), port)) = entry.single() else { continue };
        if host == "localhost" || names.iter().any(|name| name.host == *host && name.port == port) {
            continue;
        }
        let known = hosts.iter().position(|one| one == host);
        let index = known.unwrap_or_else(|| {
            hosts.push(host.clone());
            hosts.len() - 1
        });
        if index < MAX_EGRESS_NAMES {
            names.push(EgressName { host: host.clone(), port, address: address(index) });
        }
    }
    names
}

fn address(index: usize) -> Ipv4Addr {
    let (block, host) = (FIRST_BLOCK + index / HOSTS_PER_BLOCK, 1 + index % HOSTS_PER_BLOCK);
    // Below 64 hosts both are below 256.
    let number = |value| u8::try_from(value).unwrap_or(u8::MAX);
    Ipv4Addr::new(127, 0, number(block), number(host))
}

#[cfg(test)]
mod tests {
    use super::*;

    fn of(list: &[&str]) -> Vec<(String, u16, String)> {
        let list: Vec<String> = list.iter().map(|entry| (*entry).to_owned()).collect();
        names(&list).into_iter().map(|name| (name.host, name.port, name.address.to_string())).collect()
    }

    #[test]
    fn each_exact_host_has_one_address_for_all_its_ports() {
        let found = of(&[
            "B.example",
            "a.example:80",
            "*.c.example",
            "b.example:80",
            "b.example:443",
            "192.0.2.1",
            "localhost",
        ]);
        let expected =
            [("b.example", 443, "127.0.64.1"), ("a.example", 80, "127.0.64.2"), ("b.example", 80, "127.0.64.1")];
        let expected = expected.map(|(host, port, address)| (host.to_owned(), port, address.to_owned()));
        assert_eq!(found, expected);
    }

    #[test]
    fn hosts_beyond_the_limit_have_none() {
        let list: Vec<String> = (0..MAX_EGRESS_NAMES + 9).map(|n| format!("h{n}.example")).collect();
        let found = names(&list);
        assert_eq!(found.len(), MAX_EGRESS_NAMES);
        assert_eq!(found.last().map(|name| name.address), Some(Ipv4Addr::new(127, 0, 64, 64)));
    }

    #[test]
    fn no_list_has_no_names() {
        assert!(names(&[]).is_empty());
    }
}
