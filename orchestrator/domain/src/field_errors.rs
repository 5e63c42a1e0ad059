//! The error of a JSON value that cannot be read as its type: which field it is about, and what the field must be. Pure.
//!
//! Owns the terms in which the API, its clients and models read such errors. Never knows what a value means.

pub mod location;
pub mod wording;

use protocol::FieldError;
use serde::de::DeserializeOwned;
use serde_json::Value;

/// Reads a value as its type. `whole` is the name of what has no name.
pub fn read<T: DeserializeOwned>(value: &Value, whole: &str) -> Result<T, FieldError> {
    serde_path_to_error::deserialize(value).map_err(|error| {
        let (path, message) = (error.path().to_string(), error.inner().to_string());
        let found = location::find(value, &path, &message);
        field_error(found.as_deref().unwrap_or(&path), &message, whole)
    })
}

/// The error of a deserializer. A missing or unknown field is reported under its own name, not its parent's; `whole` is the name of
/// what has no name.
pub fn field_error(path: &str, message: &str, whole: &str) -> FieldError {
    // An error inside metadata is about all of it.
    let path = if path.starts_with("metadata.") || path.starts_with("metadata[") { "metadata" } else { path };
    let named = ["unknown field `", "missing field `", "duplicate field `"]
        .iter()
        .find_map(|start| message.strip_prefix(start)?.split_once('`').map(|(name, _)| name));
    let field = match (path, named) {
        ("." | "", Some(name)) => name.to_owned(),
        ("." | "", None) => whole.to_owned(),
        (path, Some(name)) if path != name && !path.ends_with(&format!(".{name}")) => format!("{path}.{name}"),
        (path, _) => path.to_owned(),
    };
    FieldError { field, message: wording::describe(message) }
}
