//! `gantry doctor`: what the server needs, each with what to do.
//!
//! Owns the list of checks and their words. Leaves nothing behind, and never asks a model a question.

mod disk;

use std::{path::Path, time::Duration};

use clap::Args;
use protocol::InstanceId;
use secrecy::ExposeSecret;
use serde::Serialize;

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
    output::{Output, Paint},
    text::one_line,
};
use crate::{
    auth::SigningKey,
    config::{Config, Environment, ProviderKind, ProviderSettings, SandboxMode, mask_urls},
    engine::{Docker, DockerSettings, Engine as _, EngineFacts, ReadinessReason, SandboxReadiness},
    store::{Store, StoreError},
    telemetry::error_chain,
};

const REACH_TIMEOUT: Duration = Duration::from_secs(5);

/// Its arguments.
#[derive(Debug, Args)]
pub(super) struct DoctorArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

/// The result of a check.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize)]
#[serde(rename_all = "snake_case")]
enum Verdict {
    Ok,
    /// No problem, but worth knowing.
    Note,
    Failed,
    /// Not checked because an earlier check failed.
    NotChecked,
}

/// One check.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
struct Check {
    name: &'static str,
    verdict: Verdict,
    found: String,
    #[serde(skip_serializing_if = "Option::is_none")]
    advice: Option<String>,
}

impl Check {
    fn ok(name: &'static str, found: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Ok, found: found.into(), advice: None }
    }

    fn note(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Note, found: found.into(), advice: Some(advice.into()) }
    }

    fn failed(name: &'static str, found: impl Into<String>, advice: impl Into<String>) -> Self {
        Self { name, verdict: Verdict::Failed, found: found.into(), advice: Some(advice.into()) }
    }

    fn not_checked(name: &'static str) -> Self {
        Self { name, verdict: Verdict::NotChecked, found: "not checked".to_owned(), advice: None }
    }
}

pub(super) async fn run(args: DoctorArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let mut checks = Vec::new();
    match args.flags.load(environment) {
        Err(error) => checks.push(Check::failed("configuration", error.to_string(), "fix this value")),
        Ok(config) => {
            checks.push(install(&config));
            let warnings = config.warnings.join("; ");
            checks.push(if warnings.is_empty() {
                Check::ok("configuration", "valid")
            } else {
                Check::note("configuration", warnings, "correct these names or remove the variables")
            });
            checks.extend(hosts(&config));
            checks.push(folder("data directory", &config.data_dir, "GANTRY_DATA_DIR"));
            checks.push(folder("run directory", &config.run_dir, "GANTRY_RUN_DIR"));
            checks.push(folder("workspaces", &config.workspace_dir, "GANTRY_WORKSPACE_DIR"));
            checks.extend(disk::checks(&config).await);
            checks.push(signing_key(&config));
            checks.push(store(&config).await);
            checks.extend(sandbox(&readiness(&config).await, &config));
            checks.push(model(&config).await);
        }
    }
    let failed = checks.iter().any(|check| check.verdict == Verdict::Failed);
    let value = serde_json::json!({"ok": !failed, "checks": checks});
    output.either(&value, |paint| checks.iter().map(|check| line(paint, check)).collect::<Vec<_>>().join("\n"))?;
    Ok(if failed { Exit::Failed } else { Exit::Fine })
}

fn line(paint: Paint, check: &Check) -> String {
    let mark = match check.verdict {
        Verdict::Ok => paint.green("ok    "),
        Verdict::Note => paint.yellow("note  "),
        Verdict::Failed => paint.red("failed"),
        Verdict::NotChecked => paint.dim("-     "),
    };
    let advice = check.advice.as_ref().map(|text| format!("\n         → {}", one_line(text))).unwrap_or_default();
    format!("{mark} {:<13} {}{advice}", check.name, one_line(&check.found))
}

/// Names the installation that is checked: the user may mean another one, in a container or of another user.
fn install(config: &Config) -> Check {
    let data = config.data_dir.display();
    let found = format!("gantry {} with data in {data}", env!("CARGO_PKG_VERSION"));
    if config.data_dir.exists() {
        return Check::ok("install", found);
    }
    let advice =
        "no server has run here yet; for a server in a container run: docker/compose.sh exec gantry gantry doctor";
    Check::note("install", format!("{found}, which does not exist"), advice)
}

