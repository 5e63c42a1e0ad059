//! Tests of the layers' precedence, defaults, and errors about invalid values.

use std::io::Write;

use rstest::rstest;
use secrecy::ExposeSecret as _;

use super::*;

fn load_with(file: &str, variables: &[(&str, &str)], flags: &[(&str, &str)]) -> Result<Config, ConfigError> {
    let mut home = vec![("HOME", "/home/ada")];
    home.extend_from_slice(variables);
    let environment = Environment::from_pairs(home);
    let mut written = tempfile::Builder::new().prefix("gantry").suffix(".toml").tempfile().unwrap();
    written.write_all(file.as_bytes()).unwrap();
    let flags = flags.iter().map(|(key, value)| ((*key).to_owned(), (*value).to_owned())).collect();
    Config::load(&environment, Sources { file: Some(written.path().to_owned()), flags })
}

#[test]
fn without_settings_the_demo_runs_on_loopback() {
    let config = load_with("", &[], &[]).unwrap();
    assert_eq!(config.bind.to_string(), "127.0.0.1:8080");
    assert_eq!(config.data_dir, Path::new("/home/ada/.local/share/gantry"));
    assert_eq!(config.run_dir, Path::new("/home/ada/.local/share/gantry/run"));
    assert_eq!(config.workspace_dir, Path::new("/home/ada/.local/share/gantry/workspaces"));
    assert_eq!(config.database_url, "sqlite:///home/ada/.local/share/gantry/gantry.db");
    assert_eq!(config.allowed_hosts, ["localhost", "127.0.0.1", "[::1]"]);
    assert_eq!(config.sandbox.mode, SandboxMode::Docker);
    assert_eq!(config.sandbox.image, "gantry-worker:latest");
    assert_eq!((config.max_parallel_jobs, config.max_parallel_jobs_per_user), (5, 4));
    assert_eq!(config.llm.outage_patience_seconds, 300);
    assert_eq!((config.stuck_after_seconds, config.lease_seconds, config.worker_patience_seconds), (300, 30, 120));
    assert_eq!(config.llm.primary.kind, ProviderKind::Scripted);
    assert!(config.llm.is_demo);
    assert_eq!(config.limits_ceiling.timeout_seconds, 86_400);
    assert!(config.warnings.is_empty(), "{:?}", config.warnings);
}

#[test]
fn flags_override_variables_and_variables_override_the_file() {
    let file = "max_parallel_jobs = 2\nstuck_after_seconds = 20\nlease_seconds = 10\n[sandbox]\nmode = 'disabled'";
    let variables =
        [("GANTRY_MAX_PARALLEL_JOBS", "3"), ("GANTRY_STUCK_AFTER_SECONDS", "30"), ("GANTRY_SANDBOX", "docker")];
    let config = load_with(file, &variables, &[("max_parallel_jobs", "4")]).unwrap();
    assert_eq!((config.max_parallel_jobs, config.stuck_after_seconds, config.lease_seconds), (4, 30, 10));
    assert_eq!(config.max_parallel_jobs_per_user, 3, "one less unless set");
    assert_eq!(config.sandbox.mode, SandboxMode::Docker);
    let origin = |key: &str| config.settings.iter().find(|s| s.key == key).unwrap().origin.clone();
    assert_eq!(origin("max_parallel_jobs"), "flag");
    assert_eq!(origin("stuck_after_seconds"), "GANTRY_STUCK_AFTER_SECONDS");
    assert!(origin("lease_seconds").starts_with("gantry"), "the file's name");
    assert_eq!(origin("pool_size"), "default");
}

#[test]
fn the_sandbox_mode_has_a_short_form() {
    assert_eq!(load_with("sandbox = 'disabled'", &[], &[]).unwrap().sandbox.mode, SandboxMode::Disabled);
}

fn in_repository(path: &str) -> String {
    std::fs::read_to_string(Path::new(env!("CARGO_MANIFEST_DIR")).join("../..").join(path)).unwrap()
}

