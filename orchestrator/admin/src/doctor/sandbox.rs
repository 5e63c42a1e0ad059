//! Checks of `gantry doctor` about the container engine, the runtime, the job image and the posture.

use std::path::Path;

use protocol::InstanceId;

use cli::Check;
use config::{Config, SandboxMode};
use engine::{Docker, DockerSettings, Engine as _, EngineFacts, ReadinessReason, SandboxReadiness};

/// Probes the engine and returns the results.
pub(super) async fn checks(config: &Config) -> Vec<Check> {
    sandbox(&readiness(config).await, config)
}

/// Probes the engine as the server does, with a separate instance id, so that the server's containers are not affected.
async fn readiness(config: &Config) -> SandboxReadiness {
    match config.sandbox.mode {
        SandboxMode::Disabled => SandboxReadiness::NotReady {
            reason: ReadinessReason::DisabledByConfig,
            detail: "GANTRY_SANDBOX is disabled".to_owned(),
        },
        SandboxMode::Docker => {
            let engine = Docker::connect(DockerSettings::of(config, InstanceId::generate()));
            let missing = missing_directories(&config.run_dir);
            let readiness = engine.probe().await;
            // A directory that has been used meanwhile is not empty and stays.
            missing.iter().all(|directory| std::fs::remove_dir(directory).is_ok());
            readiness
        }
    }
}

/// The directories that creating `directory` would create, the innermost first.
fn missing_directories(directory: &Path) -> Vec<&Path> {
    directory.ancestors().take_while(|directory| !directory.exists()).collect()
}

/// The result of a probe as checks. Checks after the first failure have not been made.
fn sandbox(readiness: &SandboxReadiness, config: &Config) -> Vec<Check> {
    const NAMES: [&str; 4] = ["engine", "runtime", "image", "posture"];
    let (reason, detail) = match readiness {
        SandboxReadiness::Ready(facts) => {
            let version = format!("{} {} (API {}) on {}", facts.engine, facts.version, facts.api_version, facts.node);
            let mut checks = vec![
                Check::ok("engine", version),
                Check::ok("runtime", runtimes(facts)),
                Check::ok("image", format!("{} ({})", config.sandbox.image, facts.image_id)),
                Check::ok("posture", facts.posture.as_str()),
            ];
            checks.extend(memory(&facts.cgroup_version, config.sandbox.inet_datagrams));
            return checks;
        }
        SandboxReadiness::NotReady { reason, detail } => (*reason, detail),
    };
    let (failed_at, advice) = match reason {
        ReadinessReason::DisabledByConfig => {
            return vec![Check::note("sandbox", detail, "no jobs run; set GANTRY_SANDBOX=docker to run jobs")];
        }
        ReadinessReason::EngineUnreachable => {
            (0, "start Docker, let this user reach its socket, or set DOCKER_HOST".to_owned())
        }
        ReadinessReason::RuntimeMissing => {
            (1, "install the runtime and name it in Docker's daemon.json, or change GANTRY_SANDBOX_RUNTIME".to_owned())
        }
        ReadinessReason::ImageMissing => (2, format!("build it with docker/up.sh, or pull {}", config.sandbox.image)),
        ReadinessReason::PostureUnsupported => {
            (3, "jobs run only with this posture: use another engine or image, or update them".to_owned())
        }
    };
    let check = |(index, name): (usize, &'static str)| match index.cmp(&failed_at) {
        std::cmp::Ordering::Less => Check::ok(name, "reached"),
        std::cmp::Ordering::Equal => Check::failed(name, detail.clone(), advice.clone()),
        std::cmp::Ordering::Greater => Check::not_checked(name),
    };
    NAMES.into_iter().enumerate().map(check).collect()
}

/// The runtime that jobs use, and the other runtimes of the engine.
fn runtimes(facts: &EngineFacts) -> String {
    let others: Vec<_> = facts.runtimes.iter().map(String::as_str).filter(|name| *name != facts.runtime).collect();
    if others.is_empty() {
        return facts.runtime.clone();
    }
    format!("{} (the engine also has {}; select one with GANTRY_SANDBOX_RUNTIME)", facts.runtime, others.join(", "))
}

