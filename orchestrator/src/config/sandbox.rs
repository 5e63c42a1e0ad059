//! Settings of where jobs run.

use super::{ConfigError, layers::Layers};

/// What makes the sandboxes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum SandboxMode {
    /// Docker.
    Docker,
    /// Nothing: no full job runs, by the operator's choice.
    Disabled,
}

/// How a worker reaches the orchestrator.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Transport {
    /// A socket of its own, no network.
    Unix,
}

/// Where jobs run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct SandboxSettings {
    /// What makes them.
    pub mode: SandboxMode,
    /// The default job image.
    pub image: String,
    /// Further images that a job may ask for.
    pub images: Vec<String>,
    /// The engine's own default when left out.
    pub runtime: Option<String>,
    /// Whether jobs may open datagram sockets of INET and INET6, whose buffers cgroup v1 does not count.
    pub inet_datagrams: bool,
    /// How a worker reaches the orchestrator.
    pub transport: Transport,
    /// `DOCKER_HOST`; the engine's usual socket when left out.
    pub docker_host: Option<String>,
}

pub(super) fn read(l: &mut Layers<'_>) -> Result<SandboxSettings, ConfigError> {
    let modes = [("docker", Some(SandboxMode::Docker)), ("swarm", None), ("disabled", Some(SandboxMode::Disabled))];
    let mode = l.choice("sandbox.mode", "docker", &modes)?;
    let mode = mode.ok_or_else(|| l.wrong("sandbox.mode", "swarm is not available yet: use docker or disabled"))?;
    let transport = l.choice("sandbox.transport", "unix", &[("unix", Some(Transport::Unix)), ("tcp", None)])?;
    let transport = transport.ok_or_else(|| l.wrong("sandbox.transport", "tcp is not available yet: use unix"))?;
    Ok(SandboxSettings {
        mode,
        image: l.text("sandbox.image", "gantry-worker:latest")?,
        images: l.list("sandbox.images")?,
        runtime: l.optional("sandbox.runtime")?,
        inet_datagrams: l.flag("sandbox.inet_datagrams", false)?,
        transport,
        docker_host: docker_host(l)?,
    })
}

/// The schemes that the engine's client speaks.
const DOCKER_SCHEMES: [&str; 3] = ["unix://", "tcp://", "http://"];

fn docker_host(l: &mut Layers<'_>) -> Result<Option<String>, ConfigError> {
    let host = l.optional("sandbox.docker_host")?;
    let understood = |host: &String| {
        DOCKER_SCHEMES.iter().any(|scheme| host.strip_prefix(scheme).is_some_and(|address| !address.is_empty()))
    };
    match host {
        Some(host) if !understood(&host) => {
            Err(l.wrong("sandbox.docker_host", "must be an engine's address: unix:///path or tcp://host:port"))
        }
        host => Ok(host),
    }
}