/// Compose drops variables that its file does not list.
#[test]
fn the_compose_file_passes_every_variable() {
    // The Compose file sets these itself.
    let fixed = [
        "GANTRY_BIND",
        "GANTRY_DATA_DIR",
        "GANTRY_RUN_DIR",
        "GANTRY_WORKSPACE_DIR",
        "GANTRY_DATABASE_URL",
        "GANTRY_SANDBOX_IMAGE",
        "DOCKER_HOST",
    ];
    let compose = in_repository("compose.yaml");
    let passed: Vec<&str> = compose.lines().filter_map(|line| line.trim().strip_prefix("- ")).collect();
    // Tables can only be set in the file.
    let variables = all_specs().filter(|spec| spec.kind != Kind::Table).flat_map(SettingSpec::env_variables);
    let dropped: Vec<String> =
        variables.filter(|name| !fixed.contains(&name.as_str()) && !passed.contains(&name.as_str())).collect();
    assert!(dropped.is_empty(), "add to compose.yaml: {dropped:?}");
}

#[test]
fn every_declared_setting_is_read_and_every_default_is_valid() {
    let config = load_with("", &[], &[]).unwrap();
    let read: Vec<&str> = config.settings.iter().map(|setting| setting.key.as_str()).collect();
    let declared: Vec<&str> = all_specs().map(|spec| spec.key).collect();
    let missing: Vec<_> = declared.iter().filter(|key| !read.contains(*key)).collect();
    assert!(missing.is_empty() && read.len() == declared.len(), "{missing:?}, read {}", read.len());
}

#[test]
fn the_documentation_lists_every_setting() {
    let document = in_repository("docs/configuration.md");
    let table = setting::markdown(all_specs());
    let (start, end) = ("<!-- settings -->\n", "<!-- end of settings -->");
    let current = document.split_once(start).and_then(|(_, rest)| rest.split_once(end)).map(|(table, _)| table);
    assert!(current == Some(table.as_str()), "replace the table in docs/configuration.md with:\n\n{table}");
}

#[test]
fn every_setting_has_a_unique_variable() {
    let config = load_with("", &[], &[]).unwrap();
    let with_variable = config.settings.iter().filter(|setting| setting.variable.is_some()).count();
    let variables: std::collections::BTreeSet<_> = config.settings.iter().filter_map(|s| s.variable.clone()).collect();
    assert_eq!(variables.len(), with_variable, "{:?}", config.settings);
    let only_in_the_file = config.settings.iter().filter(|setting| setting.variable.is_none()).map(|s| s.key.as_str());
    assert_eq!(only_in_the_file.collect::<Vec<_>>(), ["egress.presets", "mcp", "hooks", "llm.prices", "llm.dialect"]);
    for name in [
        "BIND",
        "DATABASE_URL",
        "DATA_DIR",
        "RUN_DIR",
        "WORKSPACE_DIR",
        "JWT_SECRET",
        "SANDBOX",
        "SANDBOX_IMAGE",
        "SANDBOX_RUNTIME",
        "SANDBOX_INET_DATAGRAMS",
        "SANDBOX_TRANSPORT",
        "MAX_PARALLEL_JOBS",
        "STUCK_AFTER_SECONDS",
        "POOL_SIZE",
        "INSTANCE_ID",
        "ROUTINE_MIN_INTERVAL_SECONDS",
        "MAX_CONCURRENT_ROUTINES",
        "LLM_PROVIDER",
        "LLM_BASE_URL",
        "LLM_API_KEY",
        "LLM_MODEL",
        "LLM_SCRIPT",
        "CRON_ENABLED",
        "EGRESS_CEILING",
        "ALLOWED_HOSTS",
        "METRICS_BIND",
        "WORKSPACE_RETENTION_DAYS",
        "MASTER_KEY",
    ] {
        assert!(variables.contains(&format!("GANTRY_{name}")), "others depend on GANTRY_{name}");
    }
}

