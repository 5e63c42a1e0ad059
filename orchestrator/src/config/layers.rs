//! Layers of raw settings: flags over environment over file over default.
//!
//! Owns where a value comes from, `_FILE` forms, types and bounds, and the list of what is in force. Never knows what a
//! setting means.

use std::{
    collections::{BTreeMap, BTreeSet},
    fmt,
    ops::RangeInclusive,
    path::{Path, PathBuf},
    str::FromStr,
};

use secrecy::SecretString;
use serde::Serialize;
use toml::Value;

use super::{Environment, url::mask_urls};

/// A secret's file may be this long; more is surely the wrong file.
const MAX_SECRET_FILE_BYTES: u64 = 64 * 1024;

/// One wrong value: what it is called where it was set, what it was, what would be right.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ConfigError {
    name: String,
    value: Option<String>,
    wanted: String,
}

impl ConfigError {
    pub(super) fn new(name: impl Into<String>, value: Option<&str>, wanted: impl Into<String>) -> Self {
        // One line whatever was in the value.
        let value =
            value.map(|text| mask_urls(text).chars().take(200).map(|c| if c.is_control() { '?' } else { c }).collect());
        Self { name: name.into(), value, wanted: wanted.into() }
    }
}

impl fmt::Display for ConfigError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match &self.value {
            Some(value) => write!(f, "{}={}: {}", self.name, value, self.wanted),
            None => write!(f, "{}: {}", self.name, self.wanted),
        }
    }
}

impl std::error::Error for ConfigError {}

/// One setting as it is in force.
#[derive(Debug, Clone, PartialEq, Eq, Serialize)]
pub struct Setting {
    /// Its key in `gantry.toml`.
    pub key: String,
    /// Its variable.
    pub variable: String,
    /// Its value; stars for a secret, none when nothing is set.
    pub value: Option<String>,
    /// `default`, `flag`, the variable's name or the file's.
    pub origin: String,
}

#[derive(Clone)]
enum Raw {
    Text(String),
    Toml(Value),
}

#[derive(Clone)]
struct Found {
    raw: Raw,
    /// As the one who set it knows it: `flag bind`, `GANTRY_BIND`, `gantry.toml: bind`.
    name: String,
    origin: String,
}

impl Found {
    fn shown(&self) -> String {
        match &self.raw {
            Raw::Text(text) | Raw::Toml(Value::String(text)) => text.clone(),
            Raw::Toml(value) => toml_text(value),
        }
    }

    fn wrong(&self, wanted: impl Into<String>) -> ConfigError {
        ConfigError::new(&self.name, Some(&self.shown()), wanted)
    }
}

fn toml_text(value: &Value) -> String {
    match value {
        Value::String(text) => text.clone(),
        Value::Array(items) => items.iter().map(toml_text).collect::<Vec<_>>().join(","),
        Value::Table(_) => "{…}".to_owned(),
        Value::Integer(number) => number.to_string(),
        Value::Float(number) => number.to_string(),
        Value::Boolean(flag) => flag.to_string(),
        Value::Datetime(time) => time.to_string(),
    }
}

/// Whether a key needs a value of its own when it is shown.
#[derive(Clone, Copy, PartialEq, Eq)]
enum Show {
    Plain,
    Masked,
}

/// The layers, and what has been read from them.
pub(super) struct Layers<'a> {
    environment: &'a Environment,
    flags: BTreeMap<String, String>,
    file: BTreeMap<String, Value>,
    file_name: String,
    asked: BTreeSet<String>,
    settings: Vec<Setting>,
}

impl<'a> Layers<'a> {
    pub(super) fn new(environment: &'a Environment, flags: BTreeMap<String, String>) -> Self {
        Self {
            environment,
            flags,
            file: BTreeMap::new(),
            file_name: String::new(),
            asked: BTreeSet::new(),
            settings: Vec::new(),
        }
    }

