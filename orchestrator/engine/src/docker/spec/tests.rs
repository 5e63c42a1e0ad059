//! The posture of a container in tables, and the rules of the seccomp profile.

use std::collections::{BTreeMap, BTreeSet};

use chrono::DateTime;
use proptest::prelude::*;
use protocol::{InstanceId, JobId};
use rstest::rstest;
use serde_json::Value;

use super::*;
use crate::{Resources, docker::seccomp};

const JOB: &str = "01936f2e-8a4b-7c3d-9e1f-0123456789ab";

/// A job's container as the dispatcher asks for it.
pub(in crate::docker) fn job_spec() -> ContainerSpec {
    ContainerSpec {
        name: format!("gantry-job-{JOB}-2"),
        job_id: JOB.parse::<JobId>().unwrap(),
        attempt: 2,
        owner: "ada".to_owned(),
        created_at: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        role: ContainerRole::Job,
        image: "gantry-worker:latest".to_owned(),
        resources: Resources { memory_mb: 512, cpus: 1.5, pids: 128, disk_mb: 1024 },
        run_dir: "/run/x".into(),
        workspace: "/data/x".into(),
        traceparent: None,
        hosts: BTreeMap::new(),
    }
}

/// Its posture on a plain engine.
pub(in crate::docker) fn job_posture(spec: &ContainerSpec, image: &ImageFacts, runtime: &str) -> Posture {
    posture(spec, &context(image, runtime), &dirs()).unwrap()
}

fn dirs() -> HostDirs {
    HostDirs { run_dir: "/host/run/x".into(), workspace: "/host/data/x".into() }
}

fn context<'a>(image: &'a ImageFacts, runtime: &'a str) -> EngineContext<'a> {
    EngineContext { instance_id: InstanceId::nil(), runtime, seccomp: seccomp::PROFILE, image }
}

#[test]
fn the_environment_is_as_in_the_contract() {
    let spec = ContainerSpec { traceparent: Some("00-a-b-01".to_owned()), ..job_spec() };
    let posture = job_posture(&spec, &ImageFacts::default(), "runc");
    assert_eq!(
        posture.env,
        [
            &format!("GANTRY_JOB_ID={JOB}"),
            "GANTRY_SOCKET=/run/gantry/worker.sock",
            "GANTRY_TOKEN_FILE=/run/gantry/token",
            "GANTRY_WORKSPACE=/workspace",
            "HOME=/home/agent",
            "LANG=C.UTF-8",
            "PATH=/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin",
            "TRACEPARENT=00-a-b-01",
        ]
    );
}

#[test]
fn only_a_job_with_hosts_has_their_names_and_may_listen_on_low_ports() {
    let hosts = [("b.example", [127, 0, 64, 1]), ("a.example", [127, 0, 64, 2])];
    let hosts = hosts.map(|(name, address)| (name.to_owned(), address.into()));
    let with = job_posture(&ContainerSpec { hosts: hosts.into(), ..job_spec() }, &ImageFacts::default(), "runc");
    let without = job_posture(&job_spec(), &ImageFacts::default(), "runc");
    assert_eq!(with.extra_hosts, ["a.example:127.0.64.2", "b.example:127.0.64.1"]);
    assert_eq!(with.sysctls.get(UNPRIVILEGED_PORTS).map(String::as_str), Some("0"));
    assert!(without.extra_hosts.is_empty() && !without.sysctls.contains_key(UNPRIVILEGED_PORTS));
    let error = with.check(&without).unwrap_err().to_string();
    assert!(error.contains("ExtraHosts"), "{error}");
    // A job's row has the digest of the probe, which has no hosts.
    assert_eq!(with.digest().unwrap(), without.digest().unwrap());
}

#[test]
fn only_path_and_lang_of_an_images_environment_are_kept() {
    let env = ["PATH=/opt/node/bin:/bin", "LANG=nb_NO.UTF-8", "NODE_VERSION=20", "HOME=/root"].map(str::to_owned);
    let image = ImageFacts { env: env.to_vec(), ..ImageFacts::default() };
    let posture = job_posture(&job_spec(), &image, "runc");
    assert!(posture.env.contains(&"PATH=/opt/node/bin:/bin".to_owned()));
    assert!(posture.env.contains(&"LANG=nb_NO.UTF-8".to_owned()));
    assert!(posture.env.contains(&"HOME=/home/agent".to_owned()));
    assert!(posture.env.contains(&"NODE_VERSION".to_owned()));
    assert_eq!(posture.env.len(), 8);
}