#[test]
fn the_defaults_of_jobs_are_at_most_their_ceilings() {
    let shown = |config: &Config| {
        let keys = ["timeout_seconds", "max_iterations", "plan", "model"].map(|key| format!("defaults.{key}"));
        let value = |key: &String| config.settings.iter().find(|one| one.key == *key).unwrap().value.clone();
        keys.each_ref().map(value).map(Option::unwrap_or_default)
    };
    assert_eq!(shown(&load_with("", &[], &[]).unwrap()), ["3600", "50", "false", "scripted"]);
    let file = "llm.models = ['large']\n[limits]\ntimeout_seconds = 600\nmax_iterations = 20";
    let config = load_with(file, &[("GANTRY_DEFAULTS_MODEL", "large")], &[]).unwrap();
    assert_eq!(shown(&config), ["600", "20", "false", "large"]);
    let file = "[defaults]\ntimeout_seconds = 86400\nmax_iterations = 7\nplan = true";
    let config = load_with(file, &[], &[]).unwrap();
    let JobDefaults { timeout_seconds, max_iterations, plan, model } = config.defaults;
    assert_eq!((timeout_seconds, max_iterations, plan, model), (86_400, 7, true, None));
}

#[test]
fn an_empty_variable_is_not_set() {
    let config =
        load_with("", &[("GANTRY_LLM_API_KEY", ""), ("GANTRY_BIND", ""), ("GANTRY_LLM_PROVIDER", "")], &[]).unwrap();
    assert!(config.llm.is_demo);
}

