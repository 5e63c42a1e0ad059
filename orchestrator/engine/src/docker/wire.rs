//! Translates between Docker's API types and ours: a posture into a create request, an inspect response into a posture
//! and a view.
//!
//! Never calls the engine and never judges: a field that the engine omits is read as the value that no posture allows.

use std::collections::{BTreeMap, HashMap};

use bollard::models::{
    ContainerConfig, ContainerState, ContainerStateStatusEnum, ContainerSummaryStateEnum, HealthConfig, HostConfig,
    HostConfigCgroupnsModeEnum, HostConfigLogConfig, ImageInspect, Mount, MountPoint, MountType, ResourcesUlimits,
    RestartPolicy, RestartPolicyNameEnum,
};
pub(super) use bollard::models::{ContainerCreateBody, ContainerInspectResponse as Inspected, ContainerSummary};
use serde_json::Value;

use super::{
    host_paths::OwnMount,
    posture::{ContainerMount, LiveSettings, Posture, Ulimit},
    spec::{self, ImageFacts, LABEL_CREATED_AT},
};
use crate::{ContainerStatus, ContainerView, SIGKILL_EXIT_CODE};

#[cfg(test)]
mod tests;

/// Settings of a host configuration that a posture has fields for, or (mounts) that inspect reports elsewhere as they
/// are in effect.
const KNOWN_HOST_SETTINGS: [&str; 27] = [
    "CapDrop",
    "CgroupnsMode",
    "Dns",
    "DnsSearch",
    "ExtraHosts",
    "Init",
    "IpcMode",
    "LogConfig",
    "MaskedPaths",
    "Memory",
    "MemorySwap",
    "Mounts",
    "NanoCpus",
    "NetworkMode",
    "PidsLimit",
    "Privileged",
    "ReadonlyPaths",
    "ReadonlyRootfs",
    "RestartPolicy",
    "Runtime",
    "SecurityOpt",
    "ShmSize",
    "Sysctls",
    "Tmpfs",
    "Ulimits",
    // Not restrictions: the size of a terminal that does not exist, and the platform's default.
    "ConsoleSize",
    "Isolation",
];

/// The request that creates a container.
pub(super) fn create_body(posture: &Posture, created_at: &str) -> ContainerCreateBody {
    let mut labels: HashMap<String, String> = posture.labels.clone().into_iter().collect();
    labels.insert(LABEL_CREATED_AT.to_owned(), created_at.to_owned());
    ContainerCreateBody {
        hostname: Some(posture.hostname.clone()),
        domainname: Some(posture.domainname.clone()),
        user: Some(posture.user.clone()),
        tty: Some(posture.tty),
        open_stdin: Some(posture.open_stdin),
        stdin_once: Some(posture.stdin_once),
        env: Some(posture.env.clone()),
        cmd: Some(posture.cmd.clone()),
        healthcheck: Some(HealthConfig { test: Some(posture.healthcheck.clone()), ..HealthConfig::default() }),
        image: Some(posture.image.clone()),
        working_dir: Some(posture.working_dir.clone()),
        entrypoint: Some(posture.entrypoint.clone()),
        labels: Some(labels),
        stop_signal: Some(posture.stop_signal.clone()),
        host_config: Some(host_config(posture)),
        ..ContainerCreateBody::default()
    }
}