#[test]
fn labels_name_the_owner_the_job_and_the_posture() {
    let posture = job_posture(&job_spec(), &ImageFacts::default(), "runc");
    let digest = posture.digest().unwrap();
    let wanted = [
        ("gantry.attempt", "2"),
        ("gantry.instance-id", "00000000-0000-0000-0000-000000000000"),
        ("gantry.job-id", JOB),
        ("gantry.managed", "true"),
        ("gantry.owner", "ada"),
        ("gantry.posture", digest.as_str()),
        ("gantry.role", "job"),
    ];
    assert_eq!(posture.labels, pairs(&wanted));
}

#[rstest]
#[case::job(ContainerRole::Job, &[])]
#[case::probe(ContainerRole::Probe, &["probe"])]
fn each_role_has_its_command(#[case] role: ContainerRole, #[case] cmd: &[&str]) {
    let posture = job_posture(&ContainerSpec { role, ..job_spec() }, &ImageFacts::default(), "runc");
    assert_eq!((posture.hostname.as_str(), posture.cmd), ("0123456789ab", owned(cmd)));
    assert_eq!(role_of(role_label(role)), Some(role));
}

fn mcp_spec() -> McpContainerSpec {
    McpContainerSpec {
        name: "gantry-mcp-0".to_owned(),
        server: "time".to_owned(),
        owner: "ada".to_owned(),
        created_at: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
        image: "mcp:1".to_owned(),
        command: vec!["mcp-server-time".to_owned(), "--utc".to_owned()],
        resources: job_spec().resources,
    }
}

/// Everything that protects the host is the same.
#[test]
fn an_mcp_server_has_a_jobs_posture_without_its_directories_and_socket() {
    let image = ImageFacts { env: vec!["PATH=/opt/bin".to_owned(), "API_KEY=x".to_owned()], ..ImageFacts::default() };
    let mcp = mcp_posture(&mcp_spec(), &context(&image, "runsc")).unwrap();
    let job = job_posture(&job_spec(), &image, "runsc");
    assert_eq!(mcp.env, ["API_KEY", "HOME=/home/agent", "LANG=C.UTF-8", "PATH=/opt/bin"]);
    assert_eq!((mcp.open_stdin, mcp.stdin_once, mcp.tty), (true, true, false));
    assert_eq!((mcp.entrypoint.clone(), mcp.cmd.len(), mcp.mounts.len()), (mcp_spec().command, 0, 0));
    let digest = mcp.digest().unwrap();
    let labels = [
        ("gantry.instance-id", "00000000-0000-0000-0000-000000000000"),
        ("gantry.managed", "true"),
        ("gantry.mcp-server", "time"),
        ("gantry.owner", "ada"),
        ("gantry.posture", digest.as_str()),
        ("gantry.role", "mcp"),
    ];
    assert_eq!(mcp.labels, pairs(&labels));
    let as_job = Posture {
        image: job.image.clone(),
        hostname: job.hostname.clone(),
        entrypoint: job.entrypoint.clone(),
        env: job.env.clone(),
        working_dir: job.working_dir.clone(),
        open_stdin: job.open_stdin,
        stdin_once: job.stdin_once,
        labels: job.labels.clone(),
        mounts: job.mounts.clone(),
        log_driver: job.log_driver.clone(),
        log_options: job.log_options.clone(),
        ..mcp
    };
    assert_eq!(as_job, job);
    assert_eq!(role_of("mcp"), Some(ContainerRole::Mcp));
}

#[rstest]
#[case::no_memory(Resources { memory_mb: 0, ..job_spec().resources })]
#[case::too_much_memory(Resources { memory_mb: u64::MAX, ..job_spec().resources })]
#[case::no_disk(Resources { disk_mb: 0, ..job_spec().resources })]
#[case::no_cpu(Resources { cpus: 0.0, ..job_spec().resources })]
#[case::a_negative_cpu(Resources { cpus: -1.0, ..job_spec().resources })]
#[case::not_a_number_of_cpus(Resources { cpus: f64::NAN, ..job_spec().resources })]
#[case::infinite_cpus(Resources { cpus: f64::INFINITY, ..job_spec().resources })]
#[case::no_pids(Resources { pids: 0, ..job_spec().resources })]
fn a_limit_that_would_mean_no_limit_is_refused(#[case] resources: Resources) {
    let spec = ContainerSpec { resources, ..job_spec() };
    let refused = posture(&spec, &context(&ImageFacts::default(), "runc"), &dirs());
    assert!(matches!(refused, Err(EngineError::Refused(_))), "{refused:?}");
}

