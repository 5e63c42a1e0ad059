//! The definitions of Gantry's tools, which every provider takes as they are.

use serde_json::Value;

use crate::{answer, double::Double, families::family, turn};

/// Words of JSON Schema that some provider refuses.
const REFUSED: [&str; 11] =
    ["anyOf", "oneOf", "allOf", "not", "if", "$ref", "$defs", "const", "pattern", "format", "patternProperties"];
/// llama.cpp makes a grammar of it (ggml-org/llama.cpp#25746).
const MAX_LENGTH: u64 = 1_024;

#[tokio::test]
async fn definitions_of_our_tools_are_within_what_every_provider_takes() {
    let double = Double::start(family("openai, chat")).await;
    let world = double.world().set("GANTRY_EGRESS_CEILING", "api.example.org").build().await;
    let ada = world.user("ada");
    assert_eq!(answer(&turn(&ada, "hello").await), "Hello.");
    let request = double.kept().requests.last().cloned().unwrap();
    let offered = request["tools"].as_array().unwrap().iter().map(|tool| tool["function"].clone());
    let listed = ada.get("/api/tools").await.expect(200).body["items"].as_array().cloned().unwrap();
    let mut refused = Vec::new();
    for tool in offered.chain(listed) {
        let (name, parameters) = (tool["name"].as_str().unwrap(), &tool["parameters"]);
        for key in ["type", "properties", "required"] {
            if parameters.get(key).is_none() {
                refused.push(format!("{name}: no {key}"));
            }
        }
        check(name, parameters, &mut refused);
    }
    assert_eq!(refused, [""; 0]);
    world.finish().await;
}

/// Adds what is wrong with a schema: it has one type, and what it consists of.
fn check(place: &str, schema: &Value, refused: &mut Vec<String>) {
    let Some(kind) = schema["type"].as_str() else {
        refused.push(format!("{place}: {schema} has no single type"));
        return;
    };
    refused.extend(REFUSED.iter().filter(|word| schema.get(**word).is_some()).map(|word| format!("{place}: {word}")));
    if schema["maxLength"].as_u64() > Some(MAX_LENGTH) {
        refused.push(format!("{place}: its length"));
    }
    let values = schema["enum"].as_array().into_iter().flatten();
    refused.extend(values.filter(|value| !value.is_string()).map(|value| format!("{place}: the value {value}")));
    for (name, property) in schema["properties"].as_object().into_iter().flatten() {
        let place = format!("{place}.{name}");
        if !name.chars().all(|c| c.is_ascii_alphanumeric() || "_.-".contains(c)) {
            refused.push(format!("{place}: its name"));
        }
        check(&place, property, refused);
    }
    if kind == "array" {
        check(&format!("{place}[]"), &schema["items"], refused);
    }
    if schema["additionalProperties"].is_object() {
        check(&format!("{place}.*"), &schema["additionalProperties"], refused);
    }
}