    /// Adds the file's layer. `opaque` tables are kept whole, the others become dotted keys.
    pub(super) fn add_file(&mut self, path: &Path, text: &str, opaque: &[&str]) -> Result<(), ConfigError> {
        self.file_name =
            path.file_name().map_or_else(|| path.display().to_string(), |n| n.to_string_lossy().into_owned());
        let table: toml::Table = text.parse().map_err(|error: toml::de::Error| {
            let line = error.span().map_or(0, |span| text[..span.start.min(text.len())].matches('\n').count() + 1);
            let message = error.message().replace('\n', " ");
            ConfigError::new(format!("{} line {line}", path.display()), None, format!("not TOML: {message}"))
        })?;
        flatten("", Value::Table(table), opaque, &mut self.file);
        // `sandbox = "disabled"`, as the variable has it.
        if let Some(mode) = self.file.remove("sandbox") {
            self.file.insert("sandbox.mode".to_owned(), mode);
        }
        Ok(())
    }

    /// The variable that sets `key`.
    pub(super) fn variable(key: &str) -> String {
        match key {
            "sandbox.mode" => "GANTRY_SANDBOX".to_owned(),
            "sandbox.docker_host" => "DOCKER_HOST".to_owned(),
            "otel_endpoint" => "OTEL_EXPORTER_OTLP_ENDPOINT".to_owned(),
            "log.filter" => "RUST_LOG".to_owned(),
            _ => format!("GANTRY_{}", key.replace('.', "_").to_uppercase()),
        }
    }

    fn find(&mut self, key: &str) -> Option<Found> {
        self.asked.insert(key.to_owned());
        if let Some(text) = self.flags.get(key) {
            let name = format!("flag {key}");
            return Some(Found { raw: Raw::Text(text.clone()), name, origin: "flag".to_owned() });
        }
        let variable = Self::variable(key);
        if let Some(text) = self.environment.get(&variable) {
            return Some(Found { raw: Raw::Text(text.trim().to_owned()), name: variable.clone(), origin: variable });
        }
        let value = self.file.get(key)?;
        let name = format!("{}: {key}", self.file_name);
        Some(Found { raw: Raw::Toml(value.clone()), name, origin: self.file_name.clone() })
    }

    fn record(&mut self, key: &str, value: Option<String>, origin: Option<&Found>, show: Show) {
        let value = match show {
            Show::Masked => value.map(|_| "********".to_owned()),
            Show::Plain => value,
        };
        let origin = origin.map_or_else(|| "default".to_owned(), |found| found.origin.clone());
        self.settings.push(Setting { key: key.to_owned(), variable: Self::variable(key), value: None, origin });
        self.show(key, value.as_deref());
    }

    /// Sets what is shown of a setting: the one place where a value enters the list of what is in force.
    fn show(&mut self, key: &str, value: Option<&str>) {
        if let Some(setting) = self.settings.iter_mut().rfind(|setting| setting.key == key) {
            setting.value = value.map(mask_urls);
        }
    }

    /// An error at the place where `key` is set, or at its variable when it is not.
    pub(super) fn wrong(&mut self, key: &str, wanted: impl Into<String>) -> ConfigError {
        match self.find(key) {
            Some(found) => found.wrong(wanted),
            None => ConfigError::new(Self::variable(key), None, wanted),
        }
    }

    /// Whether anybody set it.
    pub(super) fn is_set(&mut self, key: &str) -> bool {
        self.find(key).is_some()
    }

    /// A text that may be left out.
    pub(super) fn optional(&mut self, key: &str) -> Result<Option<String>, ConfigError> {
        let found = self.find(key);
        let value = match &found {
            None => None,
            Some(Found { raw: Raw::Text(text) | Raw::Toml(Value::String(text)), .. }) => Some(text.clone()),
            Some(other) => return Err(other.wrong("must be a text in quotes")),
        };
        let value = value.filter(|text| !text.is_empty());
        self.record(key, value.clone(), found.as_ref(), Show::Plain);
        Ok(value)
    }

    /// A text with a default.
    pub(super) fn text(&mut self, key: &str, default: &str) -> Result<String, ConfigError> {
        let value = self.optional(key)?;
        Ok(self.settled(key, value, || default.to_owned()))
    }

    fn settled(&mut self, key: &str, value: Option<String>, default: impl FnOnce() -> String) -> String {
        let value = value.unwrap_or_else(default);
        self.show(key, Some(&value));
        value
    }

