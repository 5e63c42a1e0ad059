//! The seccomp profile of jobs, as it is passed to the engine.
//!
//! The rules are in `docker/seccomp.json`. Owns the rules of the one setting: INET and INET6 datagram sockets. Pure.

use serde_json::{Value, json};

use crate::EngineError;

/// The profile: an allow-list, without INET datagrams.
pub(super) const PROFILE: &str = include_str!("../../../../docker/seccomp.json");

const AF_INET: u32 = 2;
const AF_INET6: u32 = 10;
const SOCK_DGRAM: u32 = 2;
/// All bits of a socket's type except `SOCK_NONBLOCK` (0x800) and `SOCK_CLOEXEC` (0x80000).
const TYPE_MASK: u32 = 0xFFF7_F7FF;
const IPPROTO_UDP: u32 = 17;

/// The profile as JSON. With `inet_datagrams` it also allows UDP, whose buffers cgroup v1 does not account for.
pub(super) fn profile(inet_datagrams: bool) -> Result<String, EngineError> {
    if !inet_datagrams {
        return Ok(PROFILE.to_owned());
    }
    let unreadable = |why: String| EngineError::Refused(format!("the seccomp profile cannot be extended: {why}"));
    let mut profile: Value = serde_json::from_str(PROFILE).map_err(|error| unreadable(error.to_string()))?;
    let rules = profile["syscalls"].as_array_mut().ok_or_else(|| unreadable("it has no rules".to_owned()))?;
    for family in [AF_INET, AF_INET6] {
        // One rule per protocol: the runtime combines several conditions on one argument with "or".
        rules.extend([0, IPPROTO_UDP].map(|protocol| datagrams(family, protocol)));
    }
    Ok(profile.to_string())
}

fn datagrams(family: u32, protocol: u32) -> Value {
    json!({
        "comment": "new sockets: datagrams, enabled by the operator",
        "names": ["socket"],
        "action": "SCMP_ACT_ALLOW",
        "args": [
            {"index": 0, "value": family, "op": "SCMP_CMP_EQ"},
            {"index": 1, "value": TYPE_MASK, "valueTwo": SOCK_DGRAM, "op": "SCMP_CMP_MASKED_EQ"},
            {"index": 2, "value": protocol, "op": "SCMP_CMP_EQ"},
        ],
    })
}

#[cfg(test)]
mod tests;
