//! The configuration: flags over `GANTRY_*` variables over `gantry.toml` over defaults.
//!
//! Owns every setting, declared once with its key, default, bounds and help. Opens no files that settings name, except
//! secrets. The error for an invalid value is one line that names the setting.

mod checks;
mod dialect;
mod hooks;
mod master_key;
mod mcp;
mod model;
mod reader;
mod sandbox;
mod setting;
mod setting_value;

use std::{
    collections::BTreeMap,
    fmt,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use base::Environment;
use protocol::{InstanceId, Limits};
use secrecy::SecretString;

use base::rate_limit::ToolRates;
pub use dialect::{
    CallIds, Dialect, EffortWords, EmptyContent, Field, MessageOrder, OpaqueBack, OpenAiWire, OutputLimit,
    ReasoningBack, SchemaSubset, SystemMessages,
};
pub use hooks::{HookAction, HookFilter, HookPoint, HookSettings, WebhookSettings};
pub use master_key::master_key_bytes;
pub use mcp::{HeaderTemplate, McpServerSettings, McpTransport};
pub use model::{LlmSettings, ModelPrice, ProviderKind, ProviderSettings, UnpricedModels};
use reader::ConfigReader;
pub use reader::{ConfigError, EffectiveSetting};
pub use sandbox::{SandboxMode, SandboxSettings, Transport};
pub use setting::SettingSpec;
use setting::{Kind, setting, settings};
use setting_value::{RawValue, SettingValue, choose};

/// Every setting. Those of `llm` exist for each failover provider, too.
pub fn all_specs() -> impl Iterator<Item = &'static SettingSpec> {
    let groups = [
        Config::SPECS,
        SandboxSettings::SPECS,
        LIMIT_SPECS,
        JobDefaults::SPECS,
        ToolRateSettings::SPECS,
        InboundRateSettings::SPECS,
        LlmSettings::SPECS,
        ProviderSettings::SPECS,
        RoutineSettings::SPECS,
        LogSettings::SPECS,
    ];
    groups.into_iter().flatten()
}

/// Where flags and the file come from.
#[derive(Debug, Clone, Default)]
pub struct Sources {
    /// `--config`; when not given, `gantry.toml` in the working directory if it exists.
    pub file: Option<PathBuf>,
    /// Flags by the key they set.
    pub flags: BTreeMap<String, String>,
}

/// The format of log lines.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum LogFormat {
    /// Text on a terminal, JSON otherwise.
    Auto,
    /// Text.
    Pretty,
    /// JSON.
    Json,
}

impl SettingValue for LogFormat {
    const KIND: Kind = Kind::Choice(&["auto", "pretty", "json"]);

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        choose(raw, &[("auto", Ok(Self::Auto)), ("pretty", Ok(Self::Pretty)), ("json", Ok(Self::Json))])
    }
}

settings! {
    /// What is logged, and how.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct LogSettings {
        /// Log filter, in the syntax of `RUST_LOG`.
        pub filter: String = setting("log.filter").variable("RUST_LOG").default("info");
        /// Format of log lines: `auto` (text on a terminal, JSON otherwise), `pretty` or `json`.
        pub format: LogFormat = setting("log.format").default("auto");
    }
}

settings! {
    /// Settings of routines.
    #[derive(Debug, Clone, Copy, PartialEq, Eq)]
    pub struct RoutineSettings {
        /// Whether triggers fire routines, and main sessions have heartbeats. Routines can be triggered manually nevertheless.
        pub cron_enabled: bool = setting("cron_enabled").default("true");
        /// Minimum interval in seconds between two times of a schedule.
        pub min_interval_seconds: u64 = setting("routine_min_interval_seconds").default("60").range(1, 86_400);
        /// Maximum rounds of tool calls of a lightweight run. A routine that asks for more is refused.
        pub max_tool_rounds: u32 = setting("routines.max_tool_rounds").default("20").range(1, 20);
        /// Maximum runs of routines in progress at once that are lightweight or jobs without a container. Others are queued.
        pub max_concurrent: u32 = setting("max_concurrent_routines").default("10").range(1, 1_000);
        /// Maximum routines of a user.
        pub max_per_user: u32 = setting("routines.max_per_user").default("10000").range(1, 1_000_000);
        /// Maximum length of a routine's name in characters.
        pub max_name_chars: u32 = setting("routines.max_name_chars").default("128").range(8, 1_024);
        /// Maximum size of a prompt in bytes.
        pub max_prompt_bytes: u32 = setting("routines.max_prompt_bytes").default("262144").range(1_024, 262_144);
        /// Maximum size of a condition (`where`) in bytes.
        pub max_condition_bytes: u32 = setting("routines.max_condition_bytes").default("4096").range(64, 4_096);
        /// Maximum documents that a lightweight action reads.
        pub max_context_paths: u32 = setting("routines.max_context_paths").default("20").range(0, 100);
    }
}

