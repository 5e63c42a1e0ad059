//! `gantry config`, and the flags by which the other local commands set what the configuration holds.

use std::{collections::BTreeMap, path::PathBuf};

use clap::Args;
use comfy_table::{Table, presets};

use super::{
    exit::{CliError, Exit},
    output::Output,
};
use crate::config::{Config, Environment, Sources};

/// Flags that set what is in `gantry.toml`.
#[derive(Debug, Default, Args)]
pub(super) struct ConfigFlags {
    /// The configuration file (default: gantry.toml, if it is there)
    #[arg(long, value_name = "FILE")]
    config: Option<PathBuf>,
    #[arg(long, value_name = "ADDR", help = "The public API's address [GANTRY_BIND]")]
    bind: Option<String>,
    #[arg(long, value_name = "DIR", help = "Database, keys and folders [GANTRY_DATA_DIR]")]
    data_dir: Option<String>,
    #[arg(long, value_name = "DIR", help = "Sockets of live containers [GANTRY_RUN_DIR]")]
    run_dir: Option<String>,
    #[arg(long, value_name = "DIR", help = "The jobs' workspaces [GANTRY_WORKSPACE_DIR]")]
    workspace_dir: Option<String>,
    #[arg(long, value_name = "URL", help = "The database [GANTRY_DATABASE_URL]")]
    database_url: Option<String>,
    #[arg(long, value_name = "MODE", help = "docker or disabled [GANTRY_SANDBOX]")]
    sandbox: Option<String>,
    #[arg(long, value_name = "IMAGE", help = "The default job image [GANTRY_SANDBOX_IMAGE]")]
    sandbox_image: Option<String>,
    #[arg(long, value_name = "NAME", help = "The runtime of job containers [GANTRY_SANDBOX_RUNTIME]")]
    sandbox_runtime: Option<String>,
    #[arg(long, value_name = "N", help = "Jobs at once [GANTRY_MAX_PARALLEL_JOBS]")]
    max_parallel_jobs: Option<String>,
    #[arg(long, value_name = "NAME", help = "openai, anthropic, ollama or scripted [GANTRY_LLM_PROVIDER]")]
    llm_provider: Option<String>,
    #[arg(long, value_name = "URL", help = "Where the provider answers [GANTRY_LLM_BASE_URL]")]
    llm_base_url: Option<String>,
    #[arg(long, value_name = "NAME", help = "The model [GANTRY_LLM_MODEL]")]
    llm_model: Option<String>,
    #[arg(long, value_name = "FILE", help = "A script for the provider scripted [GANTRY_LLM_SCRIPT]")]
    llm_script: Option<String>,
    /// Any other setting by its key; `gantry config` lists them
    #[arg(long = "set", value_name = "KEY=VALUE")]
    set: Vec<String>,
}

impl ConfigFlags {
    /// Reads the configuration with these flags on top.
    pub(super) fn load(self, environment: &Environment) -> Result<Config, CliError> {
        let named = [
            ("bind", self.bind),
            ("data_dir", self.data_dir),
            ("run_dir", self.run_dir),
            ("workspace_dir", self.workspace_dir),
            ("database_url", self.database_url),
            ("sandbox.mode", self.sandbox),
            ("sandbox.image", self.sandbox_image),
            ("sandbox.runtime", self.sandbox_runtime),
            ("max_parallel_jobs", self.max_parallel_jobs),
            ("llm.provider", self.llm_provider),
            ("llm.base_url", self.llm_base_url),
            ("llm.model", self.llm_model),
            ("llm.script", self.llm_script),
        ];
        let mut flags: BTreeMap<String, String> =
            named.into_iter().filter_map(|(key, value)| Some((key.to_owned(), value?))).collect();
        for pair in self.set {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| CliError::Usage(format!("--set {pair}: must be KEY=VALUE")))?;
            // Arguments are seen by every process of the machine.
            if ["_key", "_secret", "_token", "_password"].iter().any(|end| key.ends_with(end)) {
                return Err(CliError::Usage(format!("--set {key}: a secret comes by its variable or its _file form")));
            }
            flags.insert(key.to_owned(), value.to_owned());
        }
        Ok(Config::load(environment, Sources { file: self.config, flags })?)
    }
}

/// Its arguments.
#[derive(Debug, Args)]
pub(super) struct ConfigArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub(super) fn run(args: ConfigArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    let value = serde_json::json!({"settings": config.settings, "warnings": config.warnings});
    output.either(&value, |paint| {
        let mut table = Table::new();
        table.load_style(presets::NOTHING).set_header(["key", "value", "from", "variable"]);
        for setting in &config.settings {
            table.add_row([
                setting.key.as_str(),
                setting.value.as_deref().unwrap_or("-"),
                setting.origin.as_str(),
                setting.variable.as_str(),
            ]);
        }
        let warnings = config.warnings.iter().map(|text| format!("\n{} {text}", paint.yellow("warning:")));
        format!("{}{}", table.trim_fmt(), warnings.collect::<String>())
    })?;
    Ok(Exit::Fine)
}
