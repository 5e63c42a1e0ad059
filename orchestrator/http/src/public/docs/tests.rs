//! The document as a whole.

use std::collections::BTreeSet;

use serde_json::Map;

use super::*;

fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
    let items = document["paths"].as_object().unwrap().iter();
    items.flat_map(|(path, item)| {
        item.as_object().unwrap().iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
    })
}

fn objects<'v>(value: &'v Value, found: &mut Vec<&'v Map<String, Value>>) {
    match value {
        Value::Object(fields) => {
            found.push(fields);
            fields.values().for_each(|value| objects(value, found));
        }
        Value::Array(items) => items.iter().for_each(|value| objects(value, found)),
        _ => {}
    }
}

#[test]
fn every_reference_resolves() {
    let document = document();
    let mut found = BTreeSet::new();
    schemas::for_each_reference(&document, &mut |reference| {
        found.insert(reference.to_owned());
    });
    let missing: Vec<_> =
        found.iter().filter(|name| document.pointer(name.trim_start_matches('#')).is_none()).collect();
    assert!(found.len() > 100 && missing.is_empty(), "{missing:?} of {found:?}");
}

#[test]
fn operations_are_identified_and_described() {
    let document = document();
    let tags: Vec<_> = document["tags"].as_array().unwrap().iter().map(|tag| &tag["name"]).collect();
    let mut seen = BTreeSet::new();
    for (name, operation) in operations(&document) {
        let id = operation["operationId"].as_str().unwrap();
        assert!(seen.insert(id.to_owned()) && id.contains('_'), "{name}: {id} is not unique, or not verb_noun");
        let summary = operation["summary"].as_str().unwrap();
        assert!((5..=70).contains(&summary.len()) && !summary.contains(". "), "{name}: {summary}");
        assert!(operation["description"].as_str().unwrap().len() > 10, "{name} has no description");
        assert!(tags.contains(&&operation["tags"][0]), "{name}: {}", operation["tags"]);
    }
    assert_eq!(operations(&document).next().unwrap().1["tags"][0], "jobs");
}

#[test]
fn errors_of_json_bodies_are_documented() {
    let document = document();
    let with_body: Vec<_> = operations(&document)
        .filter(|(_, operation)| operation["requestBody"]["content"]["application/json"].is_object())
        .filter(|(_, operation)| operation.get("security").is_none())
        .collect();
    assert!(with_body.len() > 15, "{with_body:?}");
    for (name, operation) in with_body {
        for status in ["400", "401", "403", "413", "415", "421", "422", "500"] {
            assert!(operation["responses"][status]["description"].is_string(), "{name}: {status}");
        }
        let body = &operation["requestBody"];
        assert!(body["content"]["application/json"]["example"].is_object(), "{name} has no example");
    }
}

#[test]
fn every_error_response_is_a_problem() {
    let document = document();
    for (name, operation) in operations(&document).filter(|(name, _)| name != "get /readyz") {
        for (status, response) in operation["responses"].as_object().unwrap() {
            let is_error = status.starts_with(['4', '5']);
            assert_eq!(is_error, response["content"]["application/problem+json"].is_object(), "{name} {status}");
        }
    }
}

#[test]
fn events_are_unions_of_named_variants() {
    let document = document();
    let schemas = &document["components"]["schemas"];
    for (name, kinds) in [
        ("Event", protocol::EventKind::ALL.iter().map(|kind| kind.as_str()).collect::<Vec<_>>()),
        ("InstanceEvent", protocol::InstanceEventKind::ALL.iter().map(|kind| kind.as_str()).collect()),
    ] {
        let mapping = schemas[name]["discriminator"]["mapping"].as_object().unwrap();
        assert_eq!(
            mapping.keys().collect::<BTreeSet<_>>(),
            kinds.iter().map(|kind| (*kind).to_owned()).collect::<BTreeSet<_>>().iter().collect()
        );
        for kind in kinds {
            let variant = document.pointer(mapping[kind].as_str().unwrap().trim_start_matches('#')).unwrap();
            assert_eq!(variant["properties"]["kind"]["const"], kind);
            assert!(
                variant["properties"]["cursor"].is_object() && variant["properties"]["data"].is_object(),
                "{variant}"
            );
            assert!(variant["required"].as_array().unwrap().contains(&"data".into()), "{variant}");
        }
    }
    assert_eq!(schemas["EventPage"]["properties"]["items"]["items"]["$ref"], "#/components/schemas/Event");
    assert_eq!(schemas["JobSummaryPage"]["properties"]["items"]["items"]["$ref"], "#/components/schemas/JobSummary");
    let state = &schemas["StateInstanceEvent"];
    assert!(state["required"].as_array().unwrap().contains(&"job_id".into()), "{state}");
    assert_eq!(
        (&state["description"], &schemas["StateEvent"]["description"]),
        (&"The job changed state.".into(), &"The job changed state.".into())
    );
    assert_eq!(schemas["StateEventData"]["properties"]["to"]["$ref"], "#/components/schemas/JobState");
}

