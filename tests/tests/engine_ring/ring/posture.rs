//! What a program inside finds when it tries.

use std::{collections::BTreeMap, fs};

use orchestrator::engine::{ContainerStatus, Engine};

use super::ground::{Image, Ring};

/// `EPERM`, as the profile answers.
const REFUSED: &str = "errno 1";

#[tokio::test]
async fn inside_there_is_no_way_out() {
    what_is_found_in(Image::Good).await;
}

#[tokio::test]
async fn an_images_own_variables_are_taken_out() {
    what_is_found_in(Image::WithVariable).await;
}

#[tokio::test]
async fn an_operator_may_allow_datagrams_and_nothing_else() {
    let ring = Ring::with(Image::Good, |settings| settings.inet_datagrams = true);
    let now_allowed = ["socket inet-datagram", "socket inet-udp", "socket inet6-udp"];
    found_in(ring, |fact| if now_allowed.contains(&fact) { Some("ok") } else { None }).await;
}

async fn what_is_found_in(image: Image) {
    found_in(Ring::new(image), |_| None).await;
}

/// What is expected, but for what `other` says.
async fn found_in(ring: Ring, other: impl Fn(&str) -> Option<&'static str>) {
    let job = ring.job("report\nexit 0");
    ring.engine.create(&job.spec).await.unwrap();
    let ended = ring.end_of(job.name()).await;
    let printed = ring.engine.logs(job.name(), 100_000).await.unwrap();
    assert_eq!(ended, ContainerStatus::Exited { code: 0, oom_killed: false }, "{printed}");
    ring.engine.remove(job.name()).await.unwrap();

    let facts: BTreeMap<&str, &str> =
        printed.lines().map(|line| line.rsplit_once(": ").or_else(|| split_fact(line)).unwrap_or((line, ""))).collect();
    for (fact, wanted) in EXPECTED {
        let found = facts.get(fact).copied();
        assert_eq!(found, Some(other(fact).unwrap_or(wanted)), "{fact}, in {printed}");
    }
    assert_eq!(fs::read_to_string(job.spec.run_folder.join("token")).unwrap(), "secret");
    ring.finish().await;
}

/// `status CapEff: 0` is split at the colon; the rest after the first word or, for tables, after the second.
fn split_fact(line: &str) -> Option<(&str, &str)> {
    let tables = ["write", "execute-in", "hidden", "call", "socket"];
    let (first, rest) = line.split_once(' ')?;
    if !tables.contains(&first) {
        return Some((first, rest));
    }
    let at = first.len() + 1 + rest.find(' ')?;
    Some((&line[..at], &line[at + 1..]))
}

const EXPECTED: &[(&str, &str)] = &[
    ("status Uid", "10001 10001 10001 10001"),
    ("status Gid", "10001 10001 10001 10001"),
    ("status CapInh", "0000000000000000"),
    ("status CapPrm", "0000000000000000"),
    ("status CapEff", "0000000000000000"),
    ("status CapBnd", "0000000000000000"),
    ("status CapAmb", "0000000000000000"),
    ("status NoNewPrivs", "1"),
    ("status Seccomp", "2"),
    ("interfaces", "lo"),
    ("routes", "0"),
    ("env", "GANTRY_JOB_ID GANTRY_SOCKET GANTRY_TOKEN_FILE GANTRY_WORKSPACE HOME HOSTNAME LANG PATH TRACEPARENT"),
    ("run-folder", "token worker.sock"),
    ("write /x", "errno 30"),
    ("write /usr/local/bin/x", "errno 30"),
    ("write /run/gantry/x", "errno 30"),
    ("write /run/gantry/token", "errno 30"),
    ("write /proc/sys/kernel/core_pattern", "errno 30"),
    ("replace-socket", "errno 30"),
    ("write /workspace/x", "ok"),
    ("write /tmp/x", "ok"),
    ("write /home/agent/x", "ok"),
    ("execute-in /tmp", "errno 13"),
    ("execute-in /home/agent", "ok"),
    ("execute-in /workspace", "ok"),
    ("hidden /proc/kcore", "true"),
    ("hidden /proc/keys", "true"),
    ("hidden /proc/timer_list", "true"),
    ("engine-socket", "false"),
    ("file-limit", "errno 27"),
    ("own-pid", "1"),
    ("resolver", "nameserver 127.0.0.1"),
    ("tcp_rmem", "4096 16384 65536"),
    ("tcp_wmem", "4096 16384 65536"),
    ("max-open-files", "4096 4096"),
    ("max-pending-signals", "1024 1024"),
    ("max-msgqueue-size", "0 0"),
    ("call mount", REFUSED),
    ("call unshare-user", REFUSED),
    ("call setns", REFUSED),
    ("call clone-user", REFUSED),
    ("call clone3", "errno 38"),
    ("call ptrace", REFUSED),
    ("call process_vm_readv", REFUSED),
    ("call bpf", REFUSED),
    ("call keyctl", REFUSED),
    ("call add_key", REFUSED),
    ("call io_uring_setup", REFUSED),
    ("call userfaultfd", REFUSED),
    ("call perf_event_open", REFUSED),
    ("call open_by_handle_at", REFUSED),
    ("call kexec_load", REFUSED),
    ("call chroot", REFUSED),
    ("call name_to_handle_at", REFUSED),
    ("call io_setup", REFUSED),
    ("call mq_open", REFUSED),
    ("call shmget", REFUSED),
    ("call semget", REFUSED),
    ("call msgget", REFUSED),
    ("call memfd_secret", REFUSED),
    ("call pkey_alloc", REFUSED),
    ("call get_mempolicy", REFUSED),
    ("call process_mrelease", REFUSED),
    ("call fallocate", "errno 95"),
    ("call mknod-device", REFUSED),
    ("socket unix", "ok"),
    ("socket inet", "ok"),
    ("socket inet6", "ok"),
    ("socket netlink", "ok"),
    ("socket packet", REFUSED),
    ("socket alg", REFUSED),
    ("socket vsock", REFUSED),
    ("buffer-kept", "true"),
    ("socket inet-raw", REFUSED),
    ("socket inet-stream-with-flags", "ok"),
    ("socket inet-tcp", "ok"),
    ("socket inet6-tcp", "ok"),
    ("socket inet-datagram", REFUSED),
    ("socket inet-udp", REFUSED),
    ("socket inet6-udp", REFUSED),
    ("socket inet-mptcp", REFUSED),
    ("socket inet-icmp", REFUSED),
    ("socket inet-udplite", REFUSED),
    ("socket inet-sctp", REFUSED),
    ("socket netlink-netfilter", REFUSED),
    ("thread", "7"),
    ("status Groups", "10001"),
];
