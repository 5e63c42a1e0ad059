//! The schemas of the document: their names, and what generators need to know of them.
//!
//! Why: utoipa names a generic type `Page_Job` and repeats the item in it, and generators make required fields of those with a default.
//! Each function is a step for one such habit, and `prune` is last, since the others leave schemas behind. When a step is missing, one of
//! `generators_get_what_they_need`, `defaults_are_described` and `events_are_unions_of_named_variants` in `docs/tests.rs` fails.

use std::collections::BTreeSet;

use serde_json::{Map, Value, json};

/// What a reference to a schema begins with.
pub(super) const SCHEMA_PREFIX: &str = "#/components/schemas/";
/// What the name of a page begins with that is made of the generic type.
const GENERIC_PAGE: &str = "Page_";

pub(super) fn reference(name: &str) -> String {
    format!("{SCHEMA_PREFIX}{name}")
}

pub(super) fn of(document: &mut Value) -> Option<&mut Map<String, Value>> {
    document["components"]["schemas"].as_object_mut()
}

/// Calls `visit` with each object in a value, the outer ones first.
pub(super) fn for_each_object(value: &mut Value, visit: &mut impl FnMut(&mut Map<String, Value>)) {
    match value {
        Value::Object(fields) => {
            visit(fields);
            fields.values_mut().for_each(|value| for_each_object(value, visit));
        }
        Value::Array(items) => items.iter_mut().for_each(|value| for_each_object(value, visit)),
        _ => {}
    }
}

/// Calls `visit` with each reference in a value, those of discriminators included.
pub(super) fn for_each_reference(value: &Value, visit: &mut impl FnMut(&str)) {
    match value {
        Value::Object(fields) => fields.values().for_each(|value| for_each_reference(value, visit)),
        Value::Array(items) => items.iter().for_each(|value| for_each_reference(value, visit)),
        Value::String(text) if text.starts_with("#/") => visit(text),
        _ => {}
    }
}

/// Names pages after their items, `JobSummaryPage`, and refers to the items' schema instead of repeating it.
pub(super) fn name_pages(document: &mut Value) {
    let Some(schemas) = of(document) else { return };
    let names: Vec<String> =
        schemas.keys().filter_map(|name| name.strip_prefix(GENERIC_PAGE)).map(str::to_owned).collect();
    for item in &names {
        let Some(mut page) = schemas.remove(&format!("{GENERIC_PAGE}{item}")) else { continue };
        let items = std::mem::replace(&mut page["properties"]["items"]["items"], json!({"$ref": reference(item)}));
        page["description"] = json!(format!("A page of a list of `{item}`."));
        schemas.entry(item.clone()).or_insert(items);
        schemas.insert(format!("{item}Page"), page);
    }
    for_each_object(document, &mut |fields| {
        if let Some(Value::String(target)) = fields.get_mut("$ref")
            && let Some(item) = target.strip_prefix(&reference(GENERIC_PAGE))
        {
            *target = reference(&format!("{item}Page"));
        }
    });
}

/// Says of objects without declared properties that they can have any.
pub(super) fn open_free_objects(document: &mut Value) {
    for_each_object(document, &mut |fields| {
        let is_object = fields.get("type").is_some_and(|kind| {
            kind == "object" || kind.as_array().is_some_and(|kinds| kinds.iter().any(|kind| kind == "object"))
        });
        let is_declared =
            ["properties", "additionalProperties", "allOf", "oneOf"].iter().any(|key| fields.contains_key(*key));
        if is_object && !is_declared {
            fields.insert("additionalProperties".to_owned(), json!(true));
        }
    });
}

/// Moves the defaults of fields into their descriptions: generators take a field with a default for one that is always there. An
/// empty value is what is expected of an absent field, and is not described.
pub(super) fn describe_defaults(document: &mut Value) {
    for_each_object(document, &mut |schema| {
        for property in
            schema.get_mut("properties").and_then(Value::as_object_mut).into_iter().flat_map(Map::values_mut)
        {
            let Some(fields) = property.as_object_mut() else { continue };
            let Some(default) = fields.shift_remove("default").filter(is_telling) else { continue };
            let description = fields.get("description").and_then(Value::as_str).unwrap_or_default();
            let description = format!("{description} Default: `{default}`.");
            fields.insert("description".to_owned(), json!(description.trim_start()));
        }
    });
}

/// Whether a default is worth a description.
fn is_telling(default: &Value) -> bool {
    match default {
        Value::Bool(value) => *value,
        Value::Number(number) => number.as_f64() != Some(0.0),
        Value::String(text) => !text.is_empty(),
        Value::Null | Value::Array(_) | Value::Object(_) => false,
    }
}

/// Describes the body of `PATCH path`, a merge patch of what `created` creates: no field is required, and those that creation does
/// not require can be null, which sets their default.
pub(super) fn add_merge_patch(document: &mut Value, path: &str, created: &str) {
    let mut schema = document["components"]["schemas"][created].clone();
    let required = schema.as_object_mut().and_then(|fields| fields.shift_remove("required")).unwrap_or_default();
    let is_required = |name: &String| required.as_array().is_some_and(|names| names.iter().any(|other| other == name));
    for (name, property) in schema["properties"].as_object_mut().into_iter().flatten() {
        if !is_required(name) {
            make_nullable(property);
        }
    }
    let patch_name = format!("{}Patch", created.trim_start_matches("Create"));
    schema["description"] = json!(format!("A merge patch of `{created}`."));
    document["components"]["schemas"][&patch_name] = schema;
    document["paths"][path]["patch"]["requestBody"]["content"]["application/json"]["schema"] =
        json!({"$ref": reference(&patch_name)});
}

fn make_nullable(schema: &mut Value) {
    let has_null =
        |variants: &Value, is_null: fn(&Value) -> bool| variants.as_array().is_some_and(|all| all.iter().any(is_null));
    if has_null(&schema["type"], |kind| kind == "null")
        || has_null(&schema["oneOf"], |variant| variant["type"] == "null")
    {
        return;
    }
    if schema["type"].is_string() && schema.get("enum").is_none() {
        schema["type"] = json!([schema["type"], "null"]);
        return;
    }
    let description = schema.as_object_mut().and_then(|fields| fields.shift_remove("description"));
    *schema = json!({"oneOf": [{"type": "null"}, schema.take()]});
    if let Some(description) = description {
        schema["description"] = description;
    }
}

/// Removes the schemas that no operation refers to, and sorts the others by name.
pub(super) fn prune(document: &mut Value) {
    let mut kept = BTreeSet::new();
    let mut to_visit = vec![];
    for_each_reference(&document["paths"], &mut |reference| to_visit.push(reference.to_owned()));
    let Some(schemas) = of(document) else { return };
    while let Some(reference) = to_visit.pop() {
        let Some(name) = reference.strip_prefix(SCHEMA_PREFIX) else { continue };
        if let Some(schema) = schemas.get(name)
            && kept.insert(name.to_owned())
        {
            for_each_reference(schema, &mut |reference| to_visit.push(reference.to_owned()));
        }
    }
    schemas.retain(|name, _| kept.contains(name));
    schemas.sort_keys();
}
