//! Coercion of arguments that a model wrote as strings to the types of the schema. Pure, never fails.
//!
//! Only strings change, and only where the schema takes no string: `"5"` for an integer, `"[1]"` for an array. What
//! still does not fit is left to validation.

use serde_json::{Map, Number, Value};

/// Integers beyond this (2^53) are not exact as a float.
const MAX_EXACT_FLOAT: f64 = 9_007_199_254_740_992.0;

/// Coerces the arguments of a call to the schema as far as possible.
pub(super) fn to_schema(arguments: Value, schema: &Value) -> Value {
    let arguments = match arguments {
        // Some wires send no arguments as null.
        Value::Null => Value::Object(Map::new()),
        Value::String(text) if text.trim().is_empty() => Value::Object(Map::new()),
        other => other,
    };
    coerce(arguments, schema)
}

fn coerce(value: Value, schema: &Value) -> Value {
    let types = Types::of(schema);
    let value = match value {
        Value::String(text) if types.wants_other_than_string() => types.read(text),
        Value::Number(number) if types.wants_whole_numbers() => integral(number),
        other => other,
    };
    match value {
        Value::Object(fields) => Value::Object(coerce_fields(fields, schema)),
        Value::Array(items) => match schema.get("items") {
            Some(item) if item.is_object() => items.into_iter().map(|value| coerce(value, item)).collect(),
            _ => Value::Array(items),
        },
        other => other,
    }
}

fn coerce_fields(fields: Map<String, Value>, schema: &Value) -> Map<String, Value> {
    let properties = schema.get("properties");
    let others = schema.get("additionalProperties").filter(|others| others.is_object());
    fields
        .into_iter()
        .map(|(key, value)| match properties.and_then(|known| known.get(&key)).or(others) {
            Some(schema) => {
                let value = coerce(value, schema);
                (key, value)
            }
            None => (key, value),
        })
        .collect()
}

/// `3.0` where a whole number is asked for: the schema takes it, the tool's own type may not.
fn integral(number: Number) -> Value {
    match number.as_f64() {
        Some(float)
            if !number.is_i64() && !number.is_u64() && float.fract() == 0.0 && float.abs() < MAX_EXACT_FLOAT =>
        {
            // Formatted without a point it parses as the integer it is.
            format!("{float:.0}").parse::<i64>().map_or(Value::Number(number), Value::from)
        }
        _ => Value::Number(number),
    }
}

/// The JSON types that a schema takes at its top, by name.
struct Types<'s>(Vec<&'s str>);

impl<'s> Types<'s> {
    fn of(schema: &'s Value) -> Self {
        let branches = ["anyOf", "oneOf"].into_iter().filter_map(|key| schema.get(key)?.as_array()).flatten();
        let names = std::iter::once(schema).chain(branches).filter_map(|schema| schema.get("type"));
        Self(
            names
                .flat_map(|names| match names {
                    Value::Array(names) => names.iter().filter_map(Value::as_str).collect(),
                    name => Vec::from_iter(name.as_str()),
                })
                .collect(),
        )
    }

    fn takes(&self, name: &str) -> bool {
        self.0.contains(&name)
    }

    fn wants_other_than_string(&self) -> bool {
        !self.0.is_empty() && !self.takes("string")
    }

    fn wants_whole_numbers(&self) -> bool {
        self.takes("integer") && !self.takes("number")
    }

    /// The string read as one of these types; itself when it is none of them.
    fn read(&self, text: String) -> Value {
        let trimmed = text.trim();
        if self.takes("boolean") && trimmed.eq_ignore_ascii_case("true") {
            return Value::Bool(true);
        }
        if self.takes("boolean") && trimmed.eq_ignore_ascii_case("false") {
            return Value::Bool(false);
        }
        match serde_json::from_str::<Value>(trimmed) {
            Ok(Value::Number(number)) if self.takes("number") => Value::Number(number),
            Ok(Value::Number(number)) if self.takes("integer") => integral(number),
            Ok(Value::Null) if self.takes("null") => Value::Null,
            Ok(Value::Array(items)) if self.takes("array") => Value::Array(items),
            Ok(Value::Object(fields)) if self.takes("object") => Value::Object(fields),
            _ => Value::String(text),
        }
    }
}