#[rstest]
#[case("", &[("GANTRY_BIND", "8080")], "GANTRY_BIND=8080: must be an address and port such as 127.0.0.1:8080")]
#[case("", &[("GANTRY_MAX_PARALLEL_JOBS", "many")], "GANTRY_MAX_PARALLEL_JOBS=many: must be an integer from 1 to 1000")]
#[case("", &[("GANTRY_MAX_PARALLEL_JOBS", "0")], "GANTRY_MAX_PARALLEL_JOBS=0: must be an integer from 1 to 1000")]
#[case("", &[("GANTRY_MAX_PARALLEL_JOBS", "-1")], "GANTRY_MAX_PARALLEL_JOBS=-1: must be an integer from 1 to 1000")]
#[case("", &[("GANTRY_SANDBOX", "podman")], "GANTRY_SANDBOX=podman: must be one of docker, swarm, disabled")]
#[case("", &[("GANTRY_SANDBOX", "swarm")], "GANTRY_SANDBOX=swarm: swarm is not available yet: use docker or disabled")]
#[case("", &[("GANTRY_SANDBOX_TRANSPORT", "tcp")], "GANTRY_SANDBOX_TRANSPORT=tcp: tcp is not available yet: use unix")]
#[case("", &[("GANTRY_POOL_SIZE", "2")], "GANTRY_POOL_SIZE=2: a pool of containers is not available yet: use 0")]
#[case("", &[("DOCKER_HOST", "zzz://x")], "DOCKER_HOST=zzz://x: must be an engine address")]
#[case("", &[("DOCKER_HOST", "/var/run/docker.sock")], "DOCKER_HOST=/var/run/docker.sock: must be an engine address")]
#[case("", &[("DOCKER_HOST", "unix://")], "DOCKER_HOST=unix://: must be an engine address")]
#[case("", &[("GANTRY_CRON_ENABLED", "perhaps")], "GANTRY_CRON_ENABLED=perhaps: must be true or false")]
#[case("", &[("GANTRY_INSTANCE_ID", "one")], "GANTRY_INSTANCE_ID=one: must be a UUID")]
#[case("", &[("GANTRY_LLM_PROVIDER", "acme")], "GANTRY_LLM_PROVIDER=acme: must be one of openai, anthropic, ollama, scripted")]
#[case("", &[("GANTRY_LLM_PROVIDER", "openai"), ("GANTRY_LLM_API_KEY", "k")], "GANTRY_LLM_MODEL: must be the name of a model of openai")]
#[case("", &[("GANTRY_LLM_PROVIDER", "anthropic"), ("GANTRY_LLM_MODEL", "m")], "GANTRY_LLM_API_KEY: must be set to use anthropic")]
#[case("", &[("GANTRY_LLM_API_KEY", "sk-secret")], "GANTRY_LLM_API_KEY: needs GANTRY_LLM_PROVIDER")]
#[case("", &[("GANTRY_LLM_TIMEOUT_SECONDS", "2m")], "GANTRY_LLM_TIMEOUT_SECONDS=2m: must be an integer")]
#[case("", &[("GANTRY_MASTER_KEY", "hush")], "GANTRY_MASTER_KEY: must be 32 bytes in base64")]
#[case("", &[("GANTRY_JWT_SECRET", "short")], "GANTRY_JWT_SECRET: must be at least 32 bytes")]
#[case("", &[("GANTRY_DATABASE_URL", "postgres://u:hush@h/d")], "GANTRY_DATABASE_URL: PostgreSQL is not available yet")]
#[case("", &[("GANTRY_DATABASE_URL", "mysql://u:hush@h/d")], "GANTRY_DATABASE_URL: must start with sqlite:")]
#[case("", &[("GANTRY_JWT_SECRET_FILE", "/not/there")], "GANTRY_JWT_SECRET_FILE=/not/there: cannot read the file")]
#[case("", &[("GANTRY_LIMITS_CPUS", "NaN")], "GANTRY_LIMITS_CPUS=NaN: must be a number from 0.01 to 1024")]
#[case("[limits]\ntimeout_seconds = 600\n[defaults]\ntimeout_seconds = 601", &[], "defaults.timeout_seconds=601: must be at most limits.timeout_seconds, 600")]
#[case("", &[("GANTRY_DEFAULTS_MAX_ITERATIONS", "1001")], "GANTRY_DEFAULTS_MAX_ITERATIONS=1001: must be at most limits.max_iterations, 1000")]
#[case("", &[("GANTRY_DEFAULTS_PLAN", "maybe")], "GANTRY_DEFAULTS_PLAN=maybe: must be true or false")]
#[case("llm.models = ['large']", &[("GANTRY_DEFAULTS_MODEL", "huge")], "GANTRY_DEFAULTS_MODEL=huge: must be llm.model or one of llm.models: scripted, large")]
#[case("", &[("GANTRY_LOG_FORMAT", "xml")], "GANTRY_LOG_FORMAT=xml: must be one of auto, pretty, json")]
#[case("", &[("GANTRY_ALLOWED_HOSTS", "a b")], "GANTRY_ALLOWED_HOSTS=a b: must be host names")]
#[case("llm.provider = 'openai'\nllm.api_key = ''\nllm.model = 'm'", &[], "llm.api_key: must not be empty")]
#[case("", &[("GANTRY_ALLOWED_HOSTS", "::1")], "GANTRY_ALLOWED_HOSTS=::1: must be host names")]
#[case("", &[("GANTRY_ALLOWED_HOSTS", "localhost:99999")], "GANTRY_ALLOWED_HOSTS=localhost:99999: must be host names")]
#[case("", &[("GANTRY_ALLOWED_HOSTS", "a,:80")], "GANTRY_ALLOWED_HOSTS=a,:80: must be host names")]
#[case("", &[("GANTRY_ALLOWED_HOSTS", "[::1")], "GANTRY_ALLOWED_HOSTS=[::1: must be host names")]
#[case("sandbox.images = 'a'\nsandbox.image = 1", &[], "sandbox.image=1: must be a string")]
#[case("sandbox.images = [1]", &[], "sandbox.images=1: must be a list of strings")]
#[case("", &[("GANTRY_LLM_PRICES", "1")], "GANTRY_LLM_PRICES: can only be set in the configuration file")]
#[case("llm.prices.m = { input_usd_per_million_tokens = -1, output_usd_per_million_tokens = 1 }", &[], "m: a price must be from 0 to 1000000")]
#[case("max_parallel_jobs = 'x'", &[], "max_parallel_jobs=x: must be an integer")]
#[case("max_parallel_job = 1", &[], "max_parallel_job: unknown key")]
#[case("[sandbox]\nimag = 'x'", &[], "sandbox.imag: unknown key")]
#[case("[[llm.failover]]\nmodel = 'x'", &[], "llm.failover.0.provider: must be set: openai, anthropic or ollama")]
#[case("[[llm.failover]]\nprovider = 'ollama'", &[], "LLM_FAILOVER_0_MODEL: must be the name of a model of ollama")]
#[case("[[llm.failover]]\nprovider = 'ollama'\nmodel = 'x'\nmodal = 'x'", &[], "llm.failover.0.modal: unknown key")]
#[case("[llm.failover]\nprovider = 'ollama'", &[], "llm.failover.provider: must be in a list of tables; begin each with [[llm.failover]]")]
#[case("llm.dialect.temperature = 0.3", &[], "llm.dialect.temperature: must be send or omit")]
#[case("llm.dialect.temperature = '0.3'", &[], "llm.dialect.temperature: must be send or omit")]
#[case("llm.dialect.order = true", &[], "llm.dialect.order: must be one of free, text_in_results, alternating")]
#[case("llm.dialect.max_output_tokens = 0", &[], "llm.dialect.max_output_tokens: must be an integer of at least 1")]
#[case("llm.dialect.max_output_tokens = -1", &[], "llm.dialect.max_output_tokens: must be an integer of at least 1")]
#[case("llm.dialect.left_out_tools = 'x'", &[], "llm.dialect.left_out_tools: must be a list of strings")]
#[case("llm.dialect.one_call_per_message = 1", &[], "llm.dialect.one_call_per_message: must be true or false")]
#[case("llm.dialect.temprature = 'omit'", &[], "llm.dialect.temprature: unknown key; must be wire, output_limit, ")]
#[case("llm.dialect = 'chat'", &[], "llm.dialect: must be a table")]
#[case("llm.dialect.wire = 'responses'", &[("GANTRY_LLM_PROVIDER", "ollama"), ("GANTRY_LLM_MODEL", "m")], "llm.dialect.wire: must be chat; only the provider openai has responses")]
#[case("[[llm.failover]]\nprovider = 'ollama'\nmodel = 'x'\ndialect.wire = 'x'", &[], "llm.failover.0.dialect.wire: must be chat or responses")]
#[case("[llm.prices.m]\ninput = 1", &[], "llm.prices: unknown field `input`")]
#[case("bind = ", &[], "line 1: not valid TOML")]
fn an_invalid_value_is_one_line_that_names_the_setting(
    #[case] file: &str,
    #[case] variables: &[(&str, &str)],
    #[case] wanted: &str,
) {
    let message = load_with(file, variables, &[]).unwrap_err().to_string();
    assert!(message.contains(wanted), "{message}");
    assert!(!message.contains('\n'), "{message}");
    assert!(!message.contains("hush") && !message.contains("sk-secret") && !message.contains("=short"), "{message}");
}

