//! Builds the posture of a container from its specification.
//!
//! Owns every fixed value of the sandbox (user, mounts, environment, limits, labels). Pure: never calls the engine,
//! reads no file and no clock.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use protocol::InstanceId;

use super::{
    HostDirs,
    posture::{ContainerMount, LiveSettings, Posture, UNPRIVILEGED_PORTS, Ulimit, env_name},
};
use crate::{AdoptionSpec, ContainerRole, ContainerSpec, EngineError, McpContainerSpec, Resources};

#[cfg(test)]
pub(super) mod tests;

/// Label: the container belongs to Gantry.
pub(super) const LABEL_MANAGED: &str = "gantry.managed";
/// Label: the installation that created it.
pub(super) const LABEL_INSTANCE: &str = "gantry.instance-id";
/// Label: the job.
pub(super) const LABEL_JOB: &str = "gantry.job-id";
/// Label: the job's attempt.
pub(super) const LABEL_ATTEMPT: &str = "gantry.attempt";
/// Label: its purpose.
pub(super) const LABEL_ROLE: &str = "gantry.role";
/// Label: when it was created. Not compared, since an adoption does not know it.
pub(super) const LABEL_CREATED_AT: &str = "gantry.created-at";
const LABEL_OWNER: &str = "gantry.owner";
const LABEL_MCP_SERVER: &str = "gantry.mcp-server";
/// Label: the digest of its posture at creation.
pub(super) const LABEL_POSTURE: &str = "gantry.posture";

const WORKER: &str = "/usr/local/bin/gantry-worker";
const USER: &str = "10001:10001";
const RUN_MOUNT: &str = "/run/gantry";
const WORKSPACE_MOUNT: &str = "/workspace";
const HOME: &str = "/home/agent";
const TMP_OPTIONS: &str = "rw,noexec,nosuid,nodev,size=64m";
// Docker adds `noexec` to a tmpfs unless `exec` is given.
const HOME_OPTIONS: &str = "rw,exec,nosuid,nodev,size=256m,uid=10001,gid=10001,mode=0700";
const DEFAULT_PATH: &str = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin";
const DEFAULT_LANG: &str = "C.UTF-8";
const SHM_BYTES: i64 = 64 * 1024 * 1024;
/// Four times the default of a Linux login. Each open file can pin kernel memory that cgroup v1 does not account for.
const MAX_OPEN_FILES: i64 = 4_096;
/// Timers and queued signals. The kernel counts them per user, and all jobs run as one user.
const MAX_PENDING_SIGNALS: i64 = 1_024;
/// Bytes in POSIX message queues: none, for the same reason.
const MAX_MESSAGE_QUEUE_BYTES: i64 = 0;
/// Minimum, default and maximum bytes of a TCP socket's buffer in one direction. Small buffers are enough for loopback,
/// and on cgroup v1 they do not count towards the container's memory limit.
const TCP_BUFFER_BYTES: &str = "4096 16384 65536";
/// System V shared memory, which programs such as `PostgreSQL` need at their start: bytes of a segment (16 MiB), pages of
/// all segments (64 MiB), and segments. What is used of it counts towards the container's memory limit.
const SYSV_SHARED_MEMORY: [(&str, &str); 3] =
    [("kernel.shmmax", "16777216"), ("kernel.shmall", "16384"), ("kernel.shmmni", "32")];
/// Without a name server the engine copies the host's into `resolv.conf`; nothing listens on this one.
const NAME_SERVER: &str = "127.0.0.1";
/// No search domain. Without it the engine copies the host's.
const NO_SEARCH_DOMAIN: &str = ".";
/// Under gVisor the engine counts the host's threads and not the job's processes. Threads of gVisor's kernel and file
/// server: 68 were counted for a container with one process.
const GVISOR_OWN_THREADS: i64 = 128;
/// Threads per process of the job: 3 to 15 were counted, with the platform `ptrace`.
const GVISOR_THREADS_PER_PROCESS: i64 = 16;
const RESTART_POLICY: &str = "no";
const LOG_MAX_MB: &str = "10m";
const BYTES_PER_MB: u64 = 1024 * 1024;