/// The parts of an object are written into one JSON object, where a name can be only once.
#[test]
fn parts_of_an_object_have_different_properties() {
    let document = document();
    let mut found = vec![];
    objects(&document, &mut found);
    let composed: Vec<_> = found.iter().filter_map(|object| object.get("allOf")?.as_array()).collect();
    assert!(composed.len() > 2, "{composed:?}");
    for parts in composed {
        let mut seen = BTreeSet::new();
        for part in parts {
            let target = part["$ref"].as_str().map(|target| document.pointer(target.trim_start_matches('#')).unwrap());
            for name in target.unwrap_or(part)["properties"].as_object().into_iter().flat_map(Map::keys) {
                assert!(seen.insert(name), "{name} is a property of two parts of {parts:?}");
            }
        }
    }
}

#[test]
fn defaults_are_described() {
    let document = document();
    let mut found = vec![];
    objects(&document, &mut found);
    let with_default = found.iter().filter_map(|object| object.get("properties")?.as_object());
    let with_default: Vec<_> =
        with_default.flat_map(Map::values).filter(|field| field.get("default").is_some()).collect();
    assert_eq!(with_default, Vec::<&Value>::new());
    let cooldown = &document["components"]["schemas"]["Guardrails"]["properties"]["cooldown_seconds"]["description"];
    assert!(cooldown.as_str().unwrap().ends_with(" Default: `300`."), "{cooldown}");
}

#[test]
fn bodies_are_optional_or_binary_where_they_should_be() {
    let document = document();
    let body = |path: &str, method: &str| document["paths"][path][method]["requestBody"].clone();
    let cancel = body("/api/jobs/{id}/cancel", "post");
    assert_eq!(cancel["required"], false);
    assert_eq!(cancel["content"]["application/json"]["schema"]["$ref"], "#/components/schemas/CancelRequest");
    for (path, method) in [("/api/jobs/{id}/archive", "put"), ("/api/jobs/{id}/files/{path}", "put")] {
        let binary =
            serde_json::json!({"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}});
        assert_eq!(body(path, method)["content"], binary, "{path}");
    }
    let download = &document["paths"]["/api/jobs/{id}/archive"]["get"]["responses"]["200"]["content"];
    assert_eq!(download["application/octet-stream"]["schema"]["format"], "binary");
}

#[test]
fn generators_get_what_they_need() {
    let document = document();
    let schemas = document["components"]["schemas"].as_object().unwrap();
    let mut referred = BTreeSet::new();
    schemas::for_each_reference(&document, &mut |reference| {
        referred.insert(reference.trim_start_matches(schemas::SCHEMA_PREFIX).to_owned());
    });
    assert_eq!(schemas.keys().filter(|name| !referred.contains(*name)).collect::<Vec<_>>(), Vec::<&String>::new());
    assert_eq!(schemas["CreateJob"]["properties"]["metadata"]["additionalProperties"], true);
    let patch = &schemas["RoutinePatch"];
    assert!(patch.get("required").is_none() && patch["properties"]["name"].is_object(), "{patch}");
    let stream = &document["paths"]["/api/events"]["get"]["responses"]["200"]["content"]["text/event-stream"]["schema"];
    assert_eq!(stream["contentSchema"]["anyOf"][0]["$ref"], "#/components/schemas/InstanceEvent");
}
