//! Folds the JSON Schema of a tool's parameters into what a provider takes. The original still validates the calls, so what
//! is lost here costs a model a second try, not a wrong call. Pure.

use config::SchemaSubset;
use serde_json::{Map, Value, json};

/// Levels that are kept; deeper values are any text. Also ends references that contain themselves.
const MAX_DEPTH: usize = 12;
const UNIONS: [&str; 3] = ["anyOf", "oneOf", "allOf"];

pub(super) fn fold(schema: &Value, subset: SchemaSubset) -> Value {
    match subset {
        SchemaSubset::Full => schema.clone(),
        SchemaSubset::NoTopUnion => without_top_union(schema),
        SchemaSubset::Plain => {
            let mut folded = Plain { root: schema }.value(&without_top_union(schema), 0);
            // Parameters are an object whatever the schema says.
            if folded["type"] != "object" {
                folded = json!({"type": "object", "properties": {}, "required": []});
            }
            folded
        }
    }
}

/// An object with the properties of all branches. A property is required if it is in the schema itself, or in each branch
/// of a union, or in any part of `allOf`.
fn without_top_union(schema: &Value) -> Value {
    let Value::Object(fields) = schema else {
        return json!({"type": "object", "properties": {}, "required": []});
    };
    let mut folded = fields.clone();
    for union in UNIONS {
        let Some(Value::Array(branches)) = folded.shift_remove(union) else { continue };
        let is_all = union == "allOf";
        for branch in &branches {
            for (name, property) in branch["properties"].as_object().into_iter().flatten() {
                object(&mut folded, "properties").entry(name.clone()).or_insert_with(|| property.clone());
            }
        }
        let names = |branch: &Value| -> Vec<Value> { branch["required"].as_array().cloned().unwrap_or_default() };
        let mut required: Vec<Value> = branches.iter().flat_map(names).collect();
        required.retain(|name| is_all || branches.iter().all(|branch| names(branch).contains(name)));
        let known = folded.entry("required").or_insert_with(|| json!([]));
        if let Value::Array(known) = known {
            for name in required {
                if !known.contains(&name) {
                    known.push(name);
                }
            }
        }
    }
    for condition in ["not", "if", "then", "else", "enum", "const"] {
        folded.shift_remove(condition);
    }
    folded.insert("type".to_owned(), json!("object"));
    object(&mut folded, "properties");
    Value::Object(folded)
}

fn object<'a>(fields: &'a mut Map<String, Value>, name: &str) -> &'a mut Map<String, Value> {
    crate::wire::json::object(fields.entry(name).or_insert(Value::Null))
}

/// Reduces values to a description, one type, and what it consists of.
struct Plain<'a> {
    /// Where references point into.
    root: &'a Value,
}

impl Plain<'_> {
    fn value(&self, schema: &Value, depth: usize) -> Value {
        let text = |description: Option<&Value>| {
            let mut text = json!({"type": "string"});
            if let Some(description) = description {
                text["description"] = description.clone();
            }
            text
        };
        if depth == MAX_DEPTH {
            return text(None);
        }
        let Value::Object(fields) = schema else { return text(None) };
        if let Some(target) = self.referenced(fields) {
            let mut folded = self.value(target, depth + 1);
            if let Some(description) = fields.get("description") {
                folded["description"] = description.clone();
            }
            return folded;
        }
        let mut folded = Map::new();
        if let Some(description) = fields.get("description").filter(|given| given.is_string()) {
            folded.insert("description".to_owned(), description.clone());
        }
        let kind = kind(fields);
        if kind.is_none()
            && let Some(branch) = UNIONS.iter().find_map(|union| branch(fields.get(*union)?))
        {
            let mut chosen = self.value(branch, depth + 1);
            if let Some(description) = folded.shift_remove("description") {
                chosen["description"] = description;
            }
            return chosen;
        }
        let kind = kind.unwrap_or("string");
        folded.insert("type".to_owned(), json!(kind));
        match kind {
            "object" => {
                let empty = Map::new();
                let given = fields.get("properties").and_then(Value::as_object).unwrap_or(&empty);
                let properties: Map<String, Value> = given
                    .iter()
                    .filter(|(name, _)| is_plain_name(name))
                    .map(|(name, property)| (name.clone(), self.value(property, depth + 1)))
                    .collect();
                let required = fields.get("required").and_then(Value::as_array).into_iter().flatten();
                let required: Vec<Value> = required
                    .filter(|name| name.as_str().is_some_and(|name| properties.contains_key(name)))
                    .cloned()
                    .collect();
                folded.insert("properties".to_owned(), Value::Object(properties));
                folded.insert("required".to_owned(), Value::Array(required));
            }
            "array" => {
                let items = match fields.get("items") {
                    Some(Value::Array(several)) => several.first(),
                    one => one,
                };
                folded.insert("items".to_owned(), self.value(items.unwrap_or(&Value::Null), depth + 1));
            }
            "string" => {
                let values = fields.get("enum").and_then(Value::as_array).cloned();
                let values = values.or_else(|| fields.get("const").map(|only| vec![only.clone()])).unwrap_or_default();
                let texts: Vec<Value> = values.into_iter().filter(Value::is_string).collect();
                if !texts.is_empty() {
                    folded.insert("enum".to_owned(), Value::Array(texts));
                }
            }
            _ => {}
        }
        Value::Object(folded)
    }

    /// What a reference within the schema points to.
    fn referenced(&self, fields: &Map<String, Value>) -> Option<&Value> {
        let pointer = fields.get("$ref")?.as_str()?.strip_prefix('#')?;
        self.root.pointer(pointer)
    }
}

