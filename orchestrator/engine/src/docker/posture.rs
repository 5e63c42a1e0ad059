//! The posture: all settings of a container that are verified before it starts.
//!
//! One type is both requested and observed: the engine's inspect response is read into it and compared field by field.
//! Owns the comparison and the digest. Pure: never calls the engine, never decides what a job gets.

use std::collections::{BTreeMap, BTreeSet};

use base::digest::sha256_hex;
use serde::Serialize;
use serde_json::{Map, Value};

use crate::EngineError;

/// The first port that a process without privileges can listen on. Set for jobs with hosts.
pub(super) const UNPRIVILEGED_PORTS: &str = "net.ipv4.ip_unprivileged_port_start";

/// Characters of `found` and `wanted` in a mismatch, which may contain a whole seccomp profile.
const MAX_MISMATCH_CHARS: usize = 300;

/// The settings, under their names in an inspect response.
#[derive(Debug, Clone, PartialEq, Serialize)]
#[expect(clippy::struct_excessive_bools, reason = "the engine's own fields, compared as they are")]
pub(super) struct Posture {
    #[serde(rename = "Image")]
    pub(super) image_id: String,
    #[serde(rename = "Config.Image")]
    pub(super) image: String,
    #[serde(rename = "Config.Hostname")]
    pub(super) hostname: String,
    #[serde(rename = "Config.Domainname")]
    pub(super) domainname: String,
    #[serde(rename = "Config.User")]
    pub(super) user: String,
    #[serde(rename = "Config.Entrypoint")]
    pub(super) entrypoint: Vec<String>,
    #[serde(rename = "Config.Cmd")]
    pub(super) cmd: Vec<String>,
    /// `NAME=value`, or `NAME` for a variable of the image that is removed; sorted.
    #[serde(rename = "Config.Env")]
    pub(super) env: Vec<String>,
    #[serde(rename = "Config.WorkingDir")]
    pub(super) working_dir: String,
    #[serde(rename = "Config.Healthcheck")]
    pub(super) healthcheck: Vec<String>,
    /// Volumes that the image declares; none are allowed, since each would be an additional mount.
    #[serde(rename = "Config.Volumes")]
    pub(super) volumes: Vec<String>,
    #[serde(rename = "Config.StopSignal")]
    pub(super) stop_signal: String,
    #[serde(rename = "Config.Tty")]
    pub(super) tty: bool,
    #[serde(rename = "Config.OpenStdin")]
    pub(super) open_stdin: bool,
    /// Standard input ends with the first attachment.
    #[serde(rename = "Config.StdinOnce")]
    pub(super) stdin_once: bool,
    /// Labels that start with `gantry.`, except the time of creation.
    #[serde(rename = "Config.Labels")]
    pub(super) labels: BTreeMap<String, String>,
    #[serde(rename = "HostConfig.NetworkMode")]
    pub(super) network_mode: String,
    /// Attached networks other than `none`.
    #[serde(rename = "NetworkSettings.Networks")]
    pub(super) networks: Vec<String>,
    /// Name servers: one without a listener, so that the host's are not copied into `resolv.conf`.
    #[serde(rename = "HostConfig.Dns")]
    pub(super) dns: Vec<String>,
    #[serde(rename = "HostConfig.DnsSearch")]
    pub(super) dns_search: Vec<String>,
    /// Names that resolve without a name server, as `name:address`; sorted.
    #[serde(rename = "HostConfig.ExtraHosts")]
    pub(super) extra_hosts: Vec<String>,
    /// Kernel settings of the container's network namespace.
    #[serde(rename = "HostConfig.Sysctls")]
    pub(super) sysctls: BTreeMap<String, String>,
    #[serde(rename = "HostConfig.Privileged")]
    pub(super) privileged: bool,
    #[serde(rename = "HostConfig.ReadonlyRootfs")]
    pub(super) readonly_rootfs: bool,
    #[serde(rename = "HostConfig.CapDrop")]
    pub(super) cap_drop: Vec<String>,
    /// Sorted; contains the seccomp profile.
    #[serde(rename = "HostConfig.SecurityOpt")]
    pub(super) security_opt: Vec<String>,
    #[serde(rename = "HostConfig.MaskedPaths")]
    pub(super) masked_paths: Vec<String>,
    #[serde(rename = "HostConfig.ReadonlyPaths")]
    pub(super) readonly_paths: Vec<String>,
    #[serde(rename = "HostConfig.Tmpfs")]
    pub(super) tmpfs: BTreeMap<String, String>,
    /// Sorted by destination.
    #[serde(rename = "Mounts")]
    pub(super) mounts: Vec<ContainerMount>,
    #[serde(rename = "HostConfig.Memory")]
    pub(super) memory_bytes: i64,
    #[serde(rename = "HostConfig.MemorySwap")]
    pub(super) memory_swap_bytes: i64,
    #[serde(rename = "HostConfig.NanoCpus")]
    pub(super) nano_cpus: i64,
    #[serde(rename = "HostConfig.PidsLimit")]
    pub(super) pids_limit: i64,
    #[serde(rename = "HostConfig.Ulimits")]
    pub(super) ulimits: BTreeMap<String, Ulimit>,
    #[serde(rename = "HostConfig.ShmSize")]
    pub(super) shm_bytes: i64,
    #[serde(rename = "HostConfig.IpcMode")]
    pub(super) ipc_mode: String,
    #[serde(rename = "HostConfig.CgroupnsMode")]
    pub(super) cgroupns_mode: String,
    #[serde(rename = "HostConfig.RestartPolicy")]
    pub(super) restart_policy: String,
    #[serde(rename = "HostConfig.LogConfig.Type")]
    pub(super) log_driver: String,
    #[serde(rename = "HostConfig.LogConfig.Config")]
    pub(super) log_options: BTreeMap<String, String>,
    #[serde(rename = "HostConfig.Init")]
    pub(super) init: bool,
    #[serde(rename = "HostConfig.Runtime")]
    pub(super) runtime: String,
    /// Every other setting of the host configuration that is not empty, zero or false, as `HostConfig.<name>`. None is
    /// allowed, so that an unknown setting is refused rather than overlooked.
    #[serde(flatten)]
    pub(super) others: BTreeMap<String, Value>,
}

