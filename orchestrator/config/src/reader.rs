//! Reads settings: flags over environment variables over the file over defaults.
//!
//! Owns the origin of values, `_file` forms, error texts, and the list of effective values with secrets masked. Does
//! not know the meaning of settings.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    path::Path,
};

use base::{Environment, mask_urls};
use serde::Serialize;
use toml::Value;

use super::{
    setting::{DefaultValue, Kind, SettingSpec, variable_of},
    setting_value::{RawValue, SettingValue},
};

/// Maximum size of a secret file.
const MAX_SECRET_FILE_BYTES: u64 = 64 * 1024;
/// Maximum length of an invalid value in an error.
const MAX_SHOWN_CHARS: usize = 200;
/// Shown in place of a secret.
const MASK: &str = "********";

/// An invalid value: where it was set, the value, and what is expected.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    name: String,
    value: Option<String>,
    expected: String,
}

impl ConfigError {
    pub(super) fn new(name: impl Into<String>, value: Option<&str>, expected: impl Into<String>) -> Self {
        // Keeps the error on one line.
        let one_line = |c: char| if c.is_control() { '?' } else { c };
        let value = value.map(|text| mask_urls(text).chars().take(MAX_SHOWN_CHARS).map(one_line).collect());
        Self { name: name.into(), value, expected: expected.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={}: {}", self.name, value, self.expected),
            None => write!(f, "{}: {}", self.name, self.expected),
        }
    }
}

impl std::error::Error for ConfigError {}

/// One setting with its effective value.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct EffectiveSetting {
    /// The key in `gantry.toml`.
    pub key: String,
    /// The environment variable; none for what can only be set in the file.
    pub variable: Option<String>,
    /// The value; asterisks for a secret, none when it is not set.
    pub value: Option<String>,
    /// `default`, `flag`, the variable's name or the file's.
    pub origin: String,
}

/// A value that was found in a layer.
#[derive(Clone)]
struct RawSetting {
    raw: RawValue,
    /// Where it was set, as an error names it: `flag bind`, `GANTRY_BIND`, `gantry.toml: bind`.
    name: String,
    origin: String,
}

impl RawSetting {
    fn invalid(&self, expected: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.name, Some(&self.raw.text()), expected)
    }

    fn invalid_secret(&self, expected: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.name, None, expected)
    }

    /// As the kind of setting is shown: secrets and tables are not. A key in a table belongs to the name.
    fn invalid_of(&self, kind: Kind, expected: String) -> ConfigError {
        match (kind, expected.split_once(": ")) {
            (Kind::Table, Some((key, expected))) if key.starts_with('.') => {
                ConfigError::new(format!("{}{key}", self.name), None, expected)
            }
            (Kind::Secret | Kind::Table, _) => self.invalid_secret(expected),
            _ => self.invalid(expected),
        }
    }
}

/// The configuration layers and the settings read from them.
pub struct ConfigReader<'a> {
    environment: &'a Environment,
    flags: BTreeMap<String, String>,
    file: BTreeMap<String, Value>,
    file_name: String,
    /// The failover provider that is being read: `llm.failover.N` stands for `llm` in its keys.
    failover: Option<usize>,
    used_keys: BTreeSet<String>,
    used_variables: BTreeSet<String>,
    settings: Vec<EffectiveSetting>,
}

impl<'a> ConfigReader<'a> {
    pub(super) fn new(environment: &'a Environment, flags: BTreeMap<String, String>) -> Self {
        Self {
            environment,
            flags,
            file: BTreeMap::new(),
            file_name: String::new(),
            failover: None,
            used_keys: BTreeSet::new(),
            used_variables: BTreeSet::new(),
            settings: Vec::new(),
        }
    }

