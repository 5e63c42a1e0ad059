//! What a setting is: its key, variables, type, default, bounds, help and flag, declared once.
//!
//! Owns the [`settings!`] tables' vocabulary and how a raw value becomes a typed one. Never knows which settings exist.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use protocol::InstanceId;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use toml::Value;

use super::{ConfigError, reader::ConfigReader};

/// The type of a setting's value.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// A string.
    Text,
    /// A path, relative to the working directory.
    Path,
    /// An address and port.
    Address,
    /// A UUID.
    Uuid,
    /// Strings: an array in the file, separated by commas elsewhere.
    List,
    /// A string that is never shown; also by the `_file` form of its key.
    Secret,
    /// A boolean.
    Bool,
    /// An integer.
    Integer,
    /// A number.
    Number,
    /// One of these names.
    Choice(&'static [&'static str]),
    /// A table of the file.
    Table,
}

/// The value of a setting that is not set.
#[derive(Clone, Copy)]
pub enum DefaultValue {
    /// None.
    Unset,
    /// Always the same one.
    Text(&'static str),
    /// Always the same one.
    Integer(u64),
    /// It depends on the environment or on settings that are read before.
    Derived {
        /// How the documentation describes it.
        described: &'static str,
        /// Computes it.
        compute: fn(&ConfigReader<'_>) -> Result<String, ConfigError>,
    },
}

/// The values that a number may have.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Bounds {
    /// Any.
    None,
    /// An integer from the first to the second.
    Integer(u64, u64),
    /// A number from the first to the second.
    Number(f64, f64),
}

/// The declaration of one setting.
#[derive(Clone, Copy)]
pub struct SettingSpec {
    /// The key in `gantry.toml`, with dots between tables.
    pub key: &'static str,
    /// One or two sentences for the documentation and the command line's help.
    pub help: &'static str,
    /// The type of its value.
    pub kind: Kind,
    /// The value when it is not set.
    pub default: DefaultValue,
    /// The values that a number may have.
    pub bounds: Bounds,
    /// The command line flag that sets it, with its placeholder.
    pub flag: Option<(&'static str, &'static str)>,
    variable: Option<&'static str>,
}

/// Starts the declaration of the setting `key`.
pub(super) const fn setting(key: &'static str) -> SettingSpec {
    SettingSpec {
        key,
        help: "",
        kind: Kind::Text,
        default: DefaultValue::Unset,
        bounds: Bounds::None,
        flag: None,
        variable: None,
    }
}

impl SettingSpec {
    /// Sets the value that applies when nothing else does.
    #[must_use]
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: DefaultValue::Text(text), ..self }
    }

    /// The same for an integer.
    #[must_use]
    pub const fn default_integer(self, integer: u64) -> Self {
        Self { default: DefaultValue::Integer(integer), ..self }
    }

    /// Sets a default that is computed when the setting is read.
    #[must_use]
    pub const fn derived(
        self,
        described: &'static str,
        compute: fn(&ConfigReader<'_>) -> Result<String, ConfigError>,
    ) -> Self {
        Self { default: DefaultValue::Derived { described, compute }, ..self }
    }

    /// Sets the bounds of an integer, both included.
    #[must_use]
    pub const fn range(self, least: u64, most: u64) -> Self {
        Self { bounds: Bounds::Integer(least, most), ..self }
    }

    /// Sets the bounds of a number, both included.
    #[must_use]
    pub const fn number_range(self, least: f64, most: f64) -> Self {
        Self { bounds: Bounds::Number(least, most), ..self }
    }

    /// Adds a flag, with the placeholder of its value.
    #[must_use]
    pub const fn flag(self, name: &'static str, placeholder: &'static str) -> Self {
        Self { flag: Some((name, placeholder)), ..self }
    }

    /// Names its variable, when that is not `GANTRY_` and the key.
    #[must_use]
    pub const fn variable(self, name: &'static str) -> Self {
        Self { variable: Some(name), ..self }
    }

    /// For `settings!`: the parts that come from a field's type and documentation.
    #[must_use]
    pub const fn of(self, kind: Kind, help: &'static str) -> Self {
        Self { help, kind, ..self }
    }

    /// The environment variable that sets it.
    pub fn env_variable(&self) -> String {
        self.variable.map_or_else(|| variable_of(self.key), str::to_owned)
    }

    /// Every environment variable that sets it: a secret has a `_FILE` form, too.
    pub fn env_variables(&self) -> Vec<String> {
        let variable = self.env_variable();
        match self.kind {
            Kind::Secret => vec![variable.clone(), format!("{variable}_FILE")],
            _ => vec![variable],
        }
    }
}

