//! Names for the variants of tagged unions.
//!
//! A type such as `Event` is composed of an envelope and a union of contents by kind. Generators make good types of a union of named
//! objects with a discriminator only, so each variant becomes a schema with all fields: `StateEvent`, `MessageEvent` and so on.
//!
//! Why here: utoipa writes a flattened enum as `allOf` of the union and the envelope, in this order, and a tag as an `enum` with one
//! value. `name_contents` runs first, since what a variant holds is named after the union, not after the type that is composed of it.
//! The limits of `constraints` and `streams::require_job_ids` are about the named variants, so they come later. If utoipa's layout or the
//! order changes, `events_are_unions_of_named_variants` in `docs/tests.rs` fails.

use std::collections::{BTreeMap, BTreeSet};

use serde_json::{Map, Value, json};

use super::schemas::{self, SCHEMA_PREFIX, for_each_reference, reference};

type Schemas = Map<String, Value>;

/// Replaces each tagged union that something refers to by a union of named variants.
pub(super) fn name_variants(document: &mut Value) {
    if let Some(schemas) = schemas::of(document) {
        name_contents(schemas);
    }
    let used = used(document);
    let Some(schemas) = schemas::of(document) else { return };
    let names: Vec<String> = schemas.keys().filter(|name| used.contains(*name)).cloned().collect();
    let mut made = BTreeMap::new();
    for name in names {
        if let Some(union) = union_of(&name, schemas) {
            made.insert(name, union);
        }
    }
    for (name, Union { tag, variants, description }) in made {
        let mut mapping = Map::new();
        for (value, mut variant) in variants {
            let variant_name = format!("{}{name}", pascal(&value));
            variant["properties"][&tag] = json!({"type": "string", "const": value});
            mapping.insert(value, json!(reference(&variant_name)));
            schemas.insert(variant_name, variant);
        }
        let one_of: Vec<Value> = mapping.values().map(|target| json!({"$ref": target})).collect();
        let discriminator = json!({"propertyName": tag, "mapping": mapping});
        schemas.insert(name, json!({"oneOf": one_of, "discriminator": discriminator, "description": description}));
    }
}

/// Gives the contents of adjacently tagged variants names, such as `StateEventData`.
fn name_contents(schemas: &mut Schemas) {
    let mut contents = vec![];
    for (name, schema) in schemas.iter_mut() {
        for variant in schema.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten() {
            let Some(tag) = tag_value(variant, "kind").map(str::to_owned) else { continue };
            let Some(data) = variant.pointer_mut("/properties/data").filter(|data| data.get("$ref").is_none()) else {
                continue;
            };
            let content_name = format!("{}{name}", pascal(&tag));
            contents.push((content_name.clone(), std::mem::replace(data, json!({"$ref": reference(&content_name)}))));
        }
    }
    schemas.extend(contents);
}

/// The schemas that are used by themselves: not only as a part of a composed one.
fn used(document: &Value) -> BTreeSet<String> {
    let mut found = BTreeSet::new();
    let mut add = |reference: &str| {
        found.extend(reference.strip_prefix(SCHEMA_PREFIX).map(str::to_owned));
    };
    for_each_reference(&document["paths"], &mut add);
    for schema in document["components"]["schemas"].as_object().into_iter().flat_map(Map::values) {
        for (keyword, value) in schema.as_object().into_iter().flatten() {
            for part in if matches!(keyword.as_str(), "allOf" | "oneOf") { value.as_array() } else { None }
                .into_iter()
                .flatten()
            {
                if part.get("$ref").is_none() {
                    for_each_reference(part, &mut add);
                }
            }
            if !matches!(keyword.as_str(), "allOf" | "oneOf") {
                for_each_reference(value, &mut add);
            }
        }
    }
    found
}

/// A tagged union.
struct Union {
    /// The property that tells the variants apart.
    tag: String,
    /// The variants by their value of it, with all properties.
    variants: Vec<(String, Value)>,
    description: Value,
}

fn union_of(name: &str, schemas: &Schemas) -> Option<Union> {
    let variants = alternatives(&schemas[name], schemas)?;
    if variants.len() < 2 {
        return None;
    }
    let mut tags = variants[0]["properties"].as_object()?.keys();
    let tag = tags.find(|tag| variants.iter().all(|variant| tag_value(variant, tag).is_some()))?.clone();
    let tagged = |variant: Value| Some((tag_value(&variant, &tag)?.to_owned(), variant));
    let variants: Option<Vec<_>> = variants.into_iter().map(tagged).collect();
    let description = schemas[name].get("description").cloned().unwrap_or_default();
    Some(Union { tag: tag.clone(), variants: variants?, description })
}