settings! {
    /// How often each user may call each of the orchestrator's tools.
    struct ToolRateSettings {
        /// Tool calls that a user may make at once, of each orchestrator tool that has no lower limit; 0 for no limit.
        burst: u32 = setting("tool_rate.burst").default("60").range(0, 1_000_000);
        /// Rate in calls per second at which `tool_rate.burst` is refilled.
        per_second: u32 = setting("tool_rate.per_second").default("1").range(1, 1_000);
        /// Maximum tool calls of a user per hour, of each orchestrator tool that has no lower limit; 0 for no limit.
        per_hour: u32 = setting("tool_rate.per_hour").default("1000").range(0, 1_000_000);
    }
}

impl ToolRateSettings {
    const fn rates(&self) -> ToolRates {
        ToolRates { burst: self.burst, per_second: self.per_second, per_hour: self.per_hour }
    }
}

settings! {
    /// How often each user may post messages and events that can fire routines.
    struct InboundRateSettings {
        /// Messages and events of systems that a user may post at once; 0 for no limit.
        burst: u32 = setting("inbound_rate.burst").default("600").range(0, 1_000_000);
        /// Rate in posts per second at which `inbound_rate.burst` is refilled.
        per_second: u32 = setting("inbound_rate.per_second").default("10").range(1, 1_000);
    }
}

impl InboundRateSettings {
    const fn rates(&self) -> ToolRates {
        ToolRates { burst: self.burst, per_second: self.per_second, per_hour: 0 }
    }
}

settings! {
    fn limits_ceiling() -> Limits, LIMIT_SPECS {
        /// Highest `timeout_seconds` that a job may request.
        timeout_seconds: u64 = setting("limits.timeout_seconds").default("86400").range(1, 31_536_000);
        /// Highest `max_iterations` that a job may request.
        max_iterations: u32 = setting("limits.max_iterations").default("1000").range(1, 1_000_000);
        /// Highest `max_tool_calls` that a job may request.
        max_tool_calls: u32 = setting("limits.max_tool_calls").default("10000").range(1, 10_000_000);
        /// Highest `max_tokens` that a job may request; 0 for no limit.
        max_tokens: u64 = setting("limits.max_tokens").default("0").range(0, 1_000_000_000_000);
        /// Highest `max_cost_usd` that a job may request; 0 for no limit.
        max_cost_usd: f64 = setting("limits.max_cost_usd").default("0").number_range(0.0, 1_000_000.0);
        /// Highest `max_children` that a job may request.
        max_children: u32 = setting("limits.max_children").default("10").range(0, 10);
        /// Highest `memory_mb` that a job may request.
        memory_mb: u64 = setting("limits.memory_mb").default("16384").range(64, 4_194_304);
        /// Highest `cpus` that a job may request.
        cpus: f64 = setting("limits.cpus").default("8").number_range(0.01, 1024.0);
        /// Highest `pids` that a job may request.
        pids: u32 = setting("limits.pids").default("4096").range(16, 1_000_000);
        /// Highest `disk_mb` that a job may request.
        disk_mb: u64 = setting("limits.disk_mb").default("10240").range(1, 67_108_864);
    }
}

settings! {
    /// What a job gets where neither its request nor its user's settings say it.
    #[derive(Debug, Clone, PartialEq, Eq)]
    pub struct JobDefaults {
        /// `timeout_seconds` of jobs that name none; at most `limits.timeout_seconds`.
        pub timeout_seconds: u64 = setting("defaults.timeout_seconds").derived("`3600`, or `limits.timeout_seconds` if that is lower", |reader| Ok(lower_of(Limits::default().timeout_seconds, reader, "limits.timeout_seconds"))).range(1, 31_536_000);
        /// `max_iterations` of jobs that name none; at most `limits.max_iterations`.
        pub max_iterations: u32 = setting("defaults.max_iterations").derived("`50`, or `limits.max_iterations` if that is lower", |reader| Ok(lower_of(Limits::default().max_iterations.into(), reader, "limits.max_iterations"))).range(1, 1_000_000);
        /// Whether jobs begin with a plan where their request does not say it.
        pub plan: bool = setting("defaults.plan").default("false");
        /// Model of jobs where neither the request nor the user's settings name one: `llm.model`, or one of `llm.models`. Chats and lightweight runs use `llm.model`.
        pub model: Option<String> = setting("defaults.model");
    }
}