/// The variable of a key that names no other.
pub(super) fn variable_of(key: &str) -> String {
    format!("GANTRY_{}", key.replace('.', "_").to_uppercase())
}

/// The settings as a table in Markdown, for the documentation.
#[cfg(test)]
pub(super) fn markdown<'a>(specs: impl Iterator<Item = &'a SettingSpec>) -> String {
    let row = |spec: &SettingSpec| {
        let variables = spec.env_variables().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", ");
        let kind = match (spec.kind, spec.bounds) {
            (Kind::Choice(names), _) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            (_, Bounds::Integer(least, most)) => format!("integer, {least} to {most}"),
            (_, Bounds::Number(least, most)) => format!("number, {least} to {most}"),
            (kind, Bounds::None) => format!("{kind:?}").to_lowercase(),
        };
        let default = match spec.default {
            DefaultValue::Unset => "-".to_owned(),
            DefaultValue::Text(text) => format!("`{text}`"),
            DefaultValue::Integer(integer) => format!("`{integer}`"),
            DefaultValue::Derived { described, .. } => described.to_owned(),
        };
        format!("| `{}` | {variables} | {kind} | {default} | {} |\n", spec.key, spec.help.trim())
    };
    let head = "| key | variable | type | default | description |\n| --- | --- | --- | --- | --- |\n";
    format!("{head}{}", specs.map(row).collect::<String>())
}

/// A value as it was given.
#[derive(Debug, Clone)]
pub(super) enum RawValue {
    /// By a flag, a variable or a default.
    Text(String),
    /// In the file.
    Toml(Value),
}

impl RawValue {
    /// As text: arrays with commas between their items.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Toml(value) => toml_text(value),
        }
    }

    fn as_str(&self) -> Option<&str> {
        match self {
            Self::Text(text) => Some(text),
            Self::Toml(value) => value.as_str(),
        }
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

/// A type that a setting can have.
pub(super) trait SettingValue: Sized {
    /// The kind of its values.
    const KIND: Kind;

    /// Reads a value. The error says what it must be.
    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String>;

    /// The value when the setting is not set and has no default.
    fn unset() -> Option<Self> {
        None
    }
}

impl<T: SettingValue> SettingValue for Option<T> {
    const KIND: Kind = T::KIND;

    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String> {
        T::parse(raw, spec).map(Some)
    }

    fn unset() -> Option<Self> {
        Some(None)
    }
}

fn string(raw: &RawValue) -> Result<&str, String> {
    raw.as_str().ok_or_else(|| "must be a string".to_owned())
}

impl SettingValue for String {
    const KIND: Kind = Kind::Text;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        string(raw).map(str::to_owned)
    }
}

impl SettingValue for SecretString {
    const KIND: Kind = Kind::Secret;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        string(raw).map(Self::from)
    }
}

impl SettingValue for PathBuf {
    const KIND: Kind = Kind::Path;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        std::path::absolute(string(raw)?).map_err(|_| "must be a path".to_owned())
    }
}

impl SettingValue for SocketAddr {
    const KIND: Kind = Kind::Address;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        string(raw)?.parse().map_err(|_| "must be an address and port such as 127.0.0.1:8080".to_owned())
    }
}

impl SettingValue for InstanceId {
    const KIND: Kind = Kind::Uuid;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        string(raw)?.parse().map_err(|_| "must be a UUID such as 0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d".to_owned())
    }
}

impl SettingValue for bool {
    const KIND: Kind = Kind::Bool;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        match raw.text().as_str() {
            "true" | "1" | "yes" | "on" => Ok(true),
            "false" | "0" | "no" | "off" => Ok(false),
            _ => Err("must be true or false".to_owned()),
        }
    }
}

impl SettingValue for u64 {
    const KIND: Kind = Kind::Integer;

    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String> {
        let (least, most) = match spec.bounds {
            Bounds::Integer(least, most) => (least, most),
            Bounds::None | Bounds::Number(..) => (0, Self::MAX),
        };
        let number = match raw {
            RawValue::Text(text) => text.parse().ok(),
            RawValue::Toml(Value::Integer(number)) => Self::try_from(*number).ok(),
            RawValue::Toml(_) => None,
        };
        number
            .filter(|number| (least..=most).contains(number))
            .ok_or_else(|| format!("must be an integer from {least} to {most}"))
    }
}

impl SettingValue for u32 {
    const KIND: Kind = Kind::Integer;

    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String> {
        Self::try_from(u64::parse(raw, spec)?).map_err(|_| format!("must be an integer up to {}", Self::MAX))
    }
}

