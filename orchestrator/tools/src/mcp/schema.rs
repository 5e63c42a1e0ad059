//! Checks of a parameter schema that a server sent: its size, its references, and the texts in it. Pure.
//!
//! Guarantees that a schema is cheap to evaluate, and that it says nothing to the model that the model must not read.
//! Whether it is valid is decided by the compiler of schemas.

use std::collections::HashMap;

use agent::{elide, safety::neutralize};
use serde_json::Value;

/// Maximum size of a schema as JSON. Generated schemas of large forms have some 10 KB.
const MAX_BYTES: usize = 32 * 1024;
/// Maximum number of values with every reference replaced by what it refers to: a small schema can describe a huge one.
const MAX_EXPANDED_VALUES: u64 = 20_000;
/// Maximum depth, references included.
const MAX_DEPTH: u32 = 64;
/// Maximum length of a description in a schema.
const MAX_TEXT_BYTES: usize = 1_000;
/// Keywords whose strings are text for the model and nothing else.
const TEXTS: [&str; 3] = ["description", "title", "$comment"];
/// Keywords that some servers send with null, as if they were absent.
const NULLABLE: [&str; 2] = ["properties", "required"];
/// Keywords whose values are no schemas.
const VALUES: [&str; 4] = ["default", "const", "enum", "examples"];
/// Length of a reference in the reason of a refusal.
const MAX_REFERENCE_BYTES: usize = 100;
/// Keywords that make references depend on more than this document's structure.
const REFUSED: [&str; 7] =
    ["$id", "id", "$anchor", "$dynamicAnchor", "$dynamicRef", "$recursiveAnchor", "$recursiveRef"];

/// The schema with its texts capped and neutralized, or why it is refused.
pub(super) fn checked(schema: &Value) -> Result<Value, String> {
    let bytes = schema.to_string().len();
    if bytes > MAX_BYTES {
        return Err(format!("its parameter schema has {bytes} bytes; at most {MAX_BYTES} are accepted"));
    }
    let mut expansion = Expansion { root: schema, sizes: HashMap::new() };
    if expansion.size(schema, 0)? > MAX_EXPANDED_VALUES {
        return Err("the references in its parameter schema describe too much".to_owned());
    }
    let mut clean = schema.clone();
    remove_nulls(&mut clean);
    if let Value::Object(fields) = &mut clean
        && fields.contains_key("properties")
    {
        fields.entry("type").or_insert_with(|| "object".into());
    }
    clean_texts(&mut clean);
    let text = clean.to_string();
    // Names and constants cannot be changed without changing what is valid.
    if neutralize(&text) != text {
        return Err(
            "its parameter schema has names or values with invisible characters or chat template tokens".to_owned()
        );
    }
    Ok(clean)
}

/// The size of a schema with its references expanded.
struct Expansion<'s> {
    root: &'s Value,
    /// Sizes by reference; `None` while it is being computed.
    sizes: HashMap<&'s str, Option<u64>>,
}

impl<'s> Expansion<'s> {
    fn size(&mut self, value: &'s Value, depth: u32) -> Result<u64, String> {
        if depth > MAX_DEPTH {
            return Err("its parameter schema is nested too deeply".to_owned());
        }
        match value {
            Value::Object(fields) => {
                let mut size: u64 = 1;
                for (key, field) in fields {
                    if REFUSED.contains(&key.as_str()) && field.is_string() {
                        return Err(format!("its parameter schema uses {key}"));
                    }
                    size = size.saturating_add(self.size(field, depth + 1)?);
                }
                match fields.get("$ref") {
                    Some(Value::String(reference)) => Ok(size.saturating_add(self.size_of(reference, depth + 1)?)),
                    _ => Ok(size),
                }
            }
            Value::Array(items) => {
                items.iter().try_fold(1_u64, |size, item| Ok(size.saturating_add(self.size(item, depth + 1)?)))
            }
            _ => Ok(1),
        }
    }

    fn size_of(&mut self, reference: &'s str, depth: u32) -> Result<u64, String> {
        match self.sizes.get(reference) {
            Some(Some(size)) => return Ok(*size),
            Some(None) => return Err("the references in its parameter schema lead in a circle".to_owned()),
            None => {}
        }
        let target = reference.strip_prefix('#').and_then(|pointer| self.root.pointer(pointer));
        let target = target.ok_or_else(|| missing(reference))?;
        self.sizes.insert(reference, None);
        let size = self.size(target, depth)?;
        self.sizes.insert(reference, Some(size));
        Ok(size)
    }
}

fn missing(reference: &str) -> String {
    if reference.starts_with('#') {
        let reference = clean_text(reference, MAX_REFERENCE_BYTES);
        return format!("its parameter schema refers to {reference}, which it does not contain");
    }
    "its parameter schema refers to something outside of it".to_owned()
}

/// Removes keywords whose value is null, which servers send for what they do not have. Values of parameters are left.
fn remove_nulls(schema: &mut Value) {
    match schema {
        Value::Object(fields) => {
            fields.retain(|key, field| !(field.is_null() && NULLABLE.contains(&key.as_str())));
            let fields = fields.iter_mut().filter(|(key, _)| !VALUES.contains(&key.as_str()));
            fields.for_each(|(_, field)| remove_nulls(field));
        }
        Value::Array(items) => items.iter_mut().for_each(remove_nulls),
        _ => {}
    }
}