settings! {
    /// The checked configuration.
    #[derive(Clone)]
    pub struct Config {
        /// Address of the public API.
        pub bind: SocketAddr = setting("bind").default("127.0.0.1:8080").flag("bind", "ADDR");
        /// Address on which metrics are served without authentication; when not set, they are on the public address, for admins.
        pub metrics_bind: Option<SocketAddr> = setting("metrics_bind");
        /// Hosts that requests may name: `host` for any port, or `host:port`.
        pub allowed_hosts: Vec<String> = setting("allowed_hosts").derived("loopback names and the bound address", default_hosts);
        /// Whether the dashboard is served, and sessions of browsers.
        pub dashboard: bool = setting("dashboard").default("true");
        /// Directory of the database, the keys and, by default, the two directories below.
        pub data_dir: PathBuf = setting("data_dir").derived("`/var/lib/gantry` for root, else `$XDG_DATA_HOME/gantry` or `~/.local/share/gantry`", default_data_dir).flag("data-dir", "DIR");
        /// Directory of the sockets of running containers. Must have the same path on the host and in the orchestrator's container.
        pub run_dir: PathBuf = setting("run_dir").derived("`run` in `data_dir`", |reader| Ok(in_data_dir(reader, "run"))).flag("run-dir", "DIR");
        /// Directory of the jobs' workspaces. Must have the same path on the host and in the orchestrator's container.
        pub workspace_dir: PathBuf = setting("workspace_dir").derived("`workspaces` in `data_dir`", |reader| Ok(in_data_dir(reader, "workspaces"))).flag("workspace-dir", "DIR");
        /// Database URL.
        pub database_url: String = setting("database_url").derived("`sqlite://` and `gantry.db` in `data_dir`", |reader| Ok(format!("sqlite://{}", in_data_dir(reader, "gantry.db")))).flag("database-url", "URL");
        /// Key that signs API tokens, at least 32 bytes; when not set, one is created in the data directory.
        pub jwt_secret: Option<SecretString> = setting("jwt_secret");
        /// Key that encrypts users' secrets, 32 bytes in base64; when not set, one is created in the data directory.
        pub master_key: Option<SecretString> = setting("master_key");
        /// UUID that identifies this installation's containers to the engine; when not set, one is created.
        pub instance_id: Option<InstanceId> = setting("instance_id");
        /// Maximum number of jobs that run at once.
        pub max_parallel_jobs: u32 = setting("max_parallel_jobs").default("5").range(1, 1000).flag("max-parallel-jobs", "N");
        /// Maximum number of jobs of one user that run at once.
        pub max_parallel_jobs_per_user: u32 = setting("max_parallel_jobs_per_user").derived("one less than `max_parallel_jobs`, at least 1", |reader| Ok(reader.effective("max_parallel_jobs").parse::<u32>().map_or(1, |jobs| jobs.saturating_sub(1).max(1)).to_string())).range(1, 1000);
        /// Maximum number of jobs without a container that run at once; one user has at most one less. Chats and tools create such jobs where the sandbox is disabled.
        pub max_parallel_host_jobs: u32 = setting("max_parallel_host_jobs").default("4").range(1, 100);
        /// Time in seconds without activity after which a job is stuck.
        pub stuck_after_seconds: u64 = setting("stuck_after_seconds").default("300").range(1, 86_400);
        /// Maximum number of repairs before a stuck job fails.
        pub max_repair_attempts: u32 = setting("max_repair_attempts").default("3").range(0, 10);
        /// Duration in seconds of a worker's lease; each heartbeat renews it.
        pub lease_seconds: u64 = setting("lease_seconds").default("30").range(3, 3600);
        /// Time in seconds for which a worker whose lease has expired retries to reach the orchestrator.
        pub worker_patience_seconds: u64 = setting("worker_patience_seconds").default("120").range(1, 86_400);
        /// Maximum time in seconds from a container's start to its worker's first call.
        pub start_timeout_seconds: u64 = setting("start_timeout_seconds").default("30").range(1, 3600);
        /// Number of containers created in advance. Not available yet: every value but 0 stops the start.
        pub pool_size: u32 = setting("pool_size").default("0").range(0, 100);
        /// Network destinations that jobs and the `http` tool may reach: `host`, `host:port`, `*.suffix`, `preset:NAME`, `*`; port 443 when left out. Private addresses only where an entry is that very address. Empty: none, and the tool is not offered.
        pub egress_ceiling: Vec<String> = setting("egress_ceiling");
        /// Names for hosts that jobs can ask for as `preset:NAME`, each a list of entries such as those of `egress_ceiling`: `npm = ["registry.example"]`. They come before the [built-in ones](egress.md#presets).
        pub egress_presets: BTreeMap<String, Vec<String>> = setting("egress.presets");
        /// Servers that notifications of routines may be posted to: `host`, `host:port`, `*.suffix`, `*`; port 443 when left out. Private addresses only where an entry is that very address. Empty: none.
        pub notify_allow: Vec<String> = setting("notify_allow");
        /// MCP servers whose tools chats and jobs can use, as `[[mcp]]` tables; see `config/README.md`.
        pub mcp: Vec<McpServerSettings> = setting("mcp");
        /// Rules and webhooks that decide about tool calls, messages and jobs, as `[[hooks]]` tables; see `config/README.md`.
        pub hooks: Vec<HookSettings> = setting("hooks");
        /// Maximum number of chat turns at once.
        pub chat_max_turns: u32 = setting("chat.max_turns").default("64").range(1, 1000);
        /// Maximum number of chat turns of one user at once.
        pub chat_max_turns_per_user: u32 = setting("chat.max_turns_per_user").default("16").range(1, 1000);
        /// Messages and commands that a user may send to chats at once, refilled at 1 a second; 0 for no limit.
        pub chat_send_burst: u32 = setting("chat.send_burst").default("120").range(0, 100_000);
        /// Seconds between two heartbeats of users who have chosen no other interval; 0 for none.
        pub heartbeat_every_seconds: u64 = setting("heartbeat.every_seconds").default("1800").range(0, 604_800);
        /// Maximum number of heartbeats at once; each user has one.
        pub heartbeat_max_concurrent: u32 = setting("heartbeat.max_concurrent").default("8").range(1, 1000);
        /// Maximum tokens per user and day (UTC), input and output together; 0 for no limit.
        pub user_day_max_tokens: u64 = setting("user_day.max_tokens").default("0").range(0, 1_000_000_000_000);
        /// Maximum cost in US dollars per user and day (UTC); 0 for no limit.
        pub user_day_max_cost_usd: f64 = setting("user_day.max_cost_usd").default("0").number_range(0.0, 1_000_000.0);
        /// What each user may store in MB: memory, chats, routines, kept payloads, texts of jobs and runs; 0 for no limit.
        pub user_storage_max_mb: u64 = setting("user_storage_max_mb").default("4096").range(0, 67_108_864);
        /// Days for which the events, model calls, tool calls and whole texts of a finished job are kept, and the entries of idle chats.
        pub record_retention_days: u64 = setting("record_retention_days").default("90").range(0, 3650);
        /// Days for which audit entries are kept.
        pub audit_retention_days: u64 = setting("audit_retention_days").default("365").range(0, 3650);
        /// Size in MB of the records of jobs, of the audit and of large chats above which the oldest are deleted early; 0 for no limit.
        pub record_retention_max_mb: u64 = setting("record_retention_max_mb").default("0").range(0, 67_108_864);
        /// Days for which the workspace of a finished job is kept.
        pub workspace_retention_days: u64 = setting("workspace_retention_days").default("7").range(0, 3650);
        /// Free space in MB on the workspaces' file system below which no job starts.
        pub disk_floor_mb: Option<u64> = setting("disk_floor_mb").range(0, 67_108_864);
        /// OTLP endpoint that traces are sent to, such as `http://127.0.0.1:4318`; none when not set.
        pub otel_endpoint: Option<String> = setting("otel_endpoint").variable("OTEL_EXPORTER_OTLP_ENDPOINT");
    }
    computed(reader) {
        /// Where jobs run.
        pub sandbox: SandboxSettings = sandbox::read(reader)?;
        /// The highest limits that a job may request; 0 for `max_tokens` and `max_cost_usd` is no limit.
        pub limits_ceiling: Limits = limits_ceiling(reader)?;
        /// What a job gets where neither its request nor its user's settings say it.
        pub defaults: JobDefaults = JobDefaults::read(reader)?;
        /// How often each user may call each of the orchestrator's tools.
        pub tool_rates: ToolRates = ToolRateSettings::read(reader)?.rates();
        /// How often each user may post messages and events that can fire routines.
        pub inbound_rate: ToolRates = InboundRateSettings::read(reader)?.rates();
        /// The models.
        pub llm: LlmSettings = model::read(reader)?;
        /// Routines.
        pub routines: RoutineSettings = RoutineSettings::read(reader)?;
        /// The log.
        pub log: LogSettings = LogSettings::read(reader)?;
        /// The effective values, with secrets masked.
        pub settings: Vec<EffectiveSetting> = Vec::new();
        /// Problems that do not prevent a start; logged once.
        pub warnings: Vec<String> = Vec::new();
    }
}

