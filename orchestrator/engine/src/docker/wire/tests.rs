//! The posture against inspect responses: a container as requested passes, and each altered field is refused by its
//! name.

use rstest::rstest;
use serde_json::{Value, json};

use super::*;
use crate::{
    EngineError,
    docker::spec::tests::{job_posture, job_spec},
};

fn wanted() -> Posture {
    let image = ImageFacts { id: "sha256:1234".to_owned(), ..ImageFacts::default() };
    job_posture(&job_spec(), &image, "runc")
}

/// The inspect response for a container that was created as requested, as Docker 20.10 sends it.
fn inspected() -> Value {
    let wanted = wanted();
    let body = serde_json::to_value(create_body(&wanted, "2026-01-01T00:00:00Z")).unwrap();
    let mut host = body["HostConfig"].clone();
    for (name, value) in [
        ("Binds", Value::Null),
        ("CapAdd", Value::Null),
        ("ConsoleSize", json!([0, 0])),
        ("CpuShares", json!(0)),
        ("Devices", json!([])),
        ("OomKillDisable", json!(false)),
        ("PidMode", json!("")),
        ("PortBindings", json!({})),
        ("PublishAllPorts", json!(false)),
        ("UTSMode", json!("")),
        ("VolumesFrom", Value::Null),
    ] {
        host[name] = value;
    }
    let mounts: Vec<Value> = wanted
        .mounts
        .iter()
        .map(|mount| {
            json!({"Type": mount.kind, "Source": mount.source, "Destination": mount.destination, "Mode": "",
                   "RW": mount.writable, "Propagation": mount.propagation})
        })
        .collect();
    json!({
        "Id": "abc",
        "Image": wanted.image_id,
        "Name": "/gantry-job-x-1",
        "Config": body,
        "HostConfig": host,
        "Mounts": mounts,
        "NetworkSettings": {"Networks": {"none": {}}},
        "State": {"Status": "created", "ExitCode": 0, "OOMKilled": false},
    })
}

fn check(inspected: Value) -> Result<(), EngineError> {
    wanted().check(&observed_posture(&serde_json::from_value(inspected).unwrap()))
}

#[test]
fn a_container_as_requested_passes() {
    assert_eq!(check(inspected()), Ok(()));
}

