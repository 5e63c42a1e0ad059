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

async fn what_is_found_in(image: Image) {
    let ring = Ring::new(image);
    let job = ring.job("report\nexit 0");
    ring.engine.ensure_started(&job.spec).await.unwrap();
    let ended = ring.end_of(job.name()).await;
    let printed = ring.engine.logs(job.name(), 100_000).await.unwrap();
    assert_eq!(ended, ContainerStatus::Exited { code: 0, oom_killed: false }, "{printed}");
    ring.engine.remove(job.name()).await.unwrap();

    let facts: BTreeMap<&str, &str> =
        printed.lines().map(|line| line.rsplit_once(": ").or_else(|| split_fact(line)).unwrap_or((line, ""))).collect();
    for (fact, wanted) in EXPECTED {
        let found = facts.get(fact).copied();
        assert_eq!(found, Some(wanted), "{fact}, in {printed}");
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

const EXPECTED: [(&str, &str); 58] = [
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
    ("call mknod-device", REFUSED),
    ("socket unix", "ok"),
    ("socket inet", "ok"),
    ("socket inet6", "ok"),
    ("socket netlink", "ok"),
    ("socket packet", REFUSED),
    ("socket alg", REFUSED),
    ("socket vsock", REFUSED),
    ("socket inet-raw", REFUSED),
    ("socket netlink-netfilter", REFUSED),
    ("thread", "7"),
    ("status Groups", "10001"),
];
