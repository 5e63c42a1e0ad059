//! The configuration: defaults under `gantry.toml` under `GANTRY_*` variables under flags.
//!
//! Owns every setting's name, default and bounds, and is the only reader of the environment. Never opens what a setting
//! points at (but for secrets in files). A wrong value is one line that names it.

mod environment;
mod layers;
mod model;
mod sandbox;
mod url;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use crate::rate_limit::Rate;
use protocol::{ContainerName, InstanceId, Limits};
use secrecy::{ExposeSecret, SecretString};

pub use environment::Environment;
use layers::Layers;
pub use layers::{ConfigError, Setting};
pub use model::{LlmSettings, ModelPrice, ProviderKind, ProviderSettings};
pub use sandbox::{SandboxMode, SandboxSettings, Transport};
pub use url::mask_urls;

/// HS256 wants a key as long as its hash.
const MIN_JWT_SECRET_BYTES: usize = 32;
/// `sun_path` holds 108 bytes with its final NUL.
const MAX_SOCKET_PATH_BYTES: usize = 107;
/// `gantry-job-<uuid>-<attempt>/worker.sock` with one slash before it.
const SOCKET_TAIL_BYTES: usize = 1 + ContainerName::MAX_JOB_NAME_BYTES + "/worker.sock".len();

/// Where the flags and the file come from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config`; `gantry.toml` in the working folder when left out, if it is there.
    pub file: Option<PathBuf>,
    /// Flags by the key they set.
    pub flags: BTreeMap<String, String>,
}

/// How log lines look.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Pretty on a terminal, JSON otherwise.
    Auto,
    /// For people.
    Pretty,
    /// For machines.
    Json,
}

/// What is logged, and how.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct LogSettings {
    /// As in `RUST_LOG`.
    pub filter: String,
    /// How it looks.
    pub format: LogFormat,
}

/// Routines' settings.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RoutineSettings {
    /// The kill switch.
    pub cron_enabled: bool,
    /// No routine fires more often.
    pub min_interval_seconds: u64,
}

/// Everything that can be set, checked.
#[derive(Clone)]
pub struct Config {
    /// The public API's address.
    pub bind: SocketAddr,
    /// The metrics' own address.
    pub metrics_bind: Option<SocketAddr>,
    /// Hosts that a request may name: `host` on any port, or `host:port`.
    pub allowed_hosts: Vec<String>,
    /// Database, keys, and by default the two folders below.
    pub data_dir: PathBuf,
    /// One folder per live container; 0700.
    pub run_dir: PathBuf,
    /// The jobs' workspaces.
    pub workspace_dir: PathBuf,
    /// `sqlite://…`.
    pub database_url: String,
    /// Signs tokens; made once in the data folder when left out.
    pub jwt_secret: Option<SecretString>,
    /// Seals users' secrets; made once in the data folder when left out.
    pub master_key: Option<SecretString>,
    /// Names this install to the engine; made once when left out.
    pub instance_id: Option<InstanceId>,
    /// Where jobs run.
    pub sandbox: SandboxSettings,
    /// Jobs that run at once.
    pub max_parallel_jobs: u32,
    /// The same for one user.
    pub max_parallel_jobs_per_user: u32,
    /// No activity for this long is stuck.
    pub stuck_after_seconds: u64,
    /// Repairs before a stuck job fails.
    pub max_repair_attempts: u32,
    /// A heartbeat renews it.
    pub lease_seconds: u64,
    /// How long a worker tries to reach its orchestrator again.
    pub worker_patience_seconds: u64,
    /// From start to the worker's first call.
    pub start_timeout_seconds: u64,
    /// Containers made in advance.
    pub pool_size: u32,
    /// What of the network any job may be given.
    pub egress_ceiling: Vec<String>,
    /// The operator's highest limits; 0 for `max_tokens` and `max_cost_usd` is none.
    pub limits_ceiling: Limits,
    /// What each user has for a day, input and output together; 0 is no limit.
    pub user_day_max_tokens: u64,
    /// The same in money.
    pub user_day_max_cost_usd: f64,
    /// Events, model calls and tool calls are kept this long after the end.
    pub record_retention_days: u64,
    /// Rows of the audit are kept this long.
    pub audit_retention_days: u64,
    /// From this size of the database on the oldest of them go sooner; 0 is no limit.
    pub record_retention_max_mb: u64,
    /// Workspaces are kept this long after the end.
    pub workspace_retention_days: u64,
    /// Free space of the workspaces' file system below which nothing starts; by its size when left out.
    pub disk_floor_mb: Option<u64>,
    /// How often each user may call each of the orchestrator's tools.
    pub tool_rates: Vec<Rate>,
    /// Models.
    pub llm: LlmSettings,
    /// Routines.
    pub routines: RoutineSettings,
    /// Where traces go.
    pub otel_endpoint: Option<String>,
    /// The log.
    pub log: LogSettings,
    /// What is in force, secrets masked.
    pub settings: Vec<Setting>,
    /// What is odd but not wrong; logged once at the start.
    pub warnings: Vec<String>,
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // The masked list, so that no secret ever reaches a log this way.
        f.debug_struct("Config").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads every layer.
    pub fn load(environment: &Environment, sources: Sources) -> Result<Self, ConfigError> {
        let mut layers = Layers::new(environment, sources.flags);
        if let Some((path, text)) = read_file(sources.file)? {
            layers.add_file(&path, &text, &["llm.prices"])?;
        }
        Self::read(layers, environment)
    }