#[test]
fn an_adopted_container_is_identified_by_facts_of_the_jobs_row() {
    let spec = job_spec();
    let posture = job_posture(&spec, &ImageFacts::default(), "runc");
    let adoption = AdoptionSpec {
        name: spec.name.clone(),
        id: None,
        job_id: spec.job_id,
        attempt: spec.attempt,
        posture: posture.digest().unwrap(),
        resources: spec.resources,
    };
    for (name, value) in identifying_labels(&adoption, InstanceId::nil()) {
        assert_eq!(posture.labels[name], value);
    }
    let live = live_settings(&spec.resources, "runc").unwrap();
    let made = (posture.memory_bytes, posture.memory_swap_bytes, posture.nano_cpus, posture.pids_limit);
    assert_eq!((live.memory_bytes, live.memory_swap_bytes, live.nano_cpus, live.pids_limit), made);
    assert_eq!((live.restart_policy, live.networks), (posture.restart_policy, posture.networks));
}

#[test]
fn limits_that_the_kernel_counts_per_user_are_small() {
    let posture = job_posture(&job_spec(), &ImageFacts::default(), "runc");
    let ulimits: Vec<_> = posture.ulimits.iter().map(|(name, limit)| (name.as_str(), limit.soft, limit.hard)).collect();
    let fsize = 1024 * 1024 * 1024;
    let wanted = [
        ("core", 0, 0),
        ("fsize", fsize, fsize),
        ("msgqueue", 0, 0),
        ("nofile", 4096, 4096),
        ("sigpending", 1024, 1024),
    ];
    assert_eq!(ulimits, wanted);
}

#[rstest]
#[case::runc("runc", 16, 16)]
#[case::gvisor("runsc", 16, 384)]
#[case::gvisor("runsc-kvm", 256, 4_224)]
#[case::most("io.containerd.runsc.v1", u32::MAX, 128 + 16 * i64::from(u32::MAX))]
fn under_gvisor_the_process_limit_includes_its_threads(#[case] runtime: &str, #[case] pids: u32, #[case] limit: i64) {
    let resources = Resources { pids, ..job_spec().resources };
    assert_eq!(live_settings(&resources, runtime).unwrap().pids_limit, limit);
}

#[test]
fn the_digest_depends_on_the_runtime() {
    let digest = |runtime| job_posture(&job_spec(), &ImageFacts::default(), runtime).digest().unwrap();
    assert_ne!(digest("runc"), digest("runsc"));
    assert_eq!(digest("runc").len(), 64);
}

proptest! {
    #[test]
    fn the_digest_is_the_same_for_every_job(
        memory_mb in 1_u64..100_000,
        cpus in 0.01_f64..64.0,
        pids in 1_u32..10_000,
        disk_mb in 1_u64..100_000,
        attempt in 0_u32..9,
        owner in "[a-z]{1,9}",
        traceparent in proptest::option::of("[0-9a-f]{8}"),
        probe in any::<bool>(),
    ) {
        let role = if probe { ContainerRole::Probe } else { ContainerRole::Job };
        let resources = Resources { memory_mb, cpus, pids, disk_mb };
        let (job_id, image) = (JobId::generate(), "other:1".to_owned());
        let spec = ContainerSpec { job_id, attempt, owner, role, image, resources, traceparent, ..job_spec() };
        let facts = ImageFacts { id: "sha256:1".to_owned(), env: vec!["PATH=/x".to_owned(), "JAVA_HOME=/y".to_owned()], volumes: Vec::new() };
        let (one, other) = (job_posture(&spec, &facts, "runc"), job_posture(&job_spec(), &ImageFacts::default(), "runc"));
        prop_assert_eq!(one.digest(), other.digest());
        prop_assert_eq!(&one.labels["gantry.posture"], &one.digest().unwrap());
    }
}

fn rules() -> Vec<Value> {
    let profile: Value = serde_json::from_str(seccomp::PROFILE).unwrap();
    assert_eq!((&profile["defaultAction"], &profile["defaultErrnoRet"]), (&"SCMP_ACT_ERRNO".into(), &1.into()));
    // A second word size has system calls with other argument registers, which the rules would not cover.
    for architecture in profile["archMap"].as_array().unwrap() {
        assert_eq!(architecture["subArchitectures"], Value::Array(Vec::new()));
    }
    profile["syscalls"].as_array().unwrap().clone()
}