/// The type of a value: the first that is not null, or the one that its keywords imply.
fn kind(fields: &Map<String, Value>) -> Option<&str> {
    let known = |kind: &&str| ["object", "array", "string", "integer", "number", "boolean"].contains(kind);
    let named = match fields.get("type") {
        Some(Value::String(kind)) => Some(kind.as_str()),
        Some(Value::Array(kinds)) => kinds.iter().filter_map(Value::as_str).find(known),
        _ => None,
    };
    let of_value = |value: &Value| match value {
        Value::String(_) => Some("string"),
        Value::Bool(_) => Some("boolean"),
        Value::Number(number) if number.is_f64() => Some("number"),
        Value::Number(_) => Some("integer"),
        _ => None,
    };
    let implied = || match () {
        () if fields.contains_key("properties") => Some("object"),
        () if fields.contains_key("items") => Some("array"),
        () => {
            let first = fields
                .get("enum")
                .and_then(Value::as_array)
                .and_then(|values| values.iter().find(|value| !value.is_null()));
            first.or_else(|| fields.get("const")).and_then(of_value)
        }
    };
    named.filter(known).or_else(implied)
}

/// The branch of a union that is kept: the first that is not null.
fn branch(union: &Value) -> Option<&Value> {
    union.as_array()?.iter().find(|branch| branch["type"] != "null")
}