    fn read(mut layers: Layers<'_>, environment: &Environment) -> Result<Self, ConfigError> {
        let l = &mut layers;
        let bind = l.parsed("bind", "must be an address and port such as 127.0.0.1:8080")?;
        let bind = match bind {
            Some(bind) => bind,
            None => SocketAddr::from(([127, 0, 0, 1], 8080)),
        };
        l.show_instead("bind", &bind.to_string());
        let data_dir = l.path("data_dir", &default_data_dir(environment)?)?;
        let run_dir = l.path("run_dir", &data_dir.join("run"))?;
        check_socket_path(l, &run_dir)?;
        let workspace_dir = l.path("workspace_dir", &data_dir.join("workspaces"))?;
        let max_parallel_jobs = l.small("max_parallel_jobs", 5, 1..=1000)?;
        let mut config = Self {
            bind,
            metrics_bind: l.parsed("metrics_bind", "must be an address and port such as 127.0.0.1:9090")?,
            allowed_hosts: allowed_hosts(l, bind)?,
            database_url: database_url(l, &data_dir)?,
            data_dir,
            run_dir,
            workspace_dir,
            jwt_secret: jwt_secret(l)?,
            master_key: l.secret("master_key")?,
            instance_id: l.parsed("instance_id", "must be a UUID such as 0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d")?,
            sandbox: sandbox::read(l)?,
            max_parallel_jobs,
            max_parallel_jobs_per_user: l.small("max_parallel_jobs_per_user", max_parallel_jobs, 1..=1000)?,
            stuck_after_seconds: l.whole("stuck_after_seconds", 300, 1..=86_400)?,
            max_repair_attempts: l.small("max_repair_attempts", 3, 0..=10)?,
            lease_seconds: l.whole("lease_seconds", 30, 3..=3600)?,
            worker_patience_seconds: l.whole("worker_patience_seconds", 120, 1..=86_400)?,
            start_timeout_seconds: l.whole("start_timeout_seconds", 30, 1..=3600)?,
            pool_size: l.small("pool_size", 0, 0..=100)?,
            egress_ceiling: l.list("egress_ceiling")?,
            limits_ceiling: limits_ceiling(l)?,
            user_day_max_tokens: l.whole("user_day.max_tokens", 0, 0..=1_000_000_000_000)?,
            user_day_max_cost_usd: l.real("user_day.max_cost_usd", 0.0, 0.0..=1_000_000.0)?,
            record_retention_days: l.whole("record_retention_days", 90, 0..=3650)?,
            audit_retention_days: l.whole("audit_retention_days", 365, 0..=3650)?,
            record_retention_max_mb: l.whole("record_retention_max_mb", 0, 0..=67_108_864)?,
            workspace_retention_days: l.whole("workspace_retention_days", 7, 0..=3650)?,
            disk_floor_mb: disk_floor(l)?,
            tool_rates: tool_rates(l)?,
            llm: model::read(l)?,
            routines: RoutineSettings {
                cron_enabled: l.flag("cron_enabled", true)?,
                min_interval_seconds: l.whole("routine_min_interval_seconds", 60, 1..=86_400)?,
            },
            otel_endpoint: l.optional("otel_endpoint")?,
            log: log_settings(l, "info")?,
            settings: Vec::new(),
            warnings: Vec::new(),
        };
        (config.settings, config.warnings) = layers.finish()?;
        config.warn();
        Ok(config)
    }

