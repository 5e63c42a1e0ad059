//! The values of settings: parsing of raw values into typed ones.
//!
//! Owns the types that a setting can have and their error texts. Does not know which settings exist.

use std::{collections::BTreeMap, net::SocketAddr, path::PathBuf};

use protocol::InstanceId;
use secrecy::SecretString;
use serde::de::DeserializeOwned;
use toml::Value;

use super::setting::{Bounds, Kind, SettingSpec};

/// An unparsed value.
#[derive(Debug, Clone)]
pub(super) enum RawValue {
    /// From a flag, a variable or a default.
    Text(String),
    /// From the configuration file.
    Toml(Value),
}

impl RawValue {
    /// The value as text. Items of an array are joined by commas.
    pub(super) fn text(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Toml(value) => toml_text(value),
        }
    }

    /// The value as it would stand in the file.
    pub(super) fn toml(&self) -> String {
        match self {
            Self::Text(text) => text.clone(),
            Self::Toml(value) => inline(value),
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

fn inline(value: &Value) -> String {
    let joined = |parts: Vec<String>| parts.join(", ");
    match value {
        Value::String(text) => format!("{text:?}"),
        Value::Array(items) => format!("[{}]", joined(items.iter().map(inline).collect())),
        Value::Table(table) => {
            let properties = table.iter().map(|(key, value)| format!("{key} = {}", inline(value)));
            format!("{{ {} }}", joined(properties.collect()))
        }
        other => toml_text(other),
    }
}

/// A type that a setting can have.
pub(super) trait SettingValue: Sized {
    /// The kind of its values.
    const KIND: Kind;

    /// Parses a value. The error describes the expected value. For a table it may begin with a dot, a key of the table and a
    /// colon.
    fn parse(raw: &RawValue, spec: &SettingSpec) -> Result<Self, String>;

    /// The value as it is shown. Tables can have secrets, and are not.
    fn shown(raw: &RawValue) -> String {
        raw.text()
    }

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

pub(super) fn string(raw: &RawValue) -> Result<&str, String> {
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
        table(raw)
    }

    fn unset() -> Option<Self> {
        Some(Self::new())
    }
}

/// Parses a table of the configuration file.
pub(super) fn table<T: DeserializeOwned>(raw: &RawValue) -> Result<T, String> {
    let RawValue::Toml(value) = raw else { return Err("can only be set in the configuration file".to_owned()) };
    value.clone().try_into().map_err(|error: toml::de::Error| error.message().replace('\n', " "))
}

/// Parses one of several choices by name. A choice can be an error if it is not available yet.
pub(super) fn choose<T: Copy>(raw: &RawValue, choices: &[(&str, Result<T, &str>)]) -> Result<T, String> {
    let given = string(raw)?;
    if let Some((_, choice)) = choices.iter().find(|(name, _)| *name == given) {
        return choice.map_err(str::to_owned);
    }
    let names: Vec<&str> = choices.iter().map(|(name, _)| *name).collect();
    Err(format!("must be one of {}", names.join(", ")))
}

/// The error for a table of a list that cannot be read. Only an unknown or missing key is repeated: a value may be a secret that
/// is in the wrong place.
pub(super) fn invalid_table(what: &str, index: usize, error: &toml::de::Error) -> String {
    let message = error.message();
    let names_a_key = message.starts_with("unknown field") || message.starts_with("missing field");
    // Only what follows the value, which could contain the same words.
    let expected = message.starts_with("unknown variant").then(|| message.rsplit_once("`, expected ")).flatten();
    let cause = match expected {
        _ if names_a_key => message.replace('\n', " "),
        Some((_, expected)) => format!("a value must be {expected}"),
        None => "a value has the wrong type".to_owned(),
    };
    format!("the {what} at position {}: {cause}", index + 1)
}