#[rstest]
#[case("/HostConfig/NetworkMode", json!("bridge"), "HostConfig.NetworkMode")]
#[case("/HostConfig/NetworkMode", json!("host"), "HostConfig.NetworkMode")]
#[case("/NetworkSettings/Networks/bridge", json!({}), "NetworkSettings.Networks")]
#[case("/Config/User", json!(""), "Config.User")]
#[case("/Config/User", json!("10001"), "Config.User")]
#[case("/Config/Entrypoint", json!(["/bin/sh"]), "Config.Entrypoint")]
#[case("/Config/Entrypoint", Value::Null, "Config.Entrypoint")]
#[case("/Config/Cmd", json!(["-c", "true"]), "Config.Cmd")]
#[case("/Config/Env/8", json!("AWS_SECRET_ACCESS_KEY=x"), "Config.Env")]
#[case("/Config/Env/0", json!("GANTRY_JOB_ID=other"), "Config.Env")]
#[case("/Config/Env", Value::Null, "Config.Env")]
#[case("/Config/WorkingDir", json!("/"), "Config.WorkingDir")]
#[case("/Config/Healthcheck", json!({"Test": ["CMD", "x"]}), "Config.Healthcheck")]
#[case("/Config/Volumes", json!({"/data": {}}), "Config.Volumes")]
#[case("/Config/StopSignal", json!("SIGKILL"), "Config.StopSignal")]
#[case("/Config/Tty", json!(true), "Config.Tty")]
#[case("/Config/OpenStdin", json!(true), "Config.OpenStdin")]
#[case("/Config/StdinOnce", json!(true), "Config.StdinOnce")]
#[case("/Config/Hostname", json!("other"), "Config.Hostname")]
#[case("/Config/Domainname", json!("x"), "Config.Domainname")]
#[case("/Config/Image", json!("other"), "Config.Image")]
#[case("/Config/Labels/gantry.owner", json!("eve"), "Config.Labels")]
#[case("/Config/Labels/gantry.attempt", json!("1"), "Config.Labels")]
#[case("/Config/Labels/gantry.new", json!("x"), "Config.Labels")]
#[case("/Image", json!("sha256:9999"), "Image")]
#[case("/HostConfig/Privileged", json!(true), "HostConfig.Privileged")]
#[case("/HostConfig/Privileged", Value::Null, "HostConfig.Privileged")]
#[case("/HostConfig/ReadonlyRootfs", json!(false), "HostConfig.ReadonlyRootfs")]
#[case("/HostConfig/CapDrop", json!(["NET_RAW"]), "HostConfig.CapDrop")]
#[case("/HostConfig/CapDrop", Value::Null, "HostConfig.CapDrop")]
#[case("/HostConfig/CapAdd", json!(["SYS_ADMIN"]), "HostConfig.CapAdd")]
#[case("/HostConfig/SecurityOpt/0", json!("seccomp=unconfined"), "HostConfig.SecurityOpt")]
#[case("/HostConfig/SecurityOpt/1", json!("seccomp=unconfined"), "HostConfig.SecurityOpt")]
#[case("/HostConfig/SecurityOpt/1", json!(format!("seccomp={} ", crate::docker::seccomp::PROFILE)), "HostConfig.SecurityOpt")]
#[case("/HostConfig/SecurityOpt/2", json!("apparmor=unconfined"), "HostConfig.SecurityOpt")]
#[case("/HostConfig/SecurityOpt", Value::Null, "HostConfig.SecurityOpt")]
#[case("/HostConfig/MaskedPaths", json!([]), "HostConfig.MaskedPaths")]
#[case("/HostConfig/MaskedPaths", Value::Null, "HostConfig.MaskedPaths")]
#[case("/HostConfig/ReadonlyPaths", json!([]), "HostConfig.ReadonlyPaths")]
#[case("/HostConfig/Tmpfs/~1tmp", json!("rw,exec"), "HostConfig.Tmpfs")]
#[case("/HostConfig/Tmpfs/~1etc", json!(""), "HostConfig.Tmpfs")]
#[case("/HostConfig/Tmpfs", Value::Null, "HostConfig.Tmpfs")]
#[case("/Mounts/0/RW", json!(true), "Mounts")]
#[case("/Mounts/0/Source", json!("/"), "Mounts")]
#[case("/Mounts/1/Destination", json!("/etc"), "Mounts")]
#[case("/Mounts/1/Type", json!("volume"), "Mounts")]
#[case("/Mounts/1/Propagation", json!("rshared"), "Mounts")]
#[case("/Mounts/2", json!({"Type": "bind", "Source": "/var/run/docker.sock", "Destination": "/s"}), "Mounts")]
#[case("/Mounts", json!([]), "Mounts")]
#[case("/HostConfig/Memory", json!(0), "HostConfig.Memory")]
#[case("/HostConfig/MemorySwap", json!(-1), "HostConfig.MemorySwap")]
#[case("/HostConfig/NanoCpus", json!(0), "HostConfig.NanoCpus")]
#[case("/HostConfig/PidsLimit", Value::Null, "HostConfig.PidsLimit")]
#[case("/HostConfig/PidsLimit", json!(-1), "HostConfig.PidsLimit")]
#[case("/HostConfig/Ulimits/0/Hard", json!(-1), "HostConfig.Ulimits")]
#[case("/HostConfig/Ulimits", Value::Null, "HostConfig.Ulimits")]
#[case("/HostConfig/ShmSize", json!(1), "HostConfig.ShmSize")]
#[case("/HostConfig/IpcMode", json!("host"), "HostConfig.IpcMode")]
#[case("/HostConfig/IpcMode", json!("shareable"), "HostConfig.IpcMode")]
#[case("/HostConfig/CgroupnsMode", json!("host"), "HostConfig.CgroupnsMode")]
#[case("/HostConfig/RestartPolicy/Name", json!("always"), "HostConfig.RestartPolicy")]
#[case("/HostConfig/LogConfig/Type", json!("none"), "HostConfig.LogConfig.Type")]
#[case("/HostConfig/LogConfig/Config", json!({}), "HostConfig.LogConfig.Config")]
#[case("/HostConfig/Init", json!(true), "HostConfig.Init")]
#[case("/HostConfig/Dns", json!(["1.1.1.1"]), "HostConfig.Dns")]
#[case("/HostConfig/Dns", Value::Null, "HostConfig.Dns")]
#[case("/HostConfig/DnsSearch", json!(["corp.example"]), "HostConfig.DnsSearch")]
#[case("/HostConfig/Sysctls", Value::Null, "HostConfig.Sysctls")]
#[case("/HostConfig/Sysctls/net.ipv4.tcp_rmem", json!("4096 131072 6291456"), "HostConfig.Sysctls")]
#[case("/HostConfig/Runtime", json!("other"), "HostConfig.Runtime")]
#[case("/HostConfig", Value::Null, "HostConfig.CapDrop")]
#[case("/Config", Value::Null, "Config.Entrypoint")]
fn an_altered_field_is_refused_by_its_name(#[case] at: &str, #[case] value: Value, #[case] field: &str) {
    refused_by(at, value, field);
}