impl SettingValue for f64 {
    const KIND: Kind = Kind::Number;

    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String> {
        let (least, most) = match spec.bounds {
            Bounds::Number(least, most) => (least, most),
            Bounds::None | Bounds::Integer(..) => (Self::MIN, Self::MAX),
        };
        let number = raw.text().parse().ok().filter(|number| (least..=most).contains(number));
        number.ok_or_else(|| format!("must be a number from {least} to {most}"))
    }
}

impl SettingValue for Vec<String> {
    const KIND: Kind = Kind::List;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        let is_list = match raw {
            RawValue::Text(_) | RawValue::Toml(Value::String(_)) => true,
            RawValue::Toml(Value::Array(items)) => items.iter().all(Value::is_str),
            RawValue::Toml(_) => false,
        };
        if !is_list {
            return Err("must be a list of strings".to_owned());
        }
        Ok(raw.text().split(',').map(str::trim).filter(|item| !item.is_empty()).map(str::to_owned).collect())
    }

    fn unset() -> Option<Self> {
        Some(Self::new())
    }
}

impl<T: DeserializeOwned> SettingValue for BTreeMap<String, T> {
    const KIND: Kind = Kind::Table;

    fn parse(raw: &RawValue, _spec: &SettingSpec) -> Result<Self, String> {
        let RawValue::Toml(value) = raw else { return Err("can only be set in the configuration file".to_owned()) };
        value.clone().try_into().map_err(|error: toml::de::Error| error.message().replace('\n', " "))
    }

    fn unset() -> Option<Self> {
        Some(Self::new())
    }
}

/// Picks a choice by its name. A choice that is not available yet says so.
pub(super) fn choose<T: Copy>(raw: &RawValue, choices: &[(&str, Result<T, &str>)]) -> Result<T, String> {
    let given = string(raw)?;
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == given) {
        return choice.map_err(str::to_owned);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    Err(format!("must be one of {}", names.join(", ")))
}

/// Declares settings as the fields of a struct: each line is a field with its documentation (which is also the help), its type and
/// its [`SettingSpec`]. Generates `SPECS` and `read`. Fields under `computed` are not settings; their expressions may use the
/// reader.
///
/// `fn NAME() -> TYPE, SPECS` does the same for a struct that is declared elsewhere.
macro_rules! settings {
    (@get $reader:ident, $type:ty, $spec:expr, $($help:literal),+) => {
        $reader.get::<$type>(&settings!(@spec $type, $spec, $($help),+))?
    };
    (@spec $type:ty, $spec:expr, $($help:literal),+) => {
        $spec.of(<$type as $crate::config::setting::SettingValue>::KIND, concat!($($help),+))
    };
    (
        fn $read:ident() -> $name:ident, $specs:ident {
            $( $(#[doc = $help:literal])+ $field:ident : $type:ty = $spec:expr; )*
        }
    ) => {
        /// The declarations of these settings.
        const $specs: &[$crate::config::setting::SettingSpec] = &[$( settings!(@spec $type, $spec, $($help),+) ),*];

        fn $read(reader: &mut $crate::config::reader::ConfigReader<'_>) -> Result<$name, $crate::config::ConfigError> {
            Ok($name { $( $field: settings!(@get reader, $type, $spec, $($help),+) ),* })
        }
    };
    (
        $(#[$meta:meta])*
        $vis:vis struct $name:ident {
            $( $(#[doc = $help:literal])+ $field_vis:vis $field:ident : $type:ty = $spec:expr; )*
        }
        $( computed($reader:ident) {
            $( $(#[$other_meta:meta])* $other_vis:vis $other:ident : $other_type:ty = $other_value:expr; )*
        } )?
    ) => {
        $(#[$meta])*
        $vis struct $name {
            $( $(#[doc = $help])+ $field_vis $field: $type, )*
            $( $( $(#[$other_meta])* $other_vis $other: $other_type, )* )?
        }

        impl $name {
            /// The declarations of its settings.
            pub(in crate::config) const SPECS: &'static [$crate::config::setting::SettingSpec] =
                &[$( settings!(@spec $type, $spec, $($help),+) ),*];

            /// Reads its settings, in the order of their declaration.
            pub(in crate::config) fn read(
                reader: &mut $crate::config::reader::ConfigReader<'_>,
            ) -> Result<Self, $crate::config::ConfigError> {
                $( let $field = settings!(@get reader, $type, $spec, $($help),+); )*
                $( let $reader = reader; )?
                Ok(Self { $( $field, )* $( $( $other: $other_value, )* )? })
            }
        }
    };
}
pub(super) use settings;