#[test]
fn an_unknown_flag_key_is_refused() {
    let error = load_with("", &[], &[("no_such", "1")]).unwrap_err();
    assert_eq!(error.to_string(), "--set no_such: unknown key; `gantry config` lists all keys");
}

#[test]
fn an_unknown_variable_is_a_warning() {
    let config =
        load_with("", &[("GANTRY_MAX_PARALEL_JOBS", "3"), ("GANTRY_URL", "x"), ("GANTRY_TOKEN", "y")], &[]).unwrap();
    assert_eq!(config.warnings, ["GANTRY_MAX_PARALEL_JOBS is set, but there is no such setting"]);
}

#[test]
fn secrets_can_come_from_files_and_are_never_shown() {
    let key = tempfile::NamedTempFile::new().unwrap();
    std::fs::write(key.path(), "0123456789abcdef0123456789abcdef\n").unwrap();
    let path = key.path().to_str().unwrap();
    let config = load_with("", &[("GANTRY_JWT_SECRET_FILE", path)], &[]).unwrap();
    let secret = config.jwt_secret.clone().unwrap();
    assert_eq!(secret.expose_secret(), "0123456789abcdef0123456789abcdef", "without its line end");
    assert!(!format!("{config:?}").contains("0123456789abcdef"));
    let setting = config.settings.iter().find(|s| s.key == "jwt_secret").unwrap();
    assert_eq!((setting.value.as_deref(), setting.origin.as_str()), (Some("********"), "GANTRY_JWT_SECRET_FILE"));

    let both = [("GANTRY_JWT_SECRET_FILE", path), ("GANTRY_JWT_SECRET", "0123456789abcdef0123456789abcdef")];
    assert!(load_with("", &both, &[]).unwrap_err().to_string().contains("remove one of them"));
}