/// Settings that the posture has no field for.
#[rstest]
#[case("Annotations", json!({"run.oci.keep_original_groups": "1"}))]
#[case("AutoRemove", json!(true))]
#[case("Binds", json!(["/:/host"]))]
#[case("CgroupParent", json!("/other"))]
#[case("CpuShares", json!(2))]
#[case("DeviceCgroupRules", json!(["c *:* rwm"]))]
#[case("DeviceRequests", json!([{"Driver": "nvidia"}]))]
#[case("Devices", json!([{"PathOnHost": "/dev/kvm"}]))]
#[case("ExtraHosts", json!(["a:1.2.3.4"]))]
#[case("GroupAdd", json!(["0"]))]
#[case("Links", json!(["other"]))]
#[case("OomKillDisable", json!(true))]
#[case("OomScoreAdj", json!(-500))]
#[case("PidMode", json!("host"))]
#[case("PortBindings", json!({"80/tcp": [{"HostPort": "80"}]}))]
#[case("PublishAllPorts", json!(true))]
#[case("StorageOpt", json!({"size": "1G"}))]
#[case("Sysctls", json!({"net.ipv4.ip_forward": "1"}))]
#[case("UTSMode", json!("host"))]
#[case("UsernsMode", json!("host"))]
#[case("VolumeDriver", json!("x"))]
#[case("VolumesFrom", json!(["other"]))]
fn a_setting_that_was_not_requested_is_refused(#[case] name: &str, #[case] value: Value) {
    refused_by(&format!("/HostConfig/{name}"), value, &format!("HostConfig.{name}"));
}

fn refused_by(at: &str, value: Value, field: &str) {
    let mut altered = inspected();
    put(&mut altered, at, value);
    match check(altered) {
        Err(EngineError::PostureMismatch { field: found, .. }) => assert_eq!(found, field),
        other => panic!("{at} altered: {other:?}"),
    }
}

/// Sets the value at a JSON pointer, which need not exist.
fn put(document: &mut Value, pointer: &str, value: Value) {
    let (parent, last) = pointer.rsplit_once('/').unwrap();
    let last = last.replace("~1", "/");
    match document.pointer_mut(parent).unwrap() {
        Value::Array(items) => match last.parse::<usize>().unwrap() {
            at if at < items.len() => items[at] = value,
            _ => items.push(value),
        },
        Value::Object(fields) => drop(fields.insert(last, value)),
        other => panic!("{pointer} is in {other}"),
    }
}