fn host_config(posture: &Posture) -> HostConfig {
    HostConfig {
        network_mode: Some(posture.network_mode.clone()),
        dns: Some(posture.dns.clone()),
        dns_search: Some(posture.dns_search.clone()),
        extra_hosts: Some(posture.extra_hosts.clone()),
        sysctls: Some(posture.sysctls.clone().into_iter().collect()),
        privileged: Some(posture.privileged),
        readonly_rootfs: Some(posture.readonly_rootfs),
        cap_drop: Some(posture.cap_drop.clone()),
        security_opt: Some(posture.security_opt.clone()),
        masked_paths: Some(posture.masked_paths.clone()),
        readonly_paths: Some(posture.readonly_paths.clone()),
        tmpfs: Some(posture.tmpfs.clone().into_iter().collect()),
        mounts: Some(posture.mounts.iter().map(mount).collect()),
        memory: Some(posture.memory_bytes),
        memory_swap: Some(posture.memory_swap_bytes),
        nano_cpus: Some(posture.nano_cpus),
        pids_limit: Some(posture.pids_limit),
        ulimits: Some(posture.ulimits.iter().map(ulimit).collect()),
        shm_size: Some(posture.shm_bytes),
        ipc_mode: Some(posture.ipc_mode.clone()),
        cgroupns_mode: posture.cgroupns_mode.parse::<HostConfigCgroupnsModeEnum>().ok(),
        restart_policy: Some(RestartPolicy {
            name: posture.restart_policy.parse::<RestartPolicyNameEnum>().ok(),
            maximum_retry_count: Some(0),
        }),
        log_config: Some(HostConfigLogConfig {
            typ: Some(posture.log_driver.clone()),
            config: Some(posture.log_options.clone().into_iter().collect()),
        }),
        init: Some(posture.init),
        runtime: Some(posture.runtime.clone()),
        ..HostConfig::default()
    }
}

// `Mounts` and not `Binds`: a missing source is refused, whereas a bind would create it as root. The propagation is
// left to the engine: for sources in its own directory (a named volume) it accepts only its own choice.
fn mount(mount: &ContainerMount) -> Mount {
    Mount {
        target: Some(mount.destination.clone()),
        source: Some(mount.source.clone()),
        typ: Some(MountType::BIND),
        read_only: Some(!mount.writable),
        ..Mount::default()
    }
}

fn ulimit((name, limit): (&String, &Ulimit)) -> ResourcesUlimits {
    ResourcesUlimits { name: Some(name.clone()), soft: Some(limit.soft), hard: Some(limit.hard) }
}

/// The posture of an inspected container.
pub(super) fn observed_posture(inspected: &Inspected) -> Posture {
    let config = inspected.config.clone().unwrap_or_default();
    let host = inspected.host_config.clone().unwrap_or_default();
    let others = other_settings(&host);
    let log = host.log_config.unwrap_or_default();
    Posture {
        image_id: inspected.image.clone().unwrap_or_default(),
        networks: networks(inspected),
        mounts: sorted(inspected.mounts.iter().flatten().map(observed_mount)),
        labels: own_labels(&config),
        image: config.image.unwrap_or_default(),
        hostname: config.hostname.unwrap_or_default(),
        domainname: config.domainname.unwrap_or_default(),
        user: config.user.unwrap_or_default(),
        entrypoint: config.entrypoint.unwrap_or_default(),
        cmd: config.cmd.unwrap_or_default(),
        env: sorted(config.env.into_iter().flatten()),
        working_dir: config.working_dir.unwrap_or_default(),
        healthcheck: config.healthcheck.and_then(|check| check.test).unwrap_or_default(),
        volumes: sorted(config.volumes.into_iter().flatten()),
        stop_signal: config.stop_signal.unwrap_or_default(),
        tty: config.tty.unwrap_or(true),
        open_stdin: config.open_stdin.unwrap_or(true),
        stdin_once: config.stdin_once.unwrap_or(true),
        network_mode: host.network_mode.unwrap_or_default(),
        dns: host.dns.unwrap_or_default(),
        dns_search: host.dns_search.unwrap_or_default(),
        extra_hosts: sorted(host.extra_hosts.into_iter().flatten()),
        sysctls: host.sysctls.into_iter().flatten().collect(),
        privileged: host.privileged.unwrap_or(true),
        readonly_rootfs: host.readonly_rootfs.unwrap_or(false),
        cap_drop: sorted(host.cap_drop.into_iter().flatten()),
        security_opt: sorted(host.security_opt.into_iter().flatten().map(security_option)),
        masked_paths: sorted(host.masked_paths.into_iter().flatten()),
        readonly_paths: sorted(host.readonly_paths.into_iter().flatten()),
        tmpfs: host.tmpfs.into_iter().flatten().collect(),
        memory_bytes: host.memory.unwrap_or(0),
        memory_swap_bytes: host.memory_swap.unwrap_or(0),
        nano_cpus: host.nano_cpus.unwrap_or(0),
        pids_limit: host.pids_limit.unwrap_or(0),
        ulimits: host.ulimits.into_iter().flatten().filter_map(observed_ulimit).collect(),
        shm_bytes: host.shm_size.unwrap_or(0),
        ipc_mode: host.ipc_mode.unwrap_or_default(),
        cgroupns_mode: host.cgroupns_mode.map(|mode| mode.to_string()).unwrap_or_default(),
        restart_policy: host.restart_policy.as_ref().map(restart_policy).unwrap_or_default(),
        log_driver: log.typ.unwrap_or_default(),
        log_options: log.config.into_iter().flatten().collect(),
        init: host.init.unwrap_or(false),
        runtime: host.runtime.unwrap_or_default(),
        others,
    }
}