    /// Adds the file's layer. Tables that are no values become dotted keys.
    pub(super) fn add_file(&mut self, path: &Path, text: &str) -> Result<(), ConfigError> {
        self.file_name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let message = error.message().replace('\n', " ");
            ConfigError::new(format!("{} line {line}", path.display()), None, format!("not valid TOML: {message}"))
        })?;
        flatten("", Value::Table(table), &mut self.file);
        // `sandbox = "disabled"` is short for `sandbox.mode`, as in the variable.
        if let Some(mode) = self.file.remove("sandbox") {
            self.file.insert("sandbox.mode".to_owned(), mode);
        }
        Ok(())
    }

    /// The environment.
    pub(super) const fn environment(&self) -> &Environment {
        self.environment
    }

    /// The failover provider that is being read, if it is one.
    pub(super) const fn failover(&self) -> Option<usize> {
        self.failover
    }

    /// Switches to reading the settings of a failover provider.
    pub(super) const fn set_failover(&mut self, index: Option<usize>) {
        self.failover = index;
    }

    fn key_of(&self, key: &str) -> String {
        match (self.failover, key.strip_prefix("llm.")) {
            (Some(index), Some(rest)) => format!("llm.failover.{index}.{rest}"),
            _ => key.to_owned(),
        }
    }

    fn variable_of(&self, spec: &SettingSpec) -> String {
        let key = self.key_of(spec.key);
        if key == spec.key { spec.env_variable() } else { variable_of(&key) }
    }

    fn find(&mut self, key: &str, variable: String) -> Result<Option<RawSetting>, ConfigError> {
        self.used_keys.insert(key.to_owned());
        self.used_variables.insert(variable.clone());
        if let Some(text) = self.flags.get(key) {
            let name = format!("flag {key}");
            return Ok(Some(RawSetting { raw: RawValue::Text(text.clone()), name, origin: "flag".to_owned() }));
        }
        if self.environment.is_not_unicode(&variable) {
            return Err(ConfigError::new(variable, None, "must be valid UTF-8"));
        }
        if let Some(text) = self.environment.get(&variable) {
            let raw = RawValue::Text(text.trim().to_owned());
            return Ok(Some(RawSetting { raw, name: variable.clone(), origin: variable }));
        }
        let Some(value) = self.file.get(key) else { return Ok(None) };
        let name = format!("{}: {key}", self.file_name);
        Ok(Some(RawSetting { raw: RawValue::Toml(value.clone()), name, origin: self.file_name.clone() }))
    }

    /// Where a setting or, for a secret, its `_file` form is set.
    fn find_setting(&mut self, spec: &SettingSpec) -> Result<Option<RawSetting>, ConfigError> {
        let (key, variable) = (self.key_of(spec.key), self.variable_of(spec));
        let direct = self.find(&key, variable.clone())?;
        if spec.kind != Kind::Secret {
            // An empty string counts as not set.
            let is_text = matches!(spec.kind, Kind::Text | Kind::Path | Kind::Address | Kind::Uuid);
            return Ok(direct.filter(|found| !(is_text && found.raw.text().is_empty())));
        }
        let file = self.find(&format!("{key}_file"), format!("{variable}_FILE"))?;
        match (direct, file) {
            (Some(_), Some(file)) => {
                Err(file.invalid_secret("conflicts with the setting without `_file`; remove one of them"))
            }
            (Some(direct), None) if direct.raw.text().is_empty() => Err(direct.invalid_secret("must not be empty")),
            (None, Some(file)) => Ok(Some(RawSetting { raw: RawValue::Text(read_secret(&file)?), ..file })),
            (direct, None) => Ok(direct),
        }
    }

    /// Reads a setting and records its effective value.
    pub(super) fn get<T: SettingValue>(&mut self, spec: &SettingSpec) -> Result<T, ConfigError> {
        let found = self.find_setting(spec)?;
        let default = match (&found, spec.default) {
            (Some(_), _) | (None, DefaultValue::Unset) => None,
            (None, DefaultValue::Text(text)) => Some(text.to_owned()),
            (None, DefaultValue::Integer(integer)) => Some(integer.to_string()),
            (None, DefaultValue::Derived { compute, .. }) => Some(compute(self)?),
        };
        let raw = found.as_ref().map(|found| found.raw.clone()).or(default.map(RawValue::Text));
        let (key, variable) = (self.key_of(spec.key), self.variable_of(spec));
        let value = match raw.as_ref().map(|raw| T::parse(raw, spec)) {
            Some(Ok(value)) => value,
            Some(Err(expected)) => {
                return Err(match &found {
                    Some(found) => found.invalid_of(spec.kind, expected),
                    None => ConfigError::new(variable, None, expected),
                });
            }
            None => T::unset().ok_or_else(|| ConfigError::new(&variable, None, "must be set"))?,
        };
        let is_secret = spec.kind == Kind::Secret;
        let display_value = raw.map(|raw| if is_secret { MASK.to_owned() } else { mask_urls(&T::shown(&raw)) });
        let origin = found.map_or_else(|| "default".to_owned(), |found| found.origin);
        let variable = (spec.kind != Kind::Table).then_some(variable);
        self.settings.push(EffectiveSetting { key, variable, value: display_value, origin });
        Ok(value)
    }

    /// The effective value of a setting that was read before, as text with secrets masked; empty when it is not set.
    pub(super) fn effective(&self, key: &str) -> &str {
        let key = self.key_of(key);
        let setting = self.settings.iter().rfind(|setting| setting.key == key);
        setting.and_then(|setting| setting.value.as_deref()).unwrap_or_default()
    }

    /// Overrides the displayed effective value of a setting.
    pub(super) fn override_display(&mut self, key: &str, value: &str) {
        let key = self.key_of(key);
        if let Some(setting) = self.settings.iter_mut().rfind(|setting| setting.key == key) {
            setting.value = Some(mask_urls(value));
        }
    }

    /// Whether a setting that was read before has another origin than its default.
    pub(super) fn is_set(&self, key: &str) -> bool {
        let key = self.key_of(key);
        self.settings.iter().any(|setting| setting.key == key && setting.origin != "default")
    }

    /// Whether any layer has a value for a key that may be read next.
    pub(super) fn has(&mut self, key: &str) -> Result<bool, ConfigError> {
        Ok(self.find(key, variable_of(key))?.is_some())
    }

    /// The first part of a key of the file which begins so and was not read, and the name of that part in an error.
    pub(super) fn unread_in(&self, prefix: &str) -> Option<(&str, String)> {
        let mut unread = self.file.keys().filter(|key| !self.used_keys.contains(*key));
        let part = unread.find_map(|key| key.strip_prefix(prefix))?.split('.').next()?;
        Some((part, format!("{}: {prefix}{part}", self.file_name)))
    }

    /// An error about a setting with its origin and value.
    pub(super) fn invalid(&mut self, key: &'static str, expected: impl Into<String>) -> ConfigError {
        let Some(spec) = super::all_specs().find(|spec| spec.key == key) else {
            return ConfigError::new(key, None, expected);
        };
        match self.find_setting(spec) {
            Ok(Some(found)) => found.invalid_of(spec.kind, expected.into()),
            Ok(None) | Err(_) => ConfigError::new(self.variable_of(spec), None, expected),
        }
    }

    /// An error about a setting that is not set, named by its variable.
    pub(super) fn missing(&self, key: &'static str, expected: impl Into<String>) -> ConfigError {
        let variable = super::all_specs().find(|spec| spec.key == key).map(|spec| self.variable_of(spec));
        ConfigError::new(variable.unwrap_or_else(|| key.to_owned()), None, expected)
    }

    /// Returns the effective values and warnings about unknown variables. Unknown keys and flags are errors.
    pub(super) fn finish(self) -> Result<(Vec<EffectiveSetting>, Vec<String>), ConfigError> {
        if let Some(key) = self.file.keys().find(|key| !self.used_keys.contains(*key)) {
            return Err(ConfigError::new(format!("{}: {key}", self.file_name), None, "unknown key"));
        }
        if let Some(key) = self.flags.keys().find(|key| !self.used_keys.contains(*key)) {
            return Err(ConfigError::new(format!("--set {key}"), None, "unknown key; `gantry config` lists all keys"));
        }
        let is_known = |name: &str| self.used_variables.contains(name) || NON_CONFIG_VARIABLES.contains(&name);
        let unknown = self.environment.names_with("GANTRY_").filter(|name| !is_known(name));
        let warnings = unknown.map(|name| format!("{name} is set, but there is no such setting")).collect();
        Ok((self.settings, warnings))
    }
}