    /// A path, made absolute.
    pub(super) fn path(&mut self, key: &str, default: &Path) -> Result<PathBuf, ConfigError> {
        let text = self.text(key, &default.display().to_string())?;
        std::path::absolute(&text).map_err(|_| self.wrong(key, "must be a path"))
    }

    /// A value with a text form of its own.
    pub(super) fn parsed<T: FromStr>(&mut self, key: &str, wanted: &str) -> Result<Option<T>, ConfigError> {
        match self.optional(key)? {
            None => Ok(None),
            Some(text) => text.parse().map(Some).map_err(|_| self.wrong(key, wanted)),
        }
    }

    /// One of a few words.
    pub(super) fn choice<T: Copy>(
        &mut self,
        key: &str,
        default: &str,
        choices: &[(&str, T)],
    ) -> Result<T, ConfigError> {
        let text = self.text(key, default)?;
        let names = choices.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(", ");
        let chosen = choices.iter().find(|(name, _)| *name == text).map(|(_, value)| *value);
        chosen.ok_or_else(|| self.wrong(key, format!("must be one of {names}")))
    }

    /// A whole number within bounds.
    pub(super) fn whole(&mut self, key: &str, default: u64, bounds: RangeInclusive<u64>) -> Result<u64, ConfigError> {
        let found = self.find(key);
        let wanted = format!("must be a whole number from {} to {}", bounds.start(), bounds.end());
        let value = match &found {
            None => default,
            Some(found) => match &found.raw {
                Raw::Text(text) => text.parse().ok(),
                Raw::Toml(Value::Integer(number)) => u64::try_from(*number).ok(),
                Raw::Toml(_) => None,
            }
            .filter(|number| bounds.contains(number))
            .ok_or_else(|| found.wrong(wanted))?,
        };
        self.record(key, Some(value.to_string()), found.as_ref(), Show::Plain);
        Ok(value)
    }

    /// A whole number that fits 32 bits.
    pub(super) fn small(&mut self, key: &str, default: u32, bounds: RangeInclusive<u32>) -> Result<u32, ConfigError> {
        let bounds = u64::from(*bounds.start())..=u64::from(*bounds.end());
        let number = self.whole(key, u64::from(default), bounds)?;
        u32::try_from(number).map_err(|_| self.wrong(key, "must fit 32 bits"))
    }

    /// A number within bounds.
    pub(super) fn real(&mut self, key: &str, default: f64, bounds: RangeInclusive<f64>) -> Result<f64, ConfigError> {
        let found = self.find(key);
        let wanted = format!("must be a number from {} to {}", bounds.start(), bounds.end());
        let value = match &found {
            None => default,
            Some(found) => {
                found.shown().parse().ok().filter(|n| bounds.contains(n)).ok_or_else(|| found.wrong(wanted))?
            }
        };
        self.record(key, Some(value.to_string()), found.as_ref(), Show::Plain);
        Ok(value)
    }

    /// Yes or no.
    pub(super) fn flag(&mut self, key: &str, default: bool) -> Result<bool, ConfigError> {
        let found = self.find(key);
        let value = match &found {
            None => default,
            Some(found) => match found.shown().as_str() {
                "true" | "1" | "yes" | "on" => true,
                "false" | "0" | "no" | "off" => false,
                _ => return Err(found.wrong("must be true or false")),
            },
        };
        self.record(key, Some(value.to_string()), found.as_ref(), Show::Plain);
        Ok(value)
    }

    /// Texts: an array in the file, separated by commas elsewhere.
    pub(super) fn list(&mut self, key: &str) -> Result<Vec<String>, ConfigError> {
        let found = self.find(key);
        let items: Vec<String> = match &found {
            None => Vec::new(),
            Some(found) => match &found.raw {
                Raw::Toml(Value::Array(items)) if !items.iter().all(Value::is_str) => {
                    return Err(found.wrong("must be a list of texts"));
                }
                Raw::Text(_) | Raw::Toml(Value::Array(_) | Value::String(_)) => {
                    found.shown().split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect()
                }
                Raw::Toml(_) => return Err(found.wrong("must be a list of texts")),
            },
        };
        self.record(key, Some(items.join(",")), found.as_ref(), Show::Plain);
        Ok(items)
    }