    /// Settings whose feature is not there yet must not look as if they worked.
    fn warn(&mut self) {
        let absent = [
            (self.pool_size > 0, "pool_size: no pool of containers is available yet; each job makes its own"),
            (!self.egress_ceiling.is_empty(), "egress_ceiling: egress is not available yet; jobs have no network"),
        ];
        self.warnings.extend(absent.iter().filter(|(set, _)| *set).map(|(_, text)| (*text).to_owned()));
    }
}

/// The log's settings alone, for commands that need no configuration.
pub fn log_for_commands(environment: &Environment) -> Result<LogSettings, ConfigError> {
    log_settings(&mut Layers::new(environment, BTreeMap::new()), "warn")
}

/// The larger of 2 GB and 5 % when it is not set.
fn disk_floor(l: &mut Layers<'_>) -> Result<Option<u64>, ConfigError> {
    let is_set = l.is_set("disk_floor_mb");
    let floor = l.whole("disk_floor_mb", 0, 0..=67_108_864)?;
    if !is_set {
        l.show_instead("disk_floor_mb", "the larger of 2048 and 5 %");
    }
    Ok(is_set.then_some(floor))
}

/// A burst that a lasting rate fills again, and a number for each hour (contract: agent, Tools); 0 takes a limit away.
fn tool_rates(l: &mut Layers<'_>) -> Result<Vec<Rate>, ConfigError> {
    let burst = l.small("tool_rate.burst", 60, 0..=1_000_000)?;
    let per_second = l.small("tool_rate.per_second", 1, 1..=1_000)?;
    let per_hour = l.small("tool_rate.per_hour", 1_000, 0..=1_000_000)?;
    let rates = [Rate { burst, per_hour: per_second * 3_600 }, Rate { burst: per_hour, per_hour }];
    Ok(rates.into_iter().filter(|rate| rate.burst > 0).collect())
}

fn log_settings(l: &mut Layers<'_>, default_filter: &str) -> Result<LogSettings, ConfigError> {
    Ok(LogSettings {
        filter: l.text("log.filter", default_filter)?,
        format: l.choice(
            "log.format",
            "auto",
            &[("auto", LogFormat::Auto), ("pretty", LogFormat::Pretty), ("json", LogFormat::Json)],
        )?,
    })
}

fn read_file(named: Option<PathBuf>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let (path, must_be_there) = match named {
        Some(path) => (path, true),
        None => (PathBuf::from("gantry.toml"), false),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !must_be_there => Ok(None),
        Err(error) => Err(ConfigError::new(path.display().to_string(), None, format!("cannot read it: {error}"))),
    }
}

fn default_data_dir(environment: &Environment) -> Result<PathBuf, ConfigError> {
    if environment.is_root() {
        return Ok(PathBuf::from("/var/lib/gantry"));
    }
    if let Some(folder) = environment.get("XDG_DATA_HOME") {
        return Ok(Path::new(folder).join("gantry"));
    }
    match (environment.get("HOME"), environment.get("GANTRY_DATA_DIR")) {
        (Some(home), _) => Ok(Path::new(home).join(".local/share/gantry")),
        // A flag or the file may still name one; an unusable default is refused below when it is used.
        (None, Some(_)) => Ok(PathBuf::from("/var/lib/gantry")),
        (None, None) => Err(ConfigError::new("GANTRY_DATA_DIR", None, "must be set, since HOME is not")),
    }
}