/// Variables of the command line and the Compose stack, which are not settings.
const NON_CONFIG_VARIABLES: [&str; 12] = [
    "GANTRY_URL",
    "GANTRY_CONTEXT",
    "GANTRY_TOKEN",
    "GANTRY_TOKEN_FILE",
    "GANTRY_PORT",
    "GANTRY_CONFIG_DIR",
    "GANTRY_ENV_FILE",
    "GANTRY_IMAGE_TAG",
    "GANTRY_ENGINE_SOCKET",
    "GANTRY_BINARIES",
    "GANTRY_BUILDER_BASE",
    "GANTRY_BUILD_PROFILE",
];

fn read_secret(found: &RawSetting) -> Result<String, ConfigError> {
    let path = found.raw.text();
    let unreadable = |error: std::io::Error| found.invalid(format!("cannot read the file: {error}"));
    let size = std::fs::metadata(&path).map_err(unreadable)?.len();
    if size > MAX_SECRET_FILE_BYTES {
        return Err(found.invalid(format!("the file is larger than {MAX_SECRET_FILE_BYTES} bytes")));
    }
    let text = std::fs::read_to_string(&path).map_err(unreadable)?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(found.invalid("the file is empty")) } else { Ok(text.to_owned()) }
}

/// Whether a table of the file is the value of a setting.
fn is_value(key: &str) -> bool {
    let of_provider = key.strip_prefix("llm.failover.").and_then(|rest| rest.split_once('.'));
    let key = of_provider.map_or_else(|| key.to_owned(), |(_, rest)| format!("llm.{rest}"));
    super::all_specs().any(|spec| spec.kind == Kind::Table && spec.key == key)
}

fn flatten(prefix: &str, value: Value, into: &mut BTreeMap<String, Value>) {
    let dotted = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        Value::Table(table) if !is_value(prefix) => {
            for (key, value) in table {
                flatten(&dotted(&key), value, into);
            }
        }
        Value::Array(items) if !is_value(prefix) && !items.is_empty() && items.iter().all(Value::is_table) => {
            for (index, value) in items.into_iter().enumerate() {
                flatten(&dotted(&index.to_string()), value, into);
            }
        }
        other => {
            into.insert(prefix.to_owned(), other);
        }
    }
}