/// The objects that a schema allows, with the properties of all its parts; none if it allows anything else.
fn alternatives(schema: &Value, schemas: &Schemas) -> Option<Vec<Value>> {
    if let Some(target) = schema.get("$ref").and_then(Value::as_str) {
        return alternatives(schemas.get(target.strip_prefix(SCHEMA_PREFIX)?)?, schemas);
    }
    if let Some(one_of) = schema.get("oneOf").and_then(Value::as_array) {
        let all: Option<Vec<_>> = one_of.iter().map(|one| alternatives(one, schemas)).collect();
        return all.map(|all| all.into_iter().flatten().collect());
    }
    if let Some(all_of) = schema.get("allOf").and_then(Value::as_array) {
        let mut merged = vec![json!({"type": "object"})];
        // The envelope is last, and its properties come first in events.
        for part in all_of.iter().rev() {
            let mut parts = alternatives(part, schemas)?;
            // What describes the envelope does not describe the variants.
            if let ([envelope], true) = (parts.as_mut_slice(), all_of.len() > 1) {
                envelope.as_object_mut()?.shift_remove("description");
            }
            let pairs = merged.iter().flat_map(|left| parts.iter().map(move |right| merge(left, right)));
            merged = pairs.collect();
        }
        if let (Some(description), [single]) = (schema.get("description"), merged.as_mut_slice()) {
            single["description"] = description.clone();
        }
        return Some(merged);
    }
    (schema.get("type")? == "object" && schema.get("properties").is_some()).then(|| vec![schema.clone()])
}

/// An object with the properties of both.
fn merge(left: &Value, right: &Value) -> Value {
    let mut merged = left.clone();
    for (keyword, value) in right.as_object().into_iter().flatten() {
        match (merged.get_mut(keyword), value) {
            (Some(Value::Object(into)), Value::Object(more)) => into.extend(more.clone()),
            (Some(Value::Array(into)), Value::Array(more)) => into.extend(more.iter().cloned()),
            _ => merged[keyword] = value.clone(),
        }
    }
    merged
}

/// The only value of a property.
fn tag_value<'v>(variant: &'v Value, tag: &str) -> Option<&'v str> {
    match variant["properties"][tag]["enum"].as_array()?.as_slice() {
        [value] => value.as_str(),
        _ => None,
    }
}

/// A name such as `tool_use` as `ToolUse`.
fn pascal(name: &str) -> String {
    let capitalized = |word: &str| {
        let mut letters = word.chars();
        letters.next().into_iter().flat_map(char::to_uppercase).chain(letters).collect::<String>()
    };
    name.split('_').map(capitalized).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_envelope_with_a_union_becomes_named_variants() {
        let mut document = json!({
            "paths": {"/things": {"$ref": "#/components/schemas/Thing"}},
            "components": {"schemas": {
                "Thing": {
                    "description": "A thing.",
                    "allOf": [
                        {"$ref": "#/components/schemas/Content"},
                        {"type": "object", "required": ["id"], "properties": {"id": {"type": "string"}}},
                    ],
                },
                "Content": {"oneOf": [
                    {"type": "object", "required": ["kind", "data"], "description": "Round.", "properties": {
                        "data": {"type": "object", "properties": {"radius": {"type": "number"}}},
                        "kind": {"type": "string", "enum": ["round_one"]},
                    }},
                    {"type": "object", "required": ["kind", "data"], "properties": {
                        "data": {"$ref": "#/components/schemas/Side"},
                        "kind": {"type": "string", "enum": ["flat"]},
                    }},
                ]},
                "Side": {"type": "object", "properties": {"length": {"type": "number"}}},
            }},
        });
        name_variants(&mut document);
        let schemas = &document["components"]["schemas"];
        let expected = json!({
            "oneOf": [{"$ref": "#/components/schemas/RoundOneThing"}, {"$ref": "#/components/schemas/FlatThing"}],
            "discriminator": {"propertyName": "kind", "mapping": {
                "round_one": "#/components/schemas/RoundOneThing", "flat": "#/components/schemas/FlatThing",
            }},
            "description": "A thing.",
        });
        assert_eq!(schemas["Thing"], expected);
        let round = json!({
            "type": "object",
            "required": ["id", "kind", "data"],
            "description": "Round.",
            "properties": {
                "id": {"type": "string"},
                "data": {"$ref": "#/components/schemas/RoundOneContent"},
                "kind": {"type": "string", "const": "round_one"},
            },
        });
        assert_eq!(schemas["RoundOneThing"], round);
        assert_eq!(schemas["RoundOneContent"]["properties"]["radius"]["type"], "number");
        assert_eq!(schemas["FlatThing"]["properties"]["data"]["$ref"], "#/components/schemas/Side");
    }
}