fn check_socket_path(l: &mut Layers<'_>, run_dir: &Path) -> Result<(), ConfigError> {
    let room = MAX_SOCKET_PATH_BYTES - SOCKET_TAIL_BYTES;
    if run_dir.as_os_str().len() <= room {
        return Ok(());
    }
    let key = if l.is_set("run_dir") { "run_dir" } else { "data_dir" };
    let path = run_dir.display();
    Err(l.wrong(
        key,
        format!(
            "a worker's socket under {path} would be over {MAX_SOCKET_PATH_BYTES} bytes: set run_dir to at most {room}"
        ),
    ))
}

fn allowed_hosts(l: &mut Layers<'_>, bind: SocketAddr) -> Result<Vec<String>, ConfigError> {
    let mut hosts = l.list("allowed_hosts")?;
    if hosts.is_empty() {
        hosts = ["localhost", "127.0.0.1", "[::1]"].map(str::to_owned).to_vec();
        let own = if bind.is_ipv6() { format!("[{}]", bind.ip()) } else { bind.ip().to_string() };
        if !bind.ip().is_unspecified() && !hosts.contains(&own) {
            hosts.push(own);
        }
        l.show_instead("allowed_hosts", &hosts.join(","));
    }
    for host in &mut hosts {
        host.make_ascii_lowercase();
        let fine = host.bytes().all(|b| b.is_ascii_alphanumeric() || b".-:[]_".contains(&b));
        if !fine {
            return Err(
                l.wrong("allowed_hosts", "must be host names such as gantry.example.org, with a port or without")
            );
        }
    }
    Ok(hosts)
}

fn database_url(l: &mut Layers<'_>, data_dir: &Path) -> Result<String, ConfigError> {
    let default = format!("sqlite://{}", data_dir.join("gantry.db").display());
    let url = l.text("database_url", &default)?;
    if url.starts_with("sqlite:") {
        return Ok(url);
    }
    // A URL of another database may hold a password: it is never printed.
    let (scheme, _) = url.split_once(':').unwrap_or(("", ""));
    let wanted = match scheme {
        "postgres" | "postgresql" => "PostgreSQL is not available yet: use sqlite:",
        _ => "must start with sqlite:",
    };
    Err(ConfigError::new(Layers::variable("database_url"), None, wanted))
}

fn jwt_secret(l: &mut Layers<'_>) -> Result<Option<SecretString>, ConfigError> {
    let secret = l.secret("jwt_secret")?;
    match &secret {
        Some(text) if text.expose_secret().len() < MIN_JWT_SECRET_BYTES => {
            let wanted = format!("must be at least {MIN_JWT_SECRET_BYTES} bytes (try: openssl rand -hex 32)");
            Err(ConfigError::new(Layers::variable("jwt_secret"), None, wanted))
        }
        _ => Ok(secret),
    }
}

fn limits_ceiling(l: &mut Layers<'_>) -> Result<Limits, ConfigError> {
    Ok(Limits {
        timeout_seconds: l.whole("limits.timeout_seconds", 86_400, 1..=31_536_000)?,
        max_iterations: l.small("limits.max_iterations", 1000, 1..=1_000_000)?,
        max_tool_calls: l.small("limits.max_tool_calls", 10_000, 1..=10_000_000)?,
        max_tokens: l.whole("limits.max_tokens", 0, 0..=1_000_000_000_000)?,
        max_cost_usd: l.real("limits.max_cost_usd", 0.0, 0.0..=1_000_000.0)?,
        max_children: l.small("limits.max_children", 10, 0..=10)?,
        memory_mb: l.whole("limits.memory_mb", 16_384, 64..=4_194_304)?,
        cpus: l.real("limits.cpus", 8.0, 0.01..=1024.0)?,
        pids: l.small("limits.pids", 4096, 16..=1_000_000)?,
        disk_mb: l.whole("limits.disk_mb", 10_240, 1..=67_108_864)?,
    })
}

#[cfg(test)]
mod tests;