    /// A secret: given itself, or by a file through the key's `_file` form. Both at once is refused.
    pub(super) fn secret(&mut self, key: &str) -> Result<Option<SecretString>, ConfigError> {
        let direct = self.find(key);
        let by_file = self.find(&format!("{key}_file"));
        let found = match (direct, by_file) {
            (None, None) => {
                self.record(key, None, None, Show::Masked);
                return Ok(None);
            }
            (Some(_), Some(file)) => {
                return Err(ConfigError::new(
                    file.name,
                    None,
                    "set together with the secret itself: keep one of the two",
                ));
            }
            (Some(direct), None) => match &direct.raw {
                Raw::Text(text) | Raw::Toml(Value::String(text)) => (text.clone(), direct),
                Raw::Toml(_) => return Err(ConfigError::new(direct.name, None, "must be a text in quotes")),
            },
            (None, Some(file)) => (read_secret(&file)?, file),
        };
        let (text, found) = found;
        self.record(key, Some(String::new()), Some(&found), Show::Masked);
        Ok(Some(SecretString::from(text)))
    }

    /// A table that was kept whole.
    pub(super) fn table(&mut self, key: &str) -> Option<(Value, String)> {
        let found = self.find(key)?;
        self.record(key, Some(found.shown()), Some(&found), Show::Plain);
        match found.raw {
            Raw::Toml(value) => Some((value, found.name)),
            Raw::Text(text) => Some((Value::String(text), found.name)),
        }
    }

    /// Shows what a value amounts to instead of how it was given.
    pub(super) fn show_instead(&mut self, key: &str, value: &str) {
        self.show(key, Some(value));
    }

    /// What was read, and what nobody reads: a key of the file or a flag is an error, a variable a warning.
    pub(super) fn finish(self) -> Result<(Vec<Setting>, Vec<String>), ConfigError> {
        if let Some(key) = self.file.keys().find(|key| !self.asked.contains(*key)) {
            return Err(ConfigError::new(
                format!("{}: {key}", self.file_name),
                None,
                "unknown key: remove it or mend its name",
            ));
        }
        if let Some(key) = self.flags.keys().find(|key| !self.asked.contains(*key)) {
            return Err(ConfigError::new(
                format!("--set {key}"),
                None,
                "unknown key: see `gantry config` for all of them",
            ));
        }
        let mut known: BTreeSet<String> = self.asked.iter().map(|key| Self::variable(key)).collect();
        known.extend(NO_SETTINGS.map(str::to_owned));
        let strangers = self.environment.names_with("GANTRY_").filter(|name| !known.contains(*name));
        let warnings = strangers.map(|name| format!("{name} is set but no setting has this name")).collect();
        Ok((self.settings, warnings))
    }
}

/// Variables of the command line's and of the stack's own, which a shell may well have.
const NO_SETTINGS: [&str; 11] = [
    "GANTRY_URL",
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

fn read_secret(found: &Found) -> Result<String, ConfigError> {
    let path = found.shown();
    let wrong = |why: String| found.wrong(why);
    let size = std::fs::metadata(&path).map_err(|error| wrong(format!("cannot read this file: {error}")))?.len();
    if size > MAX_SECRET_FILE_BYTES {
        return Err(wrong(format!("this file is over {MAX_SECRET_FILE_BYTES} bytes, surely not a secret")));
    }
    let text = std::fs::read_to_string(&path).map_err(|error| wrong(format!("cannot read this file: {error}")))?;
    let text = text.trim_end_matches(['\r', '\n']);
    if text.is_empty() { Err(wrong("this file is empty".to_owned())) } else { Ok(text.to_owned()) }
}

fn flatten(prefix: &str, value: Value, opaque: &[&str], into: &mut BTreeMap<String, Value>) {
    let dotted = |key: &str| if prefix.is_empty() { key.to_owned() } else { format!("{prefix}.{key}") };
    match value {
        Value::Table(table) if !opaque.contains(&prefix) => {
            for (key, value) in table {
                flatten(&dotted(&key), value, opaque, into);
            }
        }
        Value::Array(items) if !items.is_empty() && items.iter().all(Value::is_table) => {
            for (index, value) in items.into_iter().enumerate() {
                flatten(&dotted(&index.to_string()), value, opaque, into);
            }
        }
        other => {
            into.insert(prefix.to_owned(), other);
        }
    }
}
