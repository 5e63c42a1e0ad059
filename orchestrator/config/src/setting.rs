//! The declaration of a setting: its key, variables, type, default, bounds, help and flag.
//!
//! Owns [`SettingSpec`] and the [`settings!`] macro. Does not know which settings exist.

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
    /// A string that is never shown. Can also be read from a file by the `_file` form of its key.
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
    /// No value.
    Unset,
    /// A fixed string.
    Text(&'static str),
    /// A fixed integer.
    Integer(u64),
    /// A value that depends on the environment or on settings that were read before.
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
    /// Any value.
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
    /// Sets the default.
    #[must_use]
    pub const fn default(self, text: &'static str) -> Self {
        Self { default: DefaultValue::Text(text), ..self }
    }

    /// Sets an integer default.
    #[must_use]
    pub(crate) const fn default_integer(self, integer: u64) -> Self {
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
    pub const fn range(self, min: u64, max: u64) -> Self {
        Self { bounds: Bounds::Integer(min, max), ..self }
    }

    /// Sets the bounds of a number, both included.
    #[must_use]
    pub(crate) const fn number_range(self, min: f64, max: f64) -> Self {
        Self { bounds: Bounds::Number(min, max), ..self }
    }

    /// Adds a flag, with the placeholder of its value.
    #[must_use]
    pub const fn flag(self, name: &'static str, placeholder: &'static str) -> Self {
        Self { flag: Some((name, placeholder)), ..self }
    }

    /// Sets the name of its environment variable, if it is not `GANTRY_` and the key.
    #[must_use]
    pub const fn variable(self, name: &'static str) -> Self {
        Self { variable: Some(name), ..self }
    }

    /// Adds the parts that `settings!` derives from a field's type and documentation.
    #[must_use]
    pub const fn of(self, kind: Kind, help: &'static str) -> Self {
        Self { help, kind, ..self }
    }

    /// The environment variable that sets it.
    pub fn env_variable(&self) -> String {
        self.variable.map_or_else(|| variable_of(self.key), str::to_owned)
    }

    /// Every environment variable that sets it, including the `_FILE` form of a secret.
    #[cfg(test)]
    pub(crate) fn env_variables(&self) -> Vec<String> {
        let variable = self.env_variable();
        match self.kind {
            Kind::Secret => vec![variable.clone(), format!("{variable}_FILE")],
            _ => vec![variable],
        }
    }
}

/// The default variable of a key.
pub(super) fn variable_of(key: &str) -> String {
    format!("GANTRY_{}", key.replace('.', "_").to_uppercase())
}

/// The settings as a table in Markdown, for the documentation.
#[cfg(test)]
pub(super) fn markdown<'a>(specs: impl Iterator<Item = &'a SettingSpec>) -> String {
    let row = |spec: &SettingSpec| {
        let variables = match spec.kind {
            Kind::Table => "only in the file".to_owned(),
            _ => spec.env_variables().iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
        };
        let kind = match (spec.kind, spec.bounds) {
            (Kind::Choice(names), _) => names.iter().map(|name| format!("`{name}`")).collect::<Vec<_>>().join(", "),
            (_, Bounds::Integer(min, max)) => format!("integer, {min} to {max}"),
            (_, Bounds::Number(min, max)) => format!("number, {min} to {max}"),
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
        $spec.of(<$type as $crate::setting_value::SettingValue>::KIND, concat!($($help),+))
    };
    (
        fn $read:ident() -> $name:ident, $specs:ident {
            $( $(#[doc = $help:literal])+ $field:ident : $type:ty = $spec:expr; )*
        }
    ) => {
        /// The declarations of these settings.
        const $specs: &[$crate::setting::SettingSpec] = &[$( settings!(@spec $type, $spec, $($help),+) ),*];

        fn $read(reader: &mut $crate::reader::ConfigReader<'_>) -> Result<$name, $crate::ConfigError> {
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
            pub(crate) const SPECS: &'static [$crate::setting::SettingSpec] =
                &[$( settings!(@spec $type, $spec, $($help),+) ),*];

            /// Reads its settings, in the order of their declaration.
            pub(crate) fn read(
                reader: &mut $crate::reader::ConfigReader<'_>,
            ) -> Result<Self, $crate::ConfigError> {
                $( let $field = settings!(@get reader, $type, $spec, $($help),+); )*
                $( let $reader = reader; )?
                Ok(Self { $( $field, )* $( $( $other: $other_value, )* )? })
            }
        }
    };
}
pub(super) use settings;