/// A custom list of hosts may lack the names that this machine and the container's health check use.
fn hosts(config: &Config) -> Option<Check> {
    let has_own = ["localhost", "127.0.0.1"].iter().all(|own| config.allowed_hosts.iter().any(|host| host == own));
    let found = format!("answers only to {}", config.allowed_hosts.join(", "));
    let advice =
        "add localhost and 127.0.0.1 to GANTRY_ALLOWED_HOSTS: the health check and commands on this machine use them";
    (!has_own).then(|| Check::note("hosts", found, advice))
}

/// A folder that is there must be writable; one that is not must have a writable place to be made in.
fn folder(name: &'static str, path: &Path, variable: &str) -> Check {
    let there = path.ancestors().find(|folder| folder.exists()).unwrap_or(Path::new("/"));
    match try_to_write(there) {
        Ok(()) if there == path => Check::ok(name, path.display().to_string()),
        Ok(()) => Check::ok(name, format!("{} (created at the first start)", path.display())),
        Err(error) => {
            let found = format!("{}: {error}", there.display());
            Check::failed(name, found, format!("give this user write access, or set {variable} to another directory"))
        }
    }
}

/// Permissions alone do not tell: root passes them on a read-only disk too.
fn try_to_write(folder: &Path) -> std::io::Result<()> {
    let probe = folder.join(format!(".gantry-doctor-{:016x}", rand::random::<u64>()));
    std::fs::File::create_new(&probe)?;
    std::fs::remove_file(&probe)
}

fn signing_key(config: &Config) -> Check {
    let path = SigningKey::file(&config.data_dir);
    match &config.jwt_secret {
        Some(secret) => Check::ok("signing key", format!("configured, {} bytes", secret.expose_secret().len())),
        None if path.exists() => match std::fs::File::open(&path) {
            Ok(_) => Check::ok("signing key", path.display().to_string()),
            Err(error) => {
                Check::failed("signing key", format!("{}: {error}", path.display()), "run as the user that created it")
            }
        },
        None => Check::ok("signing key", "created at the first start"),
    }
}

/// A database that is not there yet is not made.
async fn store(config: &Config) -> Check {
    let path = config.database_url.split_once(':').map_or("", |(_, rest)| rest.trim_start_matches("//"));
    let path = Path::new(path.split('?').next().unwrap_or(path));
    match std::fs::metadata(path) {
        Ok(facts) if facts.is_file() => {
            let answer = match Store::open_existing(&config.database_url).await {
                Ok(store) => {
                    let answer = store.ping().await;
                    store.close().await;
                    answer
                }
                Err(error) => Err(error),
            };
            match answer {
                Ok(()) => Check::ok("store", format!("{} ({} bytes)", path.display(), facts.len())),
                Err(StoreError::Schema { is_newer: false }) => {
                    let found = format!("{} has an older version", path.display());
                    Check::note("store", found, "the next start of the server upgrades it")
                }
                Err(error) => Check::failed(
                    "store",
                    format!("{}: {error}", path.display()),
                    "see whether the disk is full and the file is a Gantry database; restore a backup otherwise",
                ),
            }
        }
        Ok(_) => {
            Check::failed("store", format!("{} is not a file", path.display()), "set GANTRY_DATABASE_URL to a file")
        }
        Err(_) => Check::ok("store", format!("{} (created at the first start)", path.display())),
    }
}

/// Asks the engine as the server does. An instance of its own: nothing of the server's is touched.
async fn readiness(config: &Config) -> SandboxReadiness {
    match config.sandbox.mode {
        SandboxMode::Disabled => SandboxReadiness::NotReady {
            reason: ReadinessReason::DisabledByConfig,
            detail: "GANTRY_SANDBOX is disabled".to_owned(),
        },
        SandboxMode::Docker => {
            let engine = Docker::connect(DockerSettings::of(config, InstanceId::generate()));
            let absent = absent_folders(&config.run_dir);
            let readiness = engine.probe().await;
            // A folder that somebody has used in the meantime is not empty, and stays.
            absent.iter().all(|folder| std::fs::remove_dir(folder).is_ok());
            readiness
        }
    }
}

/// What making this folder would make, the innermost first.
fn absent_folders(folder: &Path) -> Vec<&Path> {
    folder.ancestors().take_while(|folder| !folder.exists()).collect()
}