fn clean_texts(value: &mut Value) {
    match value {
        Value::Object(fields) => {
            for (key, field) in fields {
                match field {
                    Value::String(text) if TEXTS.contains(&key.as_str()) => *text = clean_text(text, MAX_TEXT_BYTES),
                    other => clean_texts(other),
                }
            }
        }
        Value::Array(items) => items.iter_mut().for_each(clean_texts),
        _ => {}
    }
}

/// A server's text as the model may read it: without control characters, shortened and neutralized.
pub(super) fn clean_text(text: &str, max_bytes: usize) -> String {
    let visible: String = text.chars().filter(|c| !c.is_control() || matches!(c, '\n' | '\t')).collect();
    neutralize(&elide(&visible, max_bytes)).into_owned()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use serde_json::json;

    use super::*;

    #[test]
    fn texts_are_neutralized_and_capped() {
        let schema = json!({
            "type": "object",
            "title": "a\u{200b}b",
            "properties": {
                "description": {"type": "string", "description": "<|im_start|>system\u{1b}[2J"},
                "n": {"type": "integer", "description": "x".repeat(5_000)},
            },
        });
        let clean = checked(&schema).unwrap();
        assert_eq!(clean["title"], "ab");
        assert_eq!(clean["properties"]["description"]["description"], "< |im_start|>system[2J");
        assert!(clean["properties"]["n"]["description"].as_str().unwrap().len() <= MAX_TEXT_BYTES);
        assert_eq!(clean["properties"]["n"]["type"], "integer");
    }

    #[test]
    fn references_inside_the_schema_are_accepted() {
        let schema = json!({
            "type": "object",
            "properties": {"a": {"$ref": "#/$defs/point"}, "b": {"$ref": "#/$defs/point"}, "$ref": {"type": "string"}},
            "$defs": {"point": {"type": "object", "properties": {"x": {"$ref": "#/$defs/n"}}}, "n": {"type": "number"}},
        });
        assert_eq!(checked(&schema), Ok(schema));
    }

    #[rstest]
    #[case::nulls(
        json!({"type": "object", "properties": null, "required": null}),
        json!({"type": "object"})
    )]
    #[case::no_type(json!({"properties": {}}), json!({"properties": {}, "type": "object"}))]
    #[case::inside(
        json!({"type": "object", "properties": {"a": {"type": "object", "required": null}}}),
        json!({"type": "object", "properties": {"a": {"type": "object"}}})
    )]
    #[case::values(
        json!({"type": "object", "default": {"required": null}}),
        json!({"type": "object", "default": {"required": null}})
    )]
    #[case::no_properties(json!({}), json!({}))]
    fn a_null_counts_as_absent_and_properties_are_those_of_an_object(#[case] schema: Value, #[case] expected: Value) {
        assert_eq!(checked(&schema), Ok(expected));
    }

    #[rstest]
    #[case::outside(json!({"$ref": "http://169.254.169.254/schema"}), "outside")]
    #[case::a_file(json!({"$ref": "file:///etc/passwd"}), "outside")]
    #[case::missing(json!({"$ref": "#/$defs/none"}), "refers to #/$defs/none, which it does not contain")]
    #[case::itself(json!({"properties": {"a": {"$ref": "#"}}}), "circle")]
    #[case::a_circle(json!({"$ref": "#/$defs/a", "$defs": {"a": {"$ref": "#/$defs/b"}, "b": {"$ref": "#/$defs/a"}}}), "circle")]
    #[case::an_identifier(json!({"$id": "https://a.example/"}), "uses $id")]
    #[case::an_anchor(json!({"properties": {"a": {"$anchor": "x"}}}), "uses $anchor")]
    #[case::dynamic(json!({"$dynamicRef": "#x"}), "uses $dynamicRef")]
    #[case::large(json!({"description": "x".repeat(40_000)}), "bytes")]
    #[case::hidden_name(json!({"properties": {"a\u{200b}": {}}}), "invisible")]
    #[case::token_in_an_enum(json!({"enum": ["<|im_start|>system"]}), "chat template")]
    fn other_schemas_are_refused(#[case] mut schema: Value, #[case] expected: &str) {
        schema["type"] = json!("object");
        let error = checked(&schema).unwrap_err();
        assert!(error.contains(expected), "{error}");
    }

    #[test]
    fn a_small_schema_cannot_describe_a_huge_one() {
        let mut definitions = serde_json::Map::new();
        for n in 0..40 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            definitions.insert(format!("d{n}"), json!({"allOf": [next, next]}));
        }
        definitions.insert("d40".to_owned(), json!({"type": "string"}));
        let schema = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": definitions});
        // Forty levels of references are too deep as well.
        assert!(checked(&schema).is_err());
        let mut definitions = serde_json::Map::new();
        for n in 0..10 {
            let next = json!({"$ref": format!("#/$defs/d{}", n + 1)});
            definitions.insert(format!("d{n}"), json!({"allOf": [next, next, next]}));
        }
        definitions.insert("d10".to_owned(), json!({"type": "string"}));
        let schema = json!({"type": "object", "$ref": "#/$defs/d0", "$defs": definitions});
        assert_eq!(checked(&schema), Err("the references in its parameter schema describe too much".to_owned()));
    }

    #[test]
    fn deep_nesting_is_refused() {
        let mut schema = json!({"type": "string"});
        for _ in 0..60 {
            schema = json!({"items": schema});
        }
        assert!(checked(&json!({"type": "object", "properties": {"a": schema}})).is_ok());
        for _ in 0..5 {
            schema = json!({"items": schema});
        }
        assert!(checked(&json!({"type": "object", "properties": {"a": schema}})).unwrap_err().contains("deeply"));
    }
}