impl fmt::Debug for Config {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        // Only the masked values, so that no secret gets into a log.
        f.debug_struct("Config").field("settings", &self.settings).finish_non_exhaustive()
    }
}

impl Config {
    /// Reads all layers.
    pub fn load(environment: &Environment, sources: Sources) -> Result<Self, ConfigError> {
        let mut reader = ConfigReader::new(environment, sources.flags);
        if let Some((path, text)) = read_file(sources.file)? {
            reader.add_file(&path, &text)?;
        }
        let mut config = Self::read(&mut reader)?;
        config.check(&mut reader)?;
        (config.settings, config.warnings) = reader.finish()?;
        Ok(config)
    }
}

/// The log settings for commands that need no other configuration: quiet unless `RUST_LOG` is set.
pub fn log_for_commands(environment: &Environment) -> Result<LogSettings, ConfigError> {
    let mut reader = ConfigReader::new(environment, BTreeMap::new());
    let settings = LogSettings::read(&mut reader)?;
    // How long a statement took does not concern who runs a command.
    let filter = "warn,sqlx=error".to_owned();
    if reader.is_set("log.filter") { Ok(settings) } else { Ok(LogSettings { filter, ..settings }) }
}

fn read_file(path: Option<PathBuf>) -> Result<Option<(PathBuf, String)>, ConfigError> {
    let (path, is_required) = match path {
        Some(path) => (path, true),
        None => (PathBuf::from("gantry.toml"), false),
    };
    match std::fs::read_to_string(&path) {
        Ok(text) => Ok(Some((path, text))),
        Err(error) if error.kind() == std::io::ErrorKind::NotFound && !is_required => Ok(None),
        Err(error) => Err(ConfigError::new(path.display().to_string(), None, format!("cannot read the file: {error}"))),
    }
}