/// A probe's answer, check by check: what comes after the first failure has not been checked.
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
            return vec![Check::note("sandbox", detail, "no job runs; set GANTRY_SANDBOX=docker to run them")];
        }
        ReadinessReason::EngineUnreachable => {
            (0, "start Docker, let this user reach its socket, or set DOCKER_HOST".to_owned())
        }
        ReadinessReason::RuntimeMissing => {
            (1, "install the runtime and name it in Docker's daemon.json, or change GANTRY_SANDBOX_RUNTIME".to_owned())
        }
        ReadinessReason::ImageMissing => (2, format!("build it with docker/up.sh, or pull {}", config.sandbox.image)),
        ReadinessReason::PostureUnsupported => {
            (3, "jobs run only where this holds: use another engine or image, or update them".to_owned())
        }
    };
    let told = |(index, name): (usize, &'static str)| match index.cmp(&failed_at) {
        std::cmp::Ordering::Less => Check::ok(name, "reached"),
        std::cmp::Ordering::Equal => Check::failed(name, detail.clone(), advice.clone()),
        std::cmp::Ordering::Greater => Check::not_checked(name),
    };
    NAMES.into_iter().enumerate().map(told).collect()
}

/// The runtime that jobs use, and the others that the engine has.
fn runtimes(facts: &EngineFacts) -> String {
    let others: Vec<_> = facts.runtimes.iter().map(String::as_str).filter(|name| *name != facts.runtime).collect();
    if others.is_empty() {
        return facts.runtime.clone();
    }
    format!("{} (the engine also has {}; GANTRY_SANDBOX_RUNTIME chooses)", facts.runtime, others.join(", "))
}

/// Whether a job's memory limit holds all that it can take of the machine's memory.
fn memory(cgroup_version: &str, inet_datagrams: bool) -> Option<Check> {
    match cgroup_version {
        "2" => Some(Check::ok("memory", "cgroup v2: a job's memory limit counts its socket buffers")),
        "1" => {
            let sockets = if inet_datagrams { "TCP and UDP sockets" } else { "TCP sockets" };
            let found = format!("cgroup v1: the buffers of {sockets} are outside a job's memory limit");
            let advice = "TCP buffers are kept small, but many sockets can still take some times limits.memory_mb; boot the engine's \
                          machine with cgroup v2 (systemd.unified_cgroup_hierarchy=1) where jobs are not trusted";
            Some(Check::note("memory", found, advice))
        }
        _ => None,
    }
}

async fn model(config: &Config) -> Check {
    let provider = &config.llm.primary;
    if config.llm.is_demo {
        let advice = "set GANTRY_LLM_PROVIDER, GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY to use a real model";
        return Check::note("model", "the built-in demo script", advice);
    }
    match (provider.kind, &provider.script) {
        (ProviderKind::Scripted, None) => Check::ok("model", "the built-in demo script"),
        (ProviderKind::Scripted, Some(path)) => match std::fs::read_to_string(path) {
            Ok(_) => Check::ok("model", format!("the script {}", path.display())),
            Err(error) => Check::failed(
                "model",
                format!("{}: {error}", path.display()),
                "set GANTRY_LLM_SCRIPT to a readable file",
            ),
        },
        (ProviderKind::OpenAi | ProviderKind::Anthropic | ProviderKind::Ollama, _) => reach(provider).await,
    }
}

/// Any answer at all will do; only a completion would prove the key, and that costs.
async fn reach(provider: &ProviderSettings) -> Check {
    let found = format!("{} at {}", provider.model, mask_urls(&provider.base_url));
    let client = reqwest::Client::builder().timeout(REACH_TIMEOUT).build();
    let answer = match client {
        Ok(client) => client.get(&provider.base_url).send().await,
        Err(error) => Err(error),
    };
    match answer {
        Ok(_) if provider.kind == ProviderKind::OpenAi && has_no_path(&provider.base_url) => Check::note(
            "model",
            format!("{found} (reachable; the key was not tested)"),
            "OpenAI-compatible URLs usually end in /v1: if models are not found, add it to GANTRY_LLM_BASE_URL",
        ),
        Ok(_) => Check::ok("model", format!("{found} (reachable; the key was not tested)")),
        Err(error) => {
            let cause = error_chain(&error.without_url());
            Check::failed("model", format!("{found}: {cause}"), way_there(provider.kind))
        }
    }
}