#[test]
fn failover_and_prices_come_from_the_file() {
    let file = r#"
[llm]
provider = "openai"
base_url = "http://127.0.0.1:9/v1"
model = "big"
models = ["small"]
[[llm.failover]]
provider = "ollama"
model = "tiny"
timeout_seconds = 5
[llm.failover.dialect]
call_ids = "nine"
[llm.dialect]
wire = "responses"
tool_choice = "omit"
[llm.prices."big.1"]
input_usd_per_million_tokens = 1.5
output_usd_per_million_tokens = 6.0
"#;
    let config = load_with(file, &[("GANTRY_LLM_FAILOVER_0_TIMEOUT_SECONDS", "7")], &[]).unwrap();
    assert_eq!(config.llm.primary.name, "openai");
    assert!(config.llm.primary.api_key.is_none(), "a local server needs none");
    assert_eq!(config.llm.models, ["small"]);
    let second = &config.llm.failover[0];
    assert_eq!((second.name.as_str(), second.model.as_str(), second.timeout_seconds), ("ollama-2", "tiny", 7));
    assert_eq!(second.base_url, "http://127.0.0.1:11434");
    assert_eq!(config.llm.primary.dialect.wire, Some(OpenAiWire::Responses));
    assert_eq!(second.dialect.call_ids, Some(CallIds::Nine));
    let shown = |key: &str| config.settings.iter().find(|s| s.key == key).and_then(|s| s.value.clone());
    assert_eq!(shown("llm.dialect").as_deref(), Some(r#"{ tool_choice = "omit", wire = "responses" }"#));
    assert_eq!(shown("llm.failover.0.dialect").as_deref(), Some(r#"{ call_ids = "nine" }"#));
    assert!((config.llm.prices["big.1"].output_usd_per_million_tokens - 6.0).abs() < f64::EPSILON);
}

#[test]
fn the_example_of_a_dialect_is_one() {
    let readme = include_str!("../../../config/README.md");
    let (_, example) = readme.split_once("```toml\n[llm.dialect]").expect("the example");
    let (example, _) = example.split_once("```").expect("its end");
    let provider = [
        ("GANTRY_LLM_PROVIDER", "openai"),
        ("GANTRY_LLM_MODEL", "tiny"),
        ("GANTRY_LLM_BASE_URL", "http://127.0.0.1:9/v1"),
    ];
    let config = load_with(&format!("[llm.dialect]{example}"), &provider, &[]).unwrap();
    assert_eq!(config.llm.primary.dialect.one_call_per_message, Some(true), "{:?}", config.llm.primary.dialect);
}

#[test]
fn a_variable_that_is_not_utf8_is_refused() {
    let environment = Environment::from_pairs([("HOME", "/home/ada")]).with_not_unicode("GANTRY_JWT_SECRET");
    let error = Config::load(&environment, Sources::default()).unwrap_err();
    assert_eq!(error.to_string(), "GANTRY_JWT_SECRET: must be valid UTF-8");
}

#[rstest]
#[case("[::1]:8080")]
#[case("Gantry.example.org:443")]
#[case("a_b-c.local")]
fn valid_host_names_are_accepted(#[case] host: &str) {
    let config = load_with("", &[("GANTRY_ALLOWED_HOSTS", host)], &[]).unwrap();
    assert_eq!(config.allowed_hosts, [host.to_ascii_lowercase()]);
}

#[test]
fn the_bound_address_is_an_allowed_host() {
    let config = load_with("", &[("GANTRY_BIND", "192.0.2.7:80")], &[]).unwrap();
    assert!(config.allowed_hosts.contains(&"192.0.2.7".to_owned()));
    let any = load_with("", &[("GANTRY_BIND", "0.0.0.0:80")], &[]).unwrap();
    assert!(!any.allowed_hosts.contains(&"0.0.0.0".to_owned()));
}

#[rstest]
#[case(43, true)]
#[case(44, false)]
fn a_socket_path_over_107_bytes_is_refused(#[case] length: usize, #[case] fits: bool) {
    let run_dir = format!("/{}", "r".repeat(length - 1));
    let result = load_with("", &[("GANTRY_RUN_DIR", &run_dir)], &[]);
    assert_eq!(result.is_ok(), fits, "{result:?}");
    if let Err(error) = result {
        assert!(error.to_string().starts_with("GANTRY_RUN_DIR="), "{error}");
    }
}

#[test]
fn no_secret_of_a_url_is_shown() {
    let file = "[llm]\nprovider = 'openai'\nmodel = 'm'\nbase_url = 'http://bob:hunter2@127.0.0.1:9/v1?key=abc'\n\
        [[llm.failover]]\nprovider = 'ollama'\nmodel = 'n'\nbase_url = 'http://eve:hunter2@127.0.0.1:9?key=abc'";
    let variables = [
        ("GANTRY_DATABASE_URL", "sqlite:///tmp/x.db?key=abc"),
        ("OTEL_EXPORTER_OTLP_ENDPOINT", "http://bob:hunter2@127.0.0.1:4318"),
        ("DOCKER_HOST", "tcp://bob:hunter2@127.0.0.1:2375"),
    ];
    let config = load_with(file, &variables, &[("egress_ceiling", "https://bob:hunter2@a,b")]).unwrap();
    assert_eq!(config.llm.primary.base_url, "http://bob:hunter2@127.0.0.1:9/v1?key=abc", "used as given");
    assert_eq!(config.database_url, "sqlite:///tmp/x.db?key=abc");
    for shown in [format!("{config:?}"), serde_json::to_string(&config.settings).unwrap(), format!("{:?}", config.llm)]
    {
        assert!(!shown.contains("hunter2") && !shown.contains("abc"), "{shown}");
    }
    let shown = |key: &str| config.settings.iter().find(|s| s.key == key).and_then(|s| s.value.clone());
    assert_eq!(shown("llm.base_url").as_deref(), Some("http://********@127.0.0.1:9/v1?key=********"));
    assert_eq!(shown("database_url").as_deref(), Some("sqlite:///tmp/x.db?key=********"));

    let wrong = [
        ("GANTRY_LLM_PROVIDER", "openai"),
        ("GANTRY_LLM_MODEL", "m"),
        ("GANTRY_LLM_BASE_URL", "ftp://bob:hunter2@host/?key=abc"),
    ];
    let error = load_with("", &wrong, &[]).unwrap_err().to_string();
    assert!(error.contains("ftp://********@host/?key=********") && !error.contains("hunter2"), "{error}");
}