/// The runtime of an inspected container.
pub(super) fn runtime(inspected: &Inspected) -> &str {
    inspected.host_config.as_ref().and_then(|host| host.runtime.as_deref()).unwrap_or_default()
}

/// The settings that can change while a container runs.
pub(super) fn live_settings(inspected: &Inspected) -> LiveSettings {
    let host = inspected.host_config.clone().unwrap_or_default();
    LiveSettings {
        memory_bytes: host.memory.unwrap_or(0),
        memory_swap_bytes: host.memory_swap.unwrap_or(0),
        nano_cpus: host.nano_cpus.unwrap_or(0),
        pids_limit: host.pids_limit.unwrap_or(0),
        restart_policy: host.restart_policy.as_ref().map(restart_policy).unwrap_or_default(),
        networks: networks(inspected),
    }
}

/// Settings that a posture has no field for and that are not empty. A host configuration that cannot be serialized is
/// refused with that as its only setting.
fn other_settings(host: &HostConfig) -> BTreeMap<String, Value> {
    let Ok(Value::Object(settings)) = serde_json::to_value(host) else {
        return BTreeMap::from([("HostConfig".to_owned(), Value::from("unreadable"))]);
    };
    settings
        .into_iter()
        .filter(|(name, value)| !KNOWN_HOST_SETTINGS.contains(&name.as_str()) && !is_empty(value))
        .map(|(name, value)| (format!("HostConfig.{name}"), value))
        .collect()
}

fn is_empty(value: &Value) -> bool {
    match value {
        Value::Null => true,
        Value::Bool(flag) => !flag,
        Value::Number(number) => number.as_f64() == Some(0.0),
        Value::String(text) => text.is_empty(),
        Value::Array(items) => items.is_empty(),
        Value::Object(fields) => fields.is_empty(),
    }
}

fn networks(inspected: &Inspected) -> Vec<String> {
    let settings = inspected.network_settings.as_ref();
    let names = settings.and_then(|settings| settings.networks.as_ref()).into_iter().flat_map(HashMap::keys);
    sorted(names.filter(|name| *name != "none").cloned())
}

fn own_labels(config: &ContainerConfig) -> BTreeMap<String, String> {
    let labels = config.labels.iter().flatten();
    let ours = labels.filter(|(name, _)| name.starts_with("gantry.") && *name != LABEL_CREATED_AT);
    ours.map(|(name, value)| (name.clone(), value.clone())).collect()
}

fn observed_mount(point: &MountPoint) -> ContainerMount {
    ContainerMount {
        destination: point.destination.clone().unwrap_or_default(),
        source: point.source.clone().unwrap_or_default(),
        kind: point.typ.clone().unwrap_or_default(),
        writable: point.rw.unwrap_or(true),
        propagation: propagation(point.propagation.as_deref().unwrap_or_default()),
    }
}

/// Neither `rslave` nor `rprivate` lets mounts inside the container propagate to the host; the engine chooses one of
/// them.
fn propagation(value: &str) -> String {
    if value == "rslave" { "rprivate".to_owned() } else { value.to_owned() }
}

fn observed_ulimit(limit: ResourcesUlimits) -> Option<(String, Ulimit)> {
    let (soft, hard) = (limit.soft.unwrap_or(-1), limit.hard.unwrap_or(-1));
    limit.name.map(|name| (name, Ulimit { soft, hard }))
}

/// Engines report this option in two ways.
fn security_option(option: String) -> String {
    if option == "no-new-privileges:true" || option == "no-new-privileges=true" {
        "no-new-privileges".to_owned()
    } else {
        option
    }
}