fn names(rule: &Value) -> impl Iterator<Item = &str> {
    rule["names"].as_array().unwrap().iter().map(|name| name.as_str().unwrap())
}

#[rstest]
#[case::kernel_programs(&["bpf", "perf_event_open", "userfaultfd", "io_uring_setup", "io_uring_enter", "io_uring_register"])]
#[case::other_processes(&["ptrace", "process_vm_readv", "process_vm_writev", "pidfd_getfd", "kcmp", "process_madvise"])]
#[case::keys(&["keyctl", "add_key", "request_key"])]
#[case::namespaces(&["unshare", "setns", "chroot", "pivot_root"])]
#[case::mounts(&["mount", "umount", "umount2", "mount_setattr", "move_mount", "open_tree", "fsopen", "fsmount", "fsconfig", "fspick"])]
#[case::the_machine(&["kexec_load", "kexec_file_load", "init_module", "finit_module", "delete_module", "reboot", "swapon", "iopl", "ioperm", "syslog", "settimeofday", "clock_settime"])]
#[case::handles(&["open_by_handle_at", "name_to_handle_at", "fanotify_init"])]
#[case::aio(&["io_setup", "io_submit", "io_getevents", "io_pgetevents", "io_cancel", "io_destroy"])]
#[case::message_queues(&["mq_open", "mq_unlink", "mq_timedsend", "mq_timedreceive", "mq_notify", "mq_getsetattr"])]
#[case::system_v_ipc(&["semget", "semop", "semtimedop", "semctl", "msgget", "msgsnd", "msgrcv", "msgctl"])]
#[case::memory(&["memfd_secret", "pkey_alloc", "pkey_free", "pkey_mprotect", "get_mempolicy", "process_mrelease"])]
#[case::preallocation(&["fallocate"])]
#[case::multiplexers(&["socketcall", "ipc", "modify_ldt", "vm86"])]
fn calls_that_no_job_needs_are_not_allowed(#[case] refused: &[&str]) {
    let allowed: BTreeSet<String> = rules()
        .iter()
        .filter(|rule| rule["action"] == "SCMP_ACT_ALLOW")
        .flat_map(|rule| names(rule).map(str::to_owned).collect::<Vec<_>>())
        .collect();
    for name in refused {
        assert!(!allowed.contains(*name), "{name} is allowed");
    }
}

#[test]
fn sockets_and_clones_are_allowed_by_their_arguments_only() {
    let mut refused = BTreeMap::new();
    for rule in rules() {
        for name in names(&rule).filter(|name| ["socket", "socketpair", "clone", "personality"].contains(name)) {
            let args = rule["args"].as_array().cloned().unwrap_or_default();
            match name {
                "clone" => {
                    assert_eq!((&args[0]["value"], &args[0]["valueTwo"]), (&0x7E02_0000_u32.into(), &0.into()));
                    assert_eq!(args[0]["op"], "SCMP_CMP_MASKED_EQ");
                }
                "socket" => {
                    // Two conditions on one argument would be joined by "or".
                    let indexes: BTreeSet<u64> = args.iter().filter_map(|arg| arg["index"].as_u64()).collect();
                    assert_eq!(indexes.len(), args.len());
                    let ops = ["SCMP_CMP_EQ", "SCMP_CMP_MASKED_EQ", "SCMP_CMP_EQ"];
                    assert!(args.iter().all(|arg| arg["op"] == ops[index_of(arg)]));
                }
                _ => assert_eq!(args.len(), 1, "{name}"),
            }
        }
    }
    for rule in rules().iter().filter(|rule| rule["action"] == "SCMP_ACT_ERRNO") {
        refused.extend(names(rule).map(|name| (name.to_owned(), rule["errnoRet"].clone())));
    }
    let (no_such_call, not_supported, no_such_protocol) = (38, 95, 93);
    // Accepted without effect, so that programs which tune their buffers continue.
    let done = 0;
    let wanted =
        [("clone3", no_such_call), ("fallocate", not_supported), ("setsockopt", done), ("socket", no_such_protocol)];
    assert_eq!(refused, BTreeMap::from(wanted.map(|(name, errno)| (name.to_owned(), errno.into()))));
}

fn index_of(arg: &Value) -> usize {
    usize::try_from(arg["index"].as_u64().unwrap()).unwrap()
}