/// Whether a job's memory limit covers socket buffers.
fn memory(cgroup_version: &str, inet_datagrams: bool) -> Option<Check> {
    match cgroup_version {
        "2" => Some(Check::ok("memory", "cgroup v2: a job's memory limit counts its socket buffers")),
        "1" => {
            let sockets = if inet_datagrams { "TCP and UDP sockets" } else { "TCP sockets" };
            let found = format!("cgroup v1: the buffers of {sockets} are outside a job's memory limit");
            let advice = "TCP buffers are kept small, but many sockets can still use several times limits.memory_mb; for untrusted jobs, boot the \
                          engine's machine with cgroup v2 (systemd.unified_cgroup_hierarchy=1)";
            Some(Check::note("memory", found, advice))
        }
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use base::Environment;
    use config::Sources;

    use cli::Verdict;

    fn config() -> Config {
        Config::load(&Environment::from_pairs([("HOME", "/home/ada")]), Sources::default()).unwrap()
    }

    #[rstest]
    #[case(ReadinessReason::EngineUnreachable, "engine! runtime- image- posture-")]
    #[case(ReadinessReason::RuntimeMissing, "engine+ runtime! image- posture-")]
    #[case(ReadinessReason::ImageMissing, "engine+ runtime+ image! posture-")]
    #[case(ReadinessReason::PostureUnsupported, "engine+ runtime+ image+ posture!")]
    #[case(ReadinessReason::DisabledByConfig, "sandbox~")]
    fn each_reason_fails_its_own_check(#[case] reason: ReadinessReason, #[case] wanted: &str) {
        let readiness = SandboxReadiness::NotReady { reason, detail: "why".into() };
        let checks = sandbox(&readiness, &config());
        let lines = checks.iter().map(|check| {
            let mark = match check.verdict {
                Verdict::Ok => '+',
                Verdict::Note => '~',
                Verdict::Failed => '!',
                Verdict::NotChecked => '-',
            };
            format!("{}{mark}", check.name)
        });
        assert_eq!(lines.collect::<Vec<_>>().join(" "), wanted);
        let failures = checks.iter().filter(|check| check.verdict == Verdict::Failed);
        assert!(failures.into_iter().all(|check| check.advice.is_some()), "every failure has advice");
    }

    #[test]
    fn a_ready_engine_is_reported_in_full() {
        let facts = EngineFacts {
            engine: "docker".into(),
            version: "20.10".into(),
            runtime: "runsc".into(),
            runtimes: vec!["runc".into(), "runsc".into()],
            ..EngineFacts::default()
        };
        let checks = sandbox(&SandboxReadiness::Ready(facts), &config());
        assert!(checks.iter().all(|check| check.verdict == Verdict::Ok));
        assert!(checks[0].found.starts_with("docker 20.10"));
        assert_eq!(checks[1].found, "runsc (the engine also has runc; select one with GANTRY_SANDBOX_RUNTIME)");
    }

    #[rstest]
    #[case::counts_all("2", false, Some(Verdict::Ok), "cgroup v2")]
    #[case::misses_tcp("1", false, Some(Verdict::Note), "buffers of TCP sockets are outside")]
    #[case::misses_udp_too("1", true, Some(Verdict::Note), "buffers of TCP and UDP sockets are outside")]
    #[case::not_told("", false, None, "")]
    fn uncounted_socket_buffers_are_reported(
        #[case] version: &str,
        #[case] datagrams: bool,
        #[case] verdict: Option<Verdict>,
        #[case] words: &str,
    ) {
        let check = memory(version, datagrams);
        assert_eq!(check.as_ref().map(|check| check.verdict), verdict);
        assert!(check.is_none_or(|check| check.found.contains(words)));
    }

    #[test]
    fn missing_directories_are_listed_innermost_first() {
        let parent = tempfile::tempdir().unwrap();
        let inner = parent.path().join("data/run");
        assert_eq!(missing_directories(&inner), [inner.as_path(), inner.parent().unwrap()]);
        assert!(missing_directories(parent.path()).is_empty());
    }
}
