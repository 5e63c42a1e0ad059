//! What commands read: texts from arguments, files and standard input, all bounded.

use std::{error::Error, io::Read, str::FromStr};

use clap::builder::{PossibleValue, PossibleValuesParser, TypedValueParser};
use serde::de::DeserializeOwned;
use serde_json::Value;

use super::{exit::CliError, output::one_line};

const MAX_INPUT_BYTES: u64 = 4 * 1024 * 1024;

/// Accepts the names of these values, which help and shells list.
pub fn one_of<T>(values: &'static [T]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Into<&'static str> + FromStr<Err: Error + Send + Sync> + Send + Sync + 'static,
{
    named(values.iter().map(|value| PossibleValue::new((*value).into())))
}

/// Like `one_of`, with an explanation of each value.
pub(super) fn one_of_explained<T>(values: &'static [(T, &'static str)]) -> impl TypedValueParser<Value = T>
where
    T: Copy + Into<&'static str> + FromStr<Err: Error + Send + Sync> + Send + Sync + 'static,
{
    named(values.iter().map(|(value, help)| PossibleValue::new((*value).into()).help(*help)))
}

fn named<T>(values: impl Iterator<Item = PossibleValue>) -> impl TypedValueParser<Value = T>
where
    T: Clone + FromStr<Err: Error + Send + Sync> + Send + Sync + 'static,
{
    PossibleValuesParser::new(values).try_map(|name| name.parse())
}

/// Returns the text, or reads standard input for `-`.
pub(super) fn text_or_stdin(text: String) -> Result<String, CliError> {
    if text != "-" {
        return Ok(text);
    }
    Ok(read("-")?.trim_end().to_owned())
}

fn name(file: &str) -> String {
    if file == "-" { "standard input".to_owned() } else { one_line(file) }
}

/// Reads a file, or standard input for `-`.
pub(super) fn read(file: &str) -> Result<String, CliError> {
    let name = name(file);
    let failed = |error| CliError::Usage(format!("{name}: cannot read: {error}"));
    let source: Box<dyn Read> =
        if file == "-" { Box::new(std::io::stdin()) } else { Box::new(std::fs::File::open(file).map_err(failed)?) };
    let mut text = String::new();
    source.take(MAX_INPUT_BYTES + 1).read_to_string(&mut text).map_err(failed)?;
    if text.len() as u64 > MAX_INPUT_BYTES {
        return Err(CliError::Usage(format!("{name}: is over {MAX_INPUT_BYTES} bytes")));
    }
    Ok(text)
}

/// Reads a JSON value from an argument: the JSON itself, `@` and the name of a file, or `-` for standard input.
pub(super) fn json_argument(flag: &str, argument: &str) -> Result<Value, CliError> {
    let text = match argument.strip_prefix('@') {
        Some(file) => read(file)?,
        None => text_or_stdin(argument.to_owned())?,
    };
    serde_json::from_str(&text).map_err(|error| CliError::Usage(format!("{flag}: is not JSON: {error}")))
}

/// Reads a file with JSON, or standard input for `-`.
pub(super) fn json(file: &str) -> Result<Value, CliError> {
    let text = read(file)?;
    serde_json::from_str(&text).map_err(|error| CliError::Usage(format!("{}: is not JSON: {error}", name(file))))
}

/// Parses YAML, of which JSON is a part.
pub(super) fn yaml<T: DeserializeOwned>(name: &str, text: &str) -> Result<T, CliError> {
    // `yes`, `no`, `on` and `off` are words here, as YAML 1.2 has it.
    let options = serde_saphyr::options! { strict_booleans: true };
    let failed = |error: serde_saphyr::Error| CliError::Usage(format!("{name}: {}", one_line(&error.to_string())));
    serde_saphyr::from_str_with_options(text, options).map_err(failed)
}
