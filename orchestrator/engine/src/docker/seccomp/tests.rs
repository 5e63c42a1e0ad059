//! The setting for datagram sockets: which rules it adds, and that nothing else changes.

use super::*;

fn rules(profile: &str) -> Vec<Value> {
    let profile: Value = serde_json::from_str(profile).unwrap();
    profile["syscalls"].as_array().unwrap().clone()
}

/// What a socket rule allows: family, type without its flags, protocol; none means any.
fn socket(rule: &Value) -> [Option<u64>; 3] {
    let of = |index: u64| {
        let arg = rule["args"].as_array().unwrap().iter().find(|arg| arg["index"] == index)?;
        let value = if arg["op"] == "SCMP_CMP_MASKED_EQ" { &arg["valueTwo"] } else { &arg["value"] };
        value.as_u64()
    };
    [of(0), of(1), of(2)]
}

fn sockets(profile: &str) -> Vec<[Option<u64>; 3]> {
    let is_allowed = |rule: &&Value| rule["names"] == json!(["socket"]) && rule["action"] == "SCMP_ACT_ALLOW";
    rules(profile).iter().filter(is_allowed).map(socket).collect()
}

const UNIX: [Option<u64>; 3] = [Some(1), None, None];
const ROUTE: [Option<u64>; 3] = [Some(16), None, Some(0)];

fn inet(kind: u64, protocol: u64) -> [[Option<u64>; 3]; 2] {
    [2, 10].map(|family| [Some(family), Some(kind), Some(protocol)])
}

#[test]
fn without_the_setting_the_profile_is_the_file() {
    assert_eq!(profile(false).unwrap(), PROFILE);
    let [tcp4, tcp6] = inet(1, 0);
    let [tcp4_by_number, tcp6_by_number] = inet(1, 6);
    assert_eq!(sockets(PROFILE), [UNIX, tcp4, tcp4_by_number, tcp6, tcp6_by_number, ROUTE]);
}

#[test]
fn with_the_setting_only_udp_is_added() {
    let (plain, extended) = (rules(PROFILE), profile(true).unwrap());
    assert_eq!(rules(&extended)[..plain.len()], plain);
    let [udp4, udp6] = inet(2, 0);
    let [udp4_by_number, udp6_by_number] = inet(2, 17);
    assert_eq!(sockets(&extended)[6..], [udp4, udp4_by_number, udp6, udp6_by_number]);
}

#[test]
fn only_the_flags_of_a_type_are_masked() {
    for rule in rules(&profile(true).unwrap()).into_iter().filter(|rule| rule["names"] == json!(["socket"])) {
        for arg in rule["args"].as_array().into_iter().flatten().filter(|arg| arg["index"] == 1) {
            let mask = arg["value"].as_u64().unwrap();
            assert_eq!(!mask & 0xFFFF_FFFF, 0x8_0800, "SOCK_NONBLOCK and SOCK_CLOEXEC");
        }
    }
}

#[test]
fn socket_buffers_cannot_be_resized() {
    let (so_sndbuf, so_rcvbuf, sol_socket) = (7, 8, 1);
    let of = |action: &str| -> Vec<(Option<u64>, Option<u64>)> {
        let mine = rules(PROFILE).into_iter().filter(|rule| rule["names"] == json!(["setsockopt"]));
        mine.filter(|rule| rule["action"] == action).map(|rule| (socket(&rule)[1], socket(&rule)[2])).collect()
    };
    let buffers = [so_sndbuf, so_rcvbuf].map(|option| (Some(sol_socket), Some(option)));
    assert_eq!(of("SCMP_ACT_ERRNO"), buffers);
    for (level, option) in of("SCMP_ACT_ALLOW") {
        assert!(level.is_some(), "a rule for every level");
        assert!(level != Some(sol_socket) || option.is_some(), "a rule for every option");
        assert!(!buffers.contains(&(level, option)));
    }
    let anywhere = rules(PROFILE)
        .iter()
        .flat_map(|rule| rule["names"].as_array().unwrap().clone())
        .filter(|name| name == "setsockopt")
        .count();
    assert_eq!(anywhere, of("SCMP_ACT_ALLOW").len() + buffers.len(), "no rule names it among others");
}