/// Of an adopted container only the settings that can change while it runs are checked, not those from today's
/// configuration.
#[rstest]
#[case::memory("/HostConfig/Memory", json!(1), Some("HostConfig.Memory"))]
#[case::swap("/HostConfig/MemorySwap", json!(-1), Some("HostConfig.MemorySwap"))]
#[case::cpus("/HostConfig/NanoCpus", json!(0), Some("HostConfig.NanoCpus"))]
#[case::pids("/HostConfig/PidsLimit", Value::Null, Some("HostConfig.PidsLimit"))]
#[case::restarts("/HostConfig/RestartPolicy/Name", json!("always"), Some("HostConfig.RestartPolicy"))]
#[case::a_network("/NetworkSettings/Networks/bridge", json!({}), Some("NetworkSettings.Networks"))]
#[case::unreadable("/HostConfig", Value::Null, Some("HostConfig.Memory"))]
#[case::runtime("/HostConfig/Runtime", json!("runsc"), None)]
#[case::image("/Config/Image", json!("gantry-worker:before"), None)]
#[case::seccomp("/HostConfig/SecurityOpt/1", json!("seccomp={}"), None)]
#[case::init("/HostConfig/Init", json!(true), None)]
#[case::ulimits("/HostConfig/Ulimits", json!([]), None)]
#[case::environment("/Config/Env/8", json!("NODE_VERSION=20"), None)]
fn an_adopted_container_is_checked_for_live_settings_only(
    #[case] at: &str,
    #[case] value: Value,
    #[case] refused: Option<&str>,
) {
    let mut altered = inspected();
    put(&mut altered, at, value);
    let seen = live_settings(&serde_json::from_value(altered).unwrap());
    match (spec::live_settings(&job_spec().resources, "runc").unwrap().check(&seen), refused) {
        (Ok(()), None) => {}
        (Err(EngineError::PostureMismatch { field, .. }), Some(wanted)) => assert_eq!(field, wanted),
        other => panic!("{at} altered: {other:?}"),
    }
}

#[test]
fn the_labels_are_compared_last() {
    let mut altered = inspected();
    put(&mut altered, "/Config/Labels/gantry.posture", json!("0"));
    put(&mut altered, "/HostConfig/Runtime", json!("runsc"));
    let error = check(altered).unwrap_err().to_string();
    assert!(error.contains("HostConfig.Runtime"), "{error}");
}

#[test]
fn both_spellings_of_no_new_privileges_are_the_same() {
    let mut spelled = inspected();
    put(&mut spelled, "/HostConfig/SecurityOpt/0", json!("no-new-privileges:true"));
    assert_eq!(check(spelled), Ok(()));
}

#[test]
fn a_mount_from_the_engines_own_directory_passes() {
    let mut volume = inspected();
    put(&mut volume, "/Mounts/0/Propagation", json!("rslave"));
    assert_eq!(check(volume), Ok(()));
}

#[test]
fn labels_of_the_image_are_ignored() {
    let mut labelled = inspected();
    put(&mut labelled, "/Config/Labels/org.opencontainers.image.title", json!("x"));
    assert_eq!(check(labelled), Ok(()));
}

#[test]
fn a_mismatch_shows_the_observed_value_in_a_short_message() {
    let mut altered = inspected();
    put(&mut altered, "/Config/Env/8", json!("NODE_VERSION=20"));
    put(&mut altered, "/Config/Healthcheck", Value::Null);
    let message = check(altered.clone()).unwrap_err().to_string();
    assert_eq!(
        message.split_once(", must be ").unwrap().0,
        r#"the container does not meet the posture: Config.Env is ["NODE_VERSION=20"]"#
    );

    let mut altered = inspected();
    put(&mut altered, "/HostConfig/SecurityOpt", json!(["no-new-privileges"]));
    assert!(check(altered).unwrap_err().to_string().len() < 1000);
}

#[rstest]
#[case(json!({"Status": "created", "ExitCode": 0}), ContainerStatus::Created)]
#[case(json!({"Status": "running"}), ContainerStatus::Running)]
#[case(json!({"Status": "paused"}), ContainerStatus::Running)]
#[case(json!({"Status": "exited", "ExitCode": 3}), ContainerStatus::Exited { code: 3, oom_killed: false })]
#[case(json!({"Status": "exited", "ExitCode": 0, "OOMKilled": true}), ContainerStatus::Exited { code: 0, oom_killed: false })]
#[case(json!({"Status": "exited", "ExitCode": 137, "OOMKilled": true}), ContainerStatus::Exited { code: 137, oom_killed: true })]
#[case(json!({"Status": "dead", "ExitCode": 137}), ContainerStatus::Exited { code: 137, oom_killed: false })]
fn a_state_is_translated(#[case] state: Value, #[case] wanted: ContainerStatus) {
    let mut document = inspected();
    put(&mut document, "/State", state);
    assert_eq!(view(&serde_json::from_value(document).unwrap()).status, wanted);
}
