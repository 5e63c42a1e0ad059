//! The container posture, checked by a program inside the container.

use std::{collections::BTreeMap, fs};

use orchestrator::engine::{ContainerStatus, Engine};

use super::setup::{Fixture, Image};

/// `EPERM`, which the seccomp profile returns.
const REFUSED: &str = "errno 1";

#[tokio::test]
async fn a_program_in_the_container_cannot_escape() {
    check_facts(Image::Good).await;
}

#[tokio::test]
async fn environment_variables_of_the_image_are_removed() {
    check_facts(Image::WithVariable).await;
}

#[tokio::test]
async fn an_operator_can_allow_only_datagram_sockets() {
    let fixture = Fixture::with(Image::Good, |settings| settings.inet_datagrams = true);
    let now_allowed = ["socket inet-datagram", "socket inet-udp", "socket inet6-udp"];
    check_facts_except(fixture, |fact| if now_allowed.contains(&fact) { Some("ok") } else { None }).await;
}

async fn check_facts(image: Image) {
    check_facts_except(Fixture::new(image), |_| None).await;
}

/// The expected facts, except for those in `other`.
async fn check_facts_except(fixture: Fixture, other: impl Fn(&str) -> Option<&'static str>) {
    let job = fixture.job("report\nexit 0");
    fixture.engine.create(&job.spec).await.unwrap();
    let ended = fixture.wait_for_exit(job.name()).await;
    let printed = fixture.engine.logs(job.name(), 100_000).await.unwrap();
    assert_eq!(ended, ContainerStatus::Exited { code: 0, oom_killed: false }, "{printed}");
    fixture.engine.remove(job.name()).await.unwrap();

    let facts: BTreeMap<&str, &str> =
        printed.lines().map(|line| line.rsplit_once(": ").or_else(|| split_fact(line)).unwrap_or((line, ""))).collect();
    for (fact, wanted) in EXPECTED {
        let found = facts.get(fact).copied();
        assert_eq!(found, Some(other(fact).unwrap_or(wanted)), "{fact}, in {printed}");
    }
    assert_eq!(fs::read_to_string(job.spec.run_dir.join("token")).unwrap(), "secret");
    fixture.finish().await;
}

/// Splits `status CapEff: 0` at the colon; other facts after the first word or, for tables, after the second.
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
    ("run-directory", "token worker.sock"),
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
    ("call shmget", "ok"),
    ("call shmget-too-large", "errno 22"),
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
    ("shared-memory", "3"),
    ("socket netlink-audit", "errno 93"),
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