/// Paths with information about the host, which are masked. Listed here and not left to the engine, so that all engines
/// mask the same.
const MASKED_PATHS: [&str; 12] = [
    "/proc/acpi",
    "/proc/asound",
    "/proc/interrupts",
    "/proc/kcore",
    "/proc/keys",
    "/proc/latency_stats",
    "/proc/sched_debug",
    "/proc/scsi",
    "/proc/timer_list",
    "/proc/timer_stats",
    "/sys/devices/virtual/powercap",
    "/sys/firmware",
];
const READONLY_PATHS: [&str; 5] = ["/proc/bus", "/proc/fs", "/proc/irq", "/proc/sys", "/proc/sysrq-trigger"];

/// The facts of an image that the posture depends on.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct ImageFacts {
    /// Its id, which the container must have.
    pub(super) id: String,
    /// The image's environment, as `NAME=value`.
    pub(super) env: Vec<String>,
    pub(super) volumes: Vec<String>,
}

impl ImageFacts {
    /// A variable of the image, or the default.
    fn variable(&self, name: &str, default: &str) -> String {
        let own = self.env.iter().find_map(|entry| entry.split_once('=').filter(|(n, v)| *n == name && !v.is_empty()));
        own.map_or_else(|| default.to_owned(), |(_, value)| value.to_owned())
    }
}

/// The inputs besides the specification: the instance, the engine's settings and the image.
#[derive(Debug, Clone)]
pub(super) struct EngineContext<'a> {
    pub(super) instance_id: InstanceId,
    pub(super) runtime: &'a str,
    pub(super) seccomp: &'a str,
    pub(super) image: &'a ImageFacts,
}

/// The posture that a container of a job or a probe must have. `dirs`: its directories on the engine's host.
pub(super) fn posture(
    spec: &ContainerSpec,
    context: &EngineContext<'_>,
    dirs: &HostDirs,
) -> Result<Posture, EngineError> {
    let mut posture = Posture {
        hostname: spec.job_id.short(),
        entrypoint: owned(&[WORKER]),
        cmd: command(spec.role),
        env: environment(job_variables(spec), context.image),
        working_dir: WORKSPACE_MOUNT.to_owned(),
        mounts: mounts(dirs)?,
        log_driver: "json-file".to_owned(),
        log_options: pairs(&[("max-file", "1"), ("max-size", LOG_MAX_MB)]),
        ..common(context, &spec.image, &spec.resources)?
    };
    if !spec.hosts.is_empty() {
        posture.extra_hosts = spec.hosts.iter().map(|(name, address)| format!("{name}:{address}")).collect();
        posture.extra_hosts.sort();
        // The worker listens for them on their own ports, such as 443.
        posture.sysctls.extend(pairs(&[(UNPRIVILEGED_PORTS, "0")]));
    }
    let digest = posture.digest()?;
    posture.labels = labels(spec, context.instance_id, digest);
    Ok(posture)
}

/// The posture that the container of an MCP server must have: that of a job without a worker, a workspace and a socket.
/// The program reads requests from its standard input, which ends when the orchestrator goes away. Its output is not
/// stored.
pub(super) fn mcp_posture(spec: &McpContainerSpec, context: &EngineContext<'_>) -> Result<Posture, EngineError> {
    let mut posture = Posture {
        hostname: spec.server.clone(),
        entrypoint: spec.command.clone(),
        env: environment(Vec::new(), context.image),
        working_dir: HOME.to_owned(),
        open_stdin: true,
        stdin_once: true,
        ..common(context, &spec.image, &spec.resources)?
    };
    let digest = posture.digest()?;
    posture.labels = pairs(&[
        (LABEL_MANAGED, "true"),
        (LABEL_ROLE, role_label(ContainerRole::Mcp)),
        (LABEL_OWNER, &spec.owner),
        (LABEL_MCP_SERVER, &spec.server),
        (LABEL_INSTANCE, &context.instance_id.to_string()),
        (LABEL_POSTURE, &digest),
    ]);
    Ok(posture)
}

