//! Settings of the sandbox that jobs run in.

use super::{
    ConfigError,
    reader::ConfigReader,
    setting::{Kind, SettingSpec, setting, settings},
    setting_value::{RawValue, SettingValue, choose},
};

/// The sandbox backend.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// Docker.
    Docker,
    /// Disabled by the operator: no jobs run.
    Disabled,
}

impl SettingValue for SandboxMode {
    const KIND: Kind = Kind::Choice(&["docker", "disabled"]);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        let swarm = Err("swarm is not available yet: use docker or disabled");
        choose(raw, &[("docker", Ok(Self::Docker)), ("swarm", swarm), ("disabled", Ok(Self::Disabled))])
    }
}

/// How a worker reaches the orchestrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A Unix socket per container, without a network.
    Unix,
}

impl SettingValue for Transport {
    const KIND: Kind = Kind::Choice(&["unix"]);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        choose(raw, &[("unix", Ok(Self::Unix)), ("tcp", Err("tcp is not available yet: use unix"))])
    }
}

settings! {
    /// Where jobs run.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct SandboxSettings {
        /// What creates the sandboxes of jobs: `docker`, or `disabled` to start no containers.
        pub mode: SandboxMode = setting("sandbox.mode").variable("GANTRY_SANDBOX").default("docker").flag("sandbox", "MODE");
        /// Default job image.
        pub image: String = setting("sandbox.image").default("gantry-worker:latest").flag("sandbox-image", "IMAGE");
        /// Further images that a job may request.
        pub images: Vec<String> = setting("sandbox.images");
        /// Container runtime of jobs, such as `runc` or `runsc`; the engine's default when not set.
        pub runtime: Option<String> = setting("sandbox.runtime").flag("sandbox-runtime", "NAME");
        /// Allow jobs to open datagram (UDP) sockets. Their buffers are not counted under cgroup v1.
        pub inet_datagrams: bool = setting("sandbox.inet_datagrams").default("false");
        /// How a worker reaches the orchestrator: `unix`.
        pub transport: Transport = setting("sandbox.transport").default("unix");
        /// Address of the container engine, such as `unix:///var/run/docker.sock`; the engine's usual socket when not set.
        pub docker_host: Option<String> = setting("sandbox.docker_host").variable("DOCKER_HOST");
    }
}

/// URL schemes of the engine's client.
const DOCKER_SCHEMES: [&str; 3] = ["unix://", "tcp://", "http://"];

pub(super) fn read(reader: &mut ConfigReader<'_>) -> Result<SandboxSettings, ConfigError> {
    let settings = SandboxSettings::read(reader)?;
    let has_scheme = |host: &String| {
        DOCKER_SCHEMES.iter().any(|scheme| host.strip_prefix(scheme).is_some_and(|address| !address.is_empty()))
    };
    if settings.docker_host.as_ref().is_some_and(|host| !has_scheme(host)) {
        return Err(reader.invalid("sandbox.docker_host", "must be an engine address: unix:///path or tcp://host:port"));
    }
    Ok(settings)
}