#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize)]
pub(super) struct ContainerMount {
    pub(super) destination: String,
    pub(super) source: String,
    pub(super) kind: String,
    pub(super) writable: bool,
    pub(super) propagation: String,
}

/// A resource limit of a process.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
pub(super) struct Ulimit {
    pub(super) soft: i64,
    pub(super) hard: i64,
}

impl Posture {
    /// Compares the required settings (`self`) with the observed ones. The first difference is the error.
    pub(super) fn check(&self, observed: &Self) -> Result<(), EngineError> {
        compare(&fields(self)?, &fields(observed)?)
    }

    /// SHA-256 in hex of the settings that all containers of this posture share, without those of a job, an image or
    /// limits.
    pub(super) fn digest(&self) -> Result<String, EngineError> {
        let mut shared = self.clone();
        for text in [&mut shared.image_id, &mut shared.image, &mut shared.hostname] {
            text.clear();
        }
        shared.cmd.clear();
        shared.extra_hosts.clear();
        shared.sysctls.remove(UNPRIVILEGED_PORTS);
        shared.labels.clear();
        // Without removed variables, which depend on the image, and without values, which depend on the job.
        shared.env.retain(|entry| entry.contains('=') && env_name(entry) != "TRACEPARENT");
        shared.env = shared.env.iter().map(|entry| env_name(entry).to_owned()).collect();
        for mount in &mut shared.mounts {
            mount.source.clear();
        }
        for limit in
            [&mut shared.memory_bytes, &mut shared.memory_swap_bytes, &mut shared.nano_cpus, &mut shared.pids_limit]
        {
            *limit = 0;
        }
        shared.ulimits.insert("fsize".to_owned(), Ulimit { soft: 0, hard: 0 });
        let text = Value::Object(fields(&shared)?).to_string();
        Ok(sha256_hex(text.as_bytes()))
    }
}