/// What all containers have in common. Empty are the hostname, the program, the environment, the mounts and the labels.
fn common(context: &EngineContext<'_>, image: &str, resources: &Resources) -> Result<Posture, EngineError> {
    let live = live_settings(resources, context.runtime)?;
    Ok(Posture {
        image_id: context.image.id.clone(),
        image: image.to_owned(),
        hostname: String::new(),
        domainname: String::new(),
        user: USER.to_owned(),
        entrypoint: Vec::new(),
        cmd: Vec::new(),
        env: Vec::new(),
        working_dir: String::new(),
        healthcheck: owned(&["NONE"]),
        volumes: Vec::new(),
        stop_signal: "SIGTERM".to_owned(),
        tty: false,
        open_stdin: false,
        stdin_once: false,
        labels: BTreeMap::new(),
        network_mode: "none".to_owned(),
        networks: live.networks,
        dns: owned(&[NAME_SERVER]),
        dns_search: owned(&[NO_SEARCH_DOMAIN]),
        extra_hosts: Vec::new(),
        sysctls: pairs(&[
            ("net.ipv4.tcp_rmem", TCP_BUFFER_BYTES),
            ("net.ipv4.tcp_wmem", TCP_BUFFER_BYTES),
            SYSV_SHARED_MEMORY[0],
            SYSV_SHARED_MEMORY[1],
            SYSV_SHARED_MEMORY[2],
        ]),
        privileged: false,
        readonly_rootfs: true,
        cap_drop: owned(&["ALL"]),
        security_opt: vec!["no-new-privileges".to_owned(), format!("seccomp={}", context.seccomp)],
        masked_paths: owned(&MASKED_PATHS),
        readonly_paths: owned(&READONLY_PATHS),
        tmpfs: pairs(&[("/tmp", TMP_OPTIONS), (HOME, HOME_OPTIONS)]),
        mounts: Vec::new(),
        memory_bytes: live.memory_bytes,
        memory_swap_bytes: live.memory_swap_bytes,
        nano_cpus: live.nano_cpus,
        pids_limit: live.pids_limit,
        ulimits: ulimits(bytes(resources.disk_mb)?),
        shm_bytes: SHM_BYTES,
        ipc_mode: "private".to_owned(),
        cgroupns_mode: "private".to_owned(),
        restart_policy: live.restart_policy,
        log_driver: "none".to_owned(),
        log_options: BTreeMap::new(),
        // The program is process 1 and reaps processes.
        init: false,
        runtime: context.runtime.to_owned(),
        others: BTreeMap::new(),
    })
}

/// The settings for these limits, and the others that can change while a container runs.
pub(super) fn live_settings(resources: &Resources, runtime: &str) -> Result<LiveSettings, EngineError> {
    let memory_bytes = bytes(resources.memory_mb)?;
    Ok(LiveSettings {
        memory_bytes,
        // Equal to the memory limit: no swap.
        memory_swap_bytes: memory_bytes,
        nano_cpus: nano_cpus(resources.cpus)?,
        pids_limit: pids(resources.pids, runtime)?,
        restart_policy: RESTART_POLICY.to_owned(),
        networks: Vec::new(),
    })
}

/// The labels that identify a container, with their values.
pub(super) fn identifying_labels(spec: &AdoptionSpec, instance_id: InstanceId) -> [(&'static str, String); 5] {
    [
        (LABEL_INSTANCE, instance_id.to_string()),
        (LABEL_ROLE, role_label(ContainerRole::Job).to_owned()),
        (LABEL_JOB, spec.job_id.to_string()),
        (LABEL_ATTEMPT, spec.attempt.to_string()),
        (LABEL_POSTURE, spec.posture.clone()),
    ]
}

/// The value of the role label.
pub(super) fn role_label(role: ContainerRole) -> &'static str {
    role.into()
}

pub(super) fn role_of(label: &str) -> Option<ContainerRole> {
    label.parse().ok()
}

/// The worker's arguments: none for a job, one for the round trip of a probe.
fn command(role: ContainerRole) -> Vec<String> {
    match role {
        ContainerRole::Job | ContainerRole::Mcp => Vec::new(),
        ContainerRole::Probe => owned(&["probe"]),
    }
}

/// The variables that only a worker has.
fn job_variables(spec: &ContainerSpec) -> Vec<String> {
    let mut env = vec![
        format!("GANTRY_JOB_ID={}", spec.job_id),
        format!("GANTRY_SOCKET={RUN_MOUNT}/worker.sock"),
        format!("GANTRY_TOKEN_FILE={RUN_MOUNT}/token"),
        format!("GANTRY_WORKSPACE={WORKSPACE_MOUNT}"),
    ];
    env.extend(spec.traceparent.iter().map(|context| format!("TRACEPARENT={context}")));
    env
}

