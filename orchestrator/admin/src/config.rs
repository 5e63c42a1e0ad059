//! `gantry config`, and the flags of local commands that set configuration values.
//!
//! The flags are generated from the settings' declarations in `config`.

use std::{collections::BTreeMap, path::PathBuf};

use clap::{Arg, ArgAction, ArgMatches, Args, Command, FromArgMatches, value_parser};

use cli::{CliError, Column, Exit, Output, TableArgs, View, one_line, table};

use crate::{configuration, serve::to_cli_error};
use base::{Environment, clock::Clock};
use config::{Config, EffectiveSetting, Sources, all_specs};

/// Suffixes of keys whose values must not be given as arguments, which every process on the machine can read.
const SECRET_SUFFIXES: [&str; 4] = ["_key", "_secret", "_token", "_password"];

/// Flags that override settings of `gantry.toml`.
#[derive(Debug, Default)]
pub(super) struct ConfigFlags {
    file: Option<PathBuf>,
    /// Values of flags by the key they set.
    named: BTreeMap<String, String>,
    /// `KEY=VALUE`.
    set: Vec<String>,
}

impl Args for ConfigFlags {
    fn augment_args(command: Command) -> Command {
        let file = Arg::new("config")
            .long("config")
            .value_name("FILE")
            .value_parser(value_parser!(PathBuf))
            .help("Configuration file (default: gantry.toml, if it exists)");
        let named = all_specs().filter_map(|spec| {
            let (name, placeholder) = spec.flag?;
            let help = format!("{} [{}]", spec.help.trim().trim_end_matches('.'), spec.env_variable());
            Some(Arg::new(spec.key).long(name).value_name(placeholder).help(help))
        });
        let set = Arg::new("set")
            .long("set")
            .value_name("KEY=VALUE")
            .action(ArgAction::Append)
            .help("Any other setting by its key; `gantry config` lists them");
        command.arg(file).args(named).arg(set)
    }

    fn augment_args_for_update(command: Command) -> Command {
        Self::augment_args(command)
    }
}

impl FromArgMatches for ConfigFlags {
    fn from_arg_matches(matches: &ArgMatches) -> Result<Self, clap::Error> {
        let named = all_specs()
            .filter(|spec| spec.flag.is_some())
            .filter_map(|spec| matches.get_one::<String>(spec.key).map(|value| (spec.key.to_owned(), value.clone())));
        Ok(Self {
            file: matches.get_one("config").cloned(),
            named: named.collect(),
            set: matches.get_many("set").into_iter().flatten().cloned().collect(),
        })
    }

    fn update_from_arg_matches(&mut self, matches: &ArgMatches) -> Result<(), clap::Error> {
        *self = Self::from_arg_matches(matches)?;
        Ok(())
    }
}

impl ConfigFlags {
    /// Reads the configuration with these flags on top.
    pub(super) fn load(self, environment: &Environment) -> Result<Config, CliError> {
        let mut flags = self.named;
        for pair in self.set {
            let (key, value) =
                pair.split_once('=').ok_or_else(|| CliError::Usage(format!("--set {pair}: must be KEY=VALUE")))?;
            if SECRET_SUFFIXES.iter().any(|suffix| key.ends_with(suffix)) {
                let detail = format!("--set {key}: set a secret by its environment variable or by the key {key}_file");
                return Err(CliError::Usage(detail));
            }
            flags.insert(key.to_owned(), value.to_owned());
        }
        Config::load(environment, Sources { file: self.file, flags }).map_err(configuration)
    }
}

/// Where commands that work on the server's files find them: the configuration that the server has.
#[derive(Debug, Default, Args)]
#[command(next_help_heading = "Server configuration")]
pub struct ConfigSource {
    /// Configuration file of the server (default: gantry.toml, if it exists)
    #[arg(id = "server-config", long = "config", value_name = "FILE")]
    file: Option<PathBuf>,
    #[arg(
        id = "server-set",
        long = "set",
        value_name = "KEY=VALUE",
        help = "Setting of the server, such as data_dir=PATH; `gantry config` lists them"
    )]
    set: Vec<String>,
}

impl ConfigSource {
    /// Reads the configuration.
    pub(super) fn load(self, environment: &Environment) -> Result<Config, CliError> {
        ConfigFlags { file: self.file, named: BTreeMap::new(), set: self.set }.load(environment)
    }

    /// Whether an option is given.
    pub(super) const fn is_given(&self) -> bool {
        self.file.is_some() || !self.set.is_empty()
    }
}

#[derive(Debug, Args)]
pub struct ConfigArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub fn run(args: ConfigArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    app::check(&config).map_err(|error| to_cli_error(&error))?;
    let value = serde_json::json!({"settings": config.settings, "warnings": config.warnings});
    let view = View::new(output, &TableArgs::default(), Clock::system().now(), None);
    output.either(&value, |paint| {
        let table = table(SETTINGS, &config.settings, &view);
        let warnings = config.warnings.iter().map(|text| format!("\n{} {text}", paint.yellow("warning:")));
        format!("{table}{}", warnings.collect::<String>())
    })?;
    Ok(Exit::Success)
}

const SETTINGS: &[Column<EffectiveSetting>] = &[
    Column::text("key", |setting, _| setting.key.clone()),
    Column::flexible("value", |setting, _| setting.value.as_deref().map_or_else(|| "-".to_owned(), one_line)),
    Column::text("from", |setting, _| setting.origin.as_str().to_owned()),
    Column::text("variable", |setting, _| setting.variable.clone().unwrap_or_else(|| "only in the file".to_owned())),
];