fn has_no_path(url: &str) -> bool {
    reqwest::Url::parse(url).is_ok_and(|url| url.path() == "/")
}

fn way_there(kind: ProviderKind) -> &'static str {
    match kind {
        ProviderKind::Ollama => {
            "check GANTRY_LLM_BASE_URL; a container cannot reach 127.0.0.1 of the host: start Ollama with \
             OLLAMA_HOST set to the address of the Docker bridge, such as 172.17.0.1"
        }
        _ => "check GANTRY_LLM_BASE_URL and the network",
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use crate::config::Sources;

    fn config() -> Config {
        Config::load(&Environment::from_pairs([("HOME", "/home/ada")]), Sources::default()).unwrap()
    }

    #[rstest]
    #[case("gantry.example", false)]
    #[case("gantry.example,localhost", false)]
    #[case("gantry.example,localhost,127.0.0.1", true)]
    #[case("", true)]
    fn hosts_that_leave_out_this_machine_are_noticed(#[case] hosts: &str, #[case] fine: bool) {
        let set = Environment::from_pairs([("HOME", "/home/ada"), ("GANTRY_ALLOWED_HOSTS", hosts)]);
        assert_eq!(super::hosts(&Config::load(&set, Sources::default()).unwrap()).is_none(), fine);
    }

    #[rstest]
    #[case("http://10.0.0.1:8089", true)]
    #[case("http://10.0.0.1:8089/", true)]
    #[case("http://10.0.0.1:8089/v1", false)]
    fn a_base_url_without_a_path_is_noticed(#[case] url: &str, #[case] bare: bool) {
        assert_eq!(has_no_path(url), bare);
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
        let shown = checks.iter().map(|check| {
            let mark = match check.verdict {
                Verdict::Ok => '+',
                Verdict::Note => '~',
                Verdict::Failed => '!',
                Verdict::NotChecked => '-',
            };
            format!("{}{mark}", check.name)
        });
        assert_eq!(shown.collect::<Vec<_>>().join(" "), wanted);
        let failures = checks.iter().filter(|check| check.verdict == Verdict::Failed);
        assert!(failures.into_iter().all(|check| check.advice.is_some()), "a failure says what to do");
    }

    #[test]
    fn a_ready_engine_is_told_in_full() {
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
        assert_eq!(checks[1].found, "runsc (the engine also has runc; GANTRY_SANDBOX_RUNTIME chooses)");
    }

    #[rstest]
    #[case::counts_all("2", false, Some(Verdict::Ok), "cgroup v2")]
    #[case::misses_tcp("1", false, Some(Verdict::Note), "buffers of TCP sockets are outside")]
    #[case::misses_udp_too("1", true, Some(Verdict::Note), "buffers of TCP and UDP sockets are outside")]
    #[case::not_told("", false, None, "")]
    fn what_a_memory_limit_does_not_count_is_told(
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
    fn an_error_is_told_with_what_is_behind_it() {
        let refused = std::io::Error::other(CliError::failed("no connection", "refused"));
        assert_eq!(error_chain(&refused), "no connection: refused");
        let config = Config::load(&Environment::from_pairs([]), Sources::default()).unwrap_err();
        let outer = std::io::Error::other(CliError::from(config));
        assert!(error_chain(&outer).contains("GANTRY_DATA_DIR"));
    }

    #[test]
    fn what_the_probe_would_make_is_known_before() {
        let there = tempfile::tempdir().unwrap();
        let inner = there.path().join("data/run");
        assert_eq!(absent_folders(&inner), [inner.as_path(), inner.parent().unwrap()]);
        assert!(absent_folders(there.path()).is_empty());
    }

    #[test]
    fn a_folder_that_cannot_be_made_is_a_failure_with_advice() {
        assert_eq!(
            folder("data folder", Path::new("/proc/nowhere/gantry"), "GANTRY_DATA_DIR").verdict,
            Verdict::Failed
        );
        let there = tempfile::tempdir().unwrap();
        std::fs::write(there.path().join("file"), "").unwrap();
        assert_eq!(
            folder("data folder", &there.path().join("file/gantry"), "GANTRY_DATA_DIR").verdict,
            Verdict::Failed
        );
        assert_eq!(folder("data folder", &there.path().join("new"), "GANTRY_DATA_DIR").verdict, Verdict::Ok);
    }
}