fn environment(mut env: Vec<String>, image: &ImageFacts) -> Vec<String> {
    env.extend([
        format!("HOME={HOME}"),
        format!("PATH={}", image.variable("PATH", DEFAULT_PATH)),
        format!("LANG={}", image.variable("LANG", DEFAULT_LANG)),
    ]);
    // A name without a value removes the image's variable.
    let ours: BTreeSet<String> = env.iter().map(|entry| env_name(entry).to_owned()).collect();
    env.extend(image.env.iter().map(|entry| env_name(entry)).filter(|name| !ours.contains(*name)).map(str::to_owned));
    env.sort();
    env
}

fn labels(spec: &ContainerSpec, instance_id: InstanceId, digest: String) -> BTreeMap<String, String> {
    let mut labels = pairs(&[(LABEL_MANAGED, "true"), (LABEL_ROLE, role_label(spec.role)), (LABEL_OWNER, &spec.owner)]);
    labels.insert(LABEL_INSTANCE.to_owned(), instance_id.to_string());
    labels.insert(LABEL_JOB.to_owned(), spec.job_id.to_string());
    labels.insert(LABEL_ATTEMPT.to_owned(), spec.attempt.to_string());
    labels.insert(LABEL_POSTURE.to_owned(), digest);
    labels
}

fn mounts(dirs: &HostDirs) -> Result<Vec<ContainerMount>, EngineError> {
    Ok(vec![bind(&dirs.run_dir, RUN_MOUNT, false)?, bind(&dirs.workspace, WORKSPACE_MOUNT, true)?])
}

fn bind(source: &Path, destination: &str, writable: bool) -> Result<ContainerMount, EngineError> {
    let source = source
        .to_str()
        .ok_or_else(|| EngineError::Refused(format!("the directory {} is not UTF-8; use another", source.display())))?;
    Ok(ContainerMount {
        destination: destination.to_owned(),
        source: source.to_owned(),
        kind: "bind".to_owned(),
        writable,
        propagation: "rprivate".to_owned(),
    })
}

fn ulimits(file_bytes: i64) -> BTreeMap<String, Ulimit> {
    let limit = |value| Ulimit { soft: value, hard: value };
    BTreeMap::from([
        ("core".to_owned(), limit(0)),
        ("fsize".to_owned(), limit(file_bytes)),
        ("msgqueue".to_owned(), limit(MAX_MESSAGE_QUEUE_BYTES)),
        ("nofile".to_owned(), limit(MAX_OPEN_FILES)),
        ("sigpending".to_owned(), limit(MAX_PENDING_SIGNALS)),
    ])
}

fn bytes(megabytes: u64) -> Result<i64, EngineError> {
    megabytes
        .checked_mul(BYTES_PER_MB)
        .filter(|bytes| *bytes > 0)
        .and_then(|bytes| i64::try_from(bytes).ok())
        .ok_or_else(|| EngineError::Refused(format!("a limit of {megabytes} MB is out of range")))
}

/// The engine's limit for a job's limit of processes.
fn pids(pids: u32, runtime: &str) -> Result<i64, EngineError> {
    // The engine reads 0 as "no limit".
    if pids == 0 {
        return Err(EngineError::Refused("a limit of 0 processes is out of range".to_owned()));
    }
    let pids = i64::from(pids);
    Ok(if is_gvisor(runtime) { GVISOR_OWN_THREADS + pids * GVISOR_THREADS_PER_PROCESS } else { pids })
}

/// Whether a runtime is gVisor, by the names in its documentation.
fn is_gvisor(runtime: &str) -> bool {
    runtime.contains("runsc") || runtime.contains("gvisor")
}

/// A value that the engine would read as "no limit" (zero, not a number) is refused.
fn nano_cpus(cpus: f64) -> Result<i64, EngineError> {
    // Docker's resolution is a hundredth of a CPU.
    let hundredths = (cpus * 100.0).round();
    if !(1.0..=1e6).contains(&hundredths) {
        return Err(EngineError::Refused(format!("{cpus} cpus is out of range; must be 0.01 to 10000")));
    }
    #[expect(clippy::cast_possible_truncation, reason = "a whole number up to 10⁶, checked above")]
    let hundredths = hundredths as i64;
    Ok(hundredths * 10_000_000)
}

fn owned(texts: &[&str]) -> Vec<String> {
    texts.iter().map(|text| (*text).to_owned()).collect()
}

fn pairs(pairs: &[(&str, &str)]) -> BTreeMap<String, String> {
    pairs.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect()
}