fn restart_policy(policy: &RestartPolicy) -> String {
    let name = policy.name.as_ref().map(ToString::to_string).unwrap_or_default();
    match policy.maximum_retry_count {
        None | Some(0) => name,
        Some(retries) => format!("{name}:{retries}"),
    }
}

fn sorted<T: Ord>(items: impl Iterator<Item = T>) -> Vec<T> {
    let mut items: Vec<T> = items.collect();
    items.sort();
    items
}

pub(super) fn image_facts(image: ImageInspect) -> ImageFacts {
    let config = image.config.unwrap_or_default();
    ImageFacts {
        id: image.id.unwrap_or_default(),
        env: config.env.unwrap_or_default(),
        volumes: config.volumes.unwrap_or_default(),
    }
}

/// A label of an inspected container.
pub(super) fn label<'a>(inspected: &'a Inspected, name: &str) -> Option<&'a str> {
    inspected.config.as_ref()?.labels.as_ref()?.get(name).map(String::as_str)
}

/// The dispatcher's view of an inspected container.
pub(super) fn view(inspected: &Inspected) -> ContainerView {
    let labels = inspected.config.as_ref().and_then(|config| config.labels.as_ref());
    view_of(inspected.id.as_deref(), inspected.name.as_deref(), labels, status(inspected.state.as_ref()))
}

/// The same from a list, which has enough information about a running container only.
pub(super) fn view_of_listed(listed: &ContainerSummary) -> ContainerView {
    let name = listed.names.iter().flatten().next().map(String::as_str);
    let status = match listed.state {
        Some(ContainerSummaryStateEnum::RUNNING) => ContainerStatus::Running,
        _ => ContainerStatus::Unknown,
    };
    view_of(listed.id.as_deref(), name, listed.labels.as_ref(), status)
}

fn view_of(
    id: Option<&str>,
    name: Option<&str>,
    labels: Option<&HashMap<String, String>>,
    status: ContainerStatus,
) -> ContainerView {
    let label = |name: &str| labels.and_then(|labels| labels.get(name)).map(String::as_str);
    ContainerView {
        name: name.unwrap_or_default().trim_start_matches('/').to_owned(),
        id: id.unwrap_or_default().to_owned(),
        job_id: label(spec::LABEL_JOB).and_then(|id| id.parse().ok()),
        attempt: label(spec::LABEL_ATTEMPT).and_then(|attempt| attempt.parse().ok()).unwrap_or(0),
        role: label(spec::LABEL_ROLE).and_then(spec::role_of),
        status,
    }
}

/// Whether a container is paused. Signals are delivered on unpause.
pub(super) fn is_paused(inspected: &Inspected) -> bool {
    inspected.state.as_ref().and_then(|state| state.status) == Some(ContainerStateStatusEnum::PAUSED)
}

/// The PID of the container's first process on the host; none if it does not run.
pub(super) fn host_pid(inspected: &Inspected) -> Option<u32> {
    let pid = inspected.state.as_ref()?.pid?;
    u32::try_from(pid).ok().filter(|pid| *pid > 0)
}

fn status(state: Option<&ContainerState>) -> ContainerStatus {
    use ContainerStateStatusEnum as Status;
    let Some(state) = state else { return ContainerStatus::Created };
    match state.status {
        None | Some(Status::EMPTY | Status::CREATED) => ContainerStatus::Created,
        Some(Status::RUNNING | Status::PAUSED | Status::RESTARTING | Status::STOPPING) => ContainerStatus::Running,
        Some(Status::REMOVING | Status::EXITED | Status::DEAD) => {
            let code = state.exit_code.unwrap_or(0);
            // The engine also sets the flag when a child process ran out of memory earlier.
            let oom_killed = state.oom_killed.unwrap_or(false) && code == SIGKILL_EXIT_CODE;
            ContainerStatus::Exited { code, oom_killed }
        }
    }
}

/// A mount of the orchestrator's own container.
pub(super) fn own_mount(point: MountPoint) -> Option<OwnMount> {
    let source = point.source.filter(|source| source.starts_with('/')).map(Into::into);
    point.destination.map(|destination| OwnMount { destination: destination.into(), source })
}