/// Names that each provider takes.
fn is_plain_name(name: &str) -> bool {
    (1..=64).contains(&name.len()) && name.bytes().all(|byte| byte.is_ascii_alphanumeric() || b"_.-".contains(&byte))
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn no_top_union(schema: &Value) -> Value {
        fold(schema, SchemaSubset::NoTopUnion)
    }

    fn plain(schema: &Value) -> Value {
        fold(schema, SchemaSubset::Plain)
    }

    #[test]
    fn a_union_at_the_top_becomes_one_object() {
        // The shape of langchain-ai/langchain#39271.
        let either = json!({
            "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}},
            "anyOf": [{"required": ["a"]}, {"required": ["b"]}],
        });
        let expected = json!({
            "type": "object", "properties": {"a": {"type": "string"}, "b": {"type": "integer"}}, "required": [],
        });
        assert_eq!(no_top_union(&either), expected);
        let branches = json!({"oneOf": [
            {"properties": {"kind": {"const": "x"}, "x": {"type": "string"}}, "required": ["kind", "x"]},
            {"properties": {"kind": {"const": "y"}, "y": {"type": "string"}}, "required": ["kind", "y"]},
        ]});
        let folded = no_top_union(&branches);
        assert_eq!(folded["required"], json!(["kind"]));
        assert_eq!(folded["properties"].as_object().map(Map::len), Some(3));
        let all = no_top_union(&json!({"allOf": [{"required": ["a"]}, {"properties": {"a": {}}, "required": ["b"]}]}));
        assert_eq!(all["required"], json!(["a", "b"]));
    }

    #[test]
    fn values_have_one_type_each() {
        let schema = json!({
            "$schema": "https://json-schema.org/draft/2020-12/schema", "type": "object",
            "$defs": {"node": {"type": "object", "properties": {"next": {"$ref": "#/$defs/node"}}}},
            "properties": {
                "list": {"type": "array"},
                "maybe": {"type": ["null", "integer"], "minimum": 1},
                "either": {"anyOf": [{"type": "null"}, {"type": "string", "pattern": "^\\d+$"}], "description": "a number"},
                "any": true,
                "unit": {"enum": ["c", "f", null]},
                "level": {"enum": [1, 2]},
                "fixed": {"const": "x"},
                "node": {"$ref": "#/$defs/node"},
                "not a name": {"type": "string"},
            },
            "required": ["list", "not a name"],
        });
        let folded = plain(&schema);
        assert!(folded.get("$schema").is_none() && folded.get("$defs").is_none());
        assert_eq!(folded["required"], json!(["list"]));
        let properties = &folded["properties"];
        assert_eq!(properties["list"], json!({"type": "array", "items": {"type": "string"}}));
        assert_eq!(properties["maybe"], json!({"type": "integer"}));
        assert_eq!(properties["either"], json!({"type": "string", "description": "a number"}));
        assert_eq!(properties["any"], json!({"type": "string"}));
        assert_eq!(properties["unit"], json!({"type": "string", "enum": ["c", "f"]}));
        assert_eq!(properties["level"], json!({"type": "integer"}));
        assert_eq!(properties["fixed"], json!({"type": "string", "enum": ["x"]}));
        assert_eq!(properties["node"]["type"], "object");
    }

    #[test]
    fn parameters_are_an_object_whatever_is_given() {
        let empty = json!({"type": "object", "properties": {}, "required": []});
        for schema in [json!(true), json!({}), json!({"type": "string"}), json!({"$ref": "#"}), json!(null)] {
            assert_eq!(plain(&schema), empty, "{schema}");
            assert_eq!(no_top_union(&schema)["type"], "object");
        }
    }

    fn is_plain(schema: &Value) -> bool {
        let Some(fields) = schema.as_object() else { return false };
        let has_only = |allowed: &[&str]| {
            fields.keys().all(|key| ["type", "description"].contains(&key.as_str()) || allowed.contains(&key.as_str()))
        };
        match schema["type"].as_str() {
            Some("object") => {
                let properties = schema["properties"].as_object();
                has_only(&["properties", "required"])
                    && schema["required"].is_array()
                    && properties.is_some_and(|properties| properties.values().all(is_plain))
            }
            Some("array") => has_only(&["items"]) && is_plain(&schema["items"]),
            Some("string") => has_only(&["enum"]),
            Some("integer" | "number" | "boolean") => has_only(&[]),
            _ => false,
        }
    }

    fn schemas() -> impl Strategy<Value = Value> {
        let types =
            prop::sample::select(vec!["object", "array", "string", "integer", "null", "boolean", "number", "odd"]);
        let leaf = prop_oneof![
            Just(json!(true)),
            Just(json!({})),
            Just(json!({"$ref": "#/properties/a"})),
            types.clone().prop_map(|kind| json!({"type": kind, "pattern": "x"})),
            prop::collection::vec(types, 0..3).prop_map(|kinds| json!({"type": kinds})),
            Just(json!({"enum": [null, 1, "x"]})),
        ];
        leaf.prop_recursive(4, 32, 4, |inner| {
            prop_oneof![
                prop::collection::vec(inner.clone(), 0..3).prop_map(|list| json!({"anyOf": list})),
                prop::collection::vec(inner.clone(), 0..3).prop_map(|list| json!({"type": "array", "items": list})),
                prop::collection::btree_map("[a-c $]{1,2}", inner, 0..3)
                    .prop_map(|properties| json!({"properties": properties, "required": ["a", "b"], "not": {}})),
            ]
        })
    }

    proptest! {
        #[test]
        fn a_plain_schema_has_nothing_that_any_provider_refuses(schema in schemas()) {
            let folded = plain(&schema);
            prop_assert!(is_plain(&folded) && folded["type"] == "object", "{}", folded);
            prop_assert_eq!(plain(&folded), folded);
        }
    }
}