/// The settings that can change while a container runs (`docker update`, `docker network connect`), under their names
/// in an inspect response. Those of an adopted container are compared with its job's row; all others were compared
/// before its start.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub(super) struct LiveSettings {
    #[serde(rename = "HostConfig.Memory")]
    pub(super) memory_bytes: i64,
    #[serde(rename = "HostConfig.MemorySwap")]
    pub(super) memory_swap_bytes: i64,
    #[serde(rename = "HostConfig.NanoCpus")]
    pub(super) nano_cpus: i64,
    #[serde(rename = "HostConfig.PidsLimit")]
    pub(super) pids_limit: i64,
    #[serde(rename = "HostConfig.RestartPolicy")]
    pub(super) restart_policy: String,
    /// Attached networks other than `none`.
    #[serde(rename = "NetworkSettings.Networks")]
    pub(super) networks: Vec<String>,
}

impl LiveSettings {
    /// Compares the required settings (`self`) with the observed ones. The first difference is the error.
    pub(super) fn check(&self, observed: &Self) -> Result<(), EngineError> {
        compare(&fields(self)?, &fields(observed)?)
    }
}

/// The least specific field: the labels contain the posture's digest, which changes with any other field.
const COMPARED_LAST: &str = "Config.Labels";

fn compare(wanted: &Map<String, Value>, found: &Map<String, Value>) -> Result<(), EngineError> {
    let names: BTreeSet<(bool, &String)> =
        wanted.keys().chain(found.keys()).map(|name| (name == COMPARED_LAST, name)).collect();
    for (_, field) in names {
        let (wanted, found) = (wanted.get(field), found.get(field));
        if wanted != found {
            let (wanted, found) = only_differences(wanted, found);
            return Err(EngineError::PostureMismatch { field: field.clone(), found, wanted });
        }
    }
    Ok(())
}

/// The fields by name. A posture that cannot be compared is refused.
fn fields<T: Serialize>(settings: &T) -> Result<Map<String, Value>, EngineError> {
    match serde_json::to_value(settings) {
        Ok(Value::Object(fields)) => Ok(fields),
        Ok(_) => Err(EngineError::Refused("the posture has no fields to compare".to_owned())),
        Err(error) => Err(EngineError::Refused(format!("the posture cannot be compared: {error}"))),
    }
}

/// The name in `NAME=value`.
pub(super) fn env_name(entry: &str) -> &str {
    entry.split_once('=').map_or(entry, |(name, _)| name)
}

/// Both values as text, `wanted` first. Of two lists only the items that the other one lacks, so that the message is
/// short.
fn only_differences(wanted: Option<&Value>, found: Option<&Value>) -> (String, String) {
    match (wanted, found) {
        (Some(Value::Array(wanted)), Some(Value::Array(found))) => {
            (items_beyond(wanted, found), items_beyond(found, wanted))
        }
        (wanted, found) => (text(wanted), text(found)),
    }
}

fn items_beyond(items: &[Value], others: &[Value]) -> String {
    let beyond: Vec<Value> = items.iter().filter(|item| !others.contains(item)).cloned().collect();
    if beyond.is_empty() { text(Some(&Value::Array(items.to_vec()))) } else { text(Some(&Value::Array(beyond))) }
}

fn text(value: Option<&Value>) -> String {
    let whole = value.map_or_else(|| "nothing".to_owned(), Value::to_string);
    match whole.char_indices().nth(MAX_MISMATCH_CHARS) {
        Some((at, _)) => format!("{}… ({} bytes)", &whole[..at], whole.len()),
        None => whole,
    }
}