fn default_data_dir(reader: &ConfigReader<'_>) -> Result<String, ConfigError> {
    let environment = reader.environment();
    if environment.is_root() {
        return Ok("/var/lib/gantry".to_owned());
    }
    let path = match (environment.get("XDG_DATA_HOME"), environment.get("HOME")) {
        (Some(directory), _) => Path::new(directory).join("gantry"),
        (None, Some(home)) => Path::new(home).join(".local/share/gantry"),
        (None, None) => return Err(reader.missing("data_dir", "must be set because HOME is not")),
    };
    Ok(path.display().to_string())
}

/// A default, or the value of a setting that was read before if that is lower.
fn lower_of(default: u64, reader: &ConfigReader<'_>, ceiling: &str) -> String {
    reader.effective(ceiling).parse::<u64>().map_or(default, |ceiling| ceiling.min(default)).to_string()
}

fn in_data_dir(reader: &ConfigReader<'_>, name: &str) -> String {
    let data_dir = reader.effective("data_dir");
    // The database URL needs an absolute path.
    std::path::absolute(data_dir).unwrap_or_else(|_| data_dir.into()).join(name).display().to_string()
}

#[expect(clippy::unnecessary_wraps, reason = "a derived default may fail")]
fn default_hosts(reader: &ConfigReader<'_>) -> Result<String, ConfigError> {
    let mut hosts = "localhost,127.0.0.1,[::1]".to_owned();
    if let Ok(bind) = reader.effective("bind").parse::<SocketAddr>() {
        let own = if bind.is_ipv6() { format!("[{}]", bind.ip()) } else { bind.ip().to_string() };
        if !bind.ip().is_unspecified() && !hosts.split(',').any(|host| host == own) {
            hosts = format!("{hosts},{own}");
        }
    }
    Ok(hosts)
}

#[cfg(test)]
mod tests;
