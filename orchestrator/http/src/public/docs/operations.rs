//! What all operations have in common: authentication, error responses, and the form of parameters, bodies and summaries.
//!
//! Why not at the handlers: what follows from a path, a body or a parameter's name would be repeated at 79 of them and forgotten at one.
//! It runs before `schemas::prune`, which keeps the schema of problems only if a response refers to it. `complete_body` relies on utoipa
//! writing an optional body as `oneOf` of the reference and null. `errors_of_json_bodies_are_documented`,
//! `every_error_response_is_a_problem` and `bodies_are_optional_or_binary_where_they_should_be` in `docs/tests.rs` fail otherwise.

use serde_json::{Map, Value, json};

use super::schemas::reference;
use domain::request::MAX_PATH_BYTES;

const JSON: &str = "application/json";
const PROBLEM: &str = "application/problem+json";
const STREAM: &str = "text/event-stream";
const BINARY: &str = "application/octet-stream";

/// Calls `visit` with the path and each operation.
pub(super) fn for_each(document: &mut Value, mut visit: impl FnMut(&str, &mut Map<String, Value>)) {
    for (path, item) in document["paths"].as_object_mut().into_iter().flatten() {
        for operation in item.as_object_mut().into_iter().flat_map(Map::values_mut) {
            if let Some(operation) = operation.as_object_mut() {
                visit(path, operation);
            }
        }
    }
}

pub(super) fn complete(document: &mut Value) {
    name_paths(document);
    for_each(document, |path, operation| {
        split_summary(operation);
        complete_parameters(path, operation);
        complete_body(operation);
        for (status, description) in common_errors(path, operation) {
            let responses = &mut operation["responses"];
            if responses.get(status).is_none() {
                responses[status] = json!({"description": description});
            }
        }
        for (status, response) in operation["responses"].as_object_mut().into_iter().flatten() {
            complete_response(status, response);
        }
        if let Some(responses) = operation["responses"].as_object_mut() {
            responses.sort_keys();
        }
    });
}

/// The router's `{*path}` is an ordinary parameter in OpenAPI.
fn name_paths(document: &mut Value) {
    let paths = document["paths"].as_object_mut().map(std::mem::take).unwrap_or_default();
    document["paths"] = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
}

/// A summary is one sentence without its full stop; what follows belongs to the description.
fn split_summary(operation: &mut Map<String, Value>) {
    let summary = operation.get("summary").and_then(Value::as_str).unwrap_or_default().replace('\n', " ");
    let (first, rest) = summary.split_once(". ").unwrap_or((&summary, ""));
    let description = operation.get("description").and_then(Value::as_str).unwrap_or_default();
    let description = [rest, description].into_iter().filter(|text| !text.is_empty()).collect::<Vec<_>>().join("\n\n");
    operation.insert("summary".to_owned(), json!(first.trim_end_matches('.')));
    operation.insert("description".to_owned(), json!(description));
}

/// Operations are listed in the order of their tags.
pub(super) fn sort_by_tag(document: &mut Value) {
    let Some(paths) = document["paths"].as_object_mut().map(std::mem::take) else { return };
    let tags = document["tags"].as_array().cloned().unwrap_or_default();
    let mut paths: Vec<(String, Value)> = paths.into_iter().collect();
    paths.sort_by_cached_key(|(path, item)| {
        let operation = item.as_object().and_then(|methods| methods.values().next());
        let position = operation.and_then(|operation| tags.iter().position(|tag| tag["name"] == operation["tags"][0]));
        (position, path.clone())
    });
    document["paths"] = paths.into_iter().collect();
}

fn complete_parameters(path: &str, operation: &mut Map<String, Value>) {
    for parameter in operation.get_mut("parameters").and_then(Value::as_array_mut).into_iter().flatten() {
        let text = |key: &str| parameter[key].as_str().unwrap_or_default();
        let schema = match (text("in"), text("name")) {
            ("header", "Idempotency-Key") => {
                json!({"type": "string", "minLength": 1, "maxLength": 255, "pattern": "^[!-~]+$"})
            }
            ("header", "Last-Event-ID") => json!({"type": "string", "pattern": "^[0-9]+$"}),
            // A header is sent or not; it is never null.
            ("header", _) => json!({"type": "string"}),
            ("query", "cursor") => json!({"type": "string", "pattern": "^[A-Za-z0-9_-]*$"}),
            ("query", "q") => json!({"type": "string", "maxLength": 1_000}),
            ("query", "path") if parameter["required"] == true => {
                json!({"type": "string", "minLength": 1, "maxLength": MAX_PATH_BYTES})
            }
            ("query", "id") => json!({"type": "string", "minLength": 4, "pattern": "^[0-9A-Fa-f-]+$"}),
            // A thread is also named by its key.
            ("path", "id") if !path.starts_with("/api/chat/threads") => json!({"type": "string", "format": "uuid"}),
            _ => continue,
        };
        parameter["schema"] = schema;
    }
}

/// An optional body is left out; it is never null. The body of an upload is binary.
fn complete_body(operation: &mut Map<String, Value>) {
    let Some(body) = operation.get_mut("requestBody") else { return };
    if let Some(schema) =
        body.pointer("/content/application~1json/schema/oneOf/0").filter(|one| one.get("$ref").is_some())
    {
        let schema = schema.clone();
        body["content"][JSON]["schema"] = schema;
        body["required"] = json!(false);
    }
    set_binary(body);
}

fn set_binary(body: &mut Value) {
    if let Some(content) = body.get_mut("content").and_then(|content| content.get_mut(BINARY)) {
        content["schema"] = json!({"type": "string", "format": "binary"});
    }
}

/// The errors that an operation can have because of its path, parameters, body and security.
fn common_errors(path: &str, operation: &Map<String, Value>) -> Vec<(&'static str, &'static str)> {
    let mut errors = vec![("421", "Host not allowed."), ("500", "Internal server error; the log has the details.")];
    // `security(())` marks a public endpoint.
    let is_public = operation.get("security").is_some();
    if !is_public {
        errors.extend([("401", "Missing or invalid token."), ("403", "Insufficient role.")]);
    }
    if path.contains('{') {
        errors.push(("404", "Not found, or owned by another user."));
    }
    let mut parameters = operation.get("parameters").and_then(Value::as_array).into_iter().flatten();
    let has_query = parameters.any(|parameter| parameter["in"] == "query");
    let has_json = operation.get("requestBody").is_some_and(|body| body["content"].get(JSON).is_some());
    if has_query || has_json {
        errors.push(("422", "A parameter or field is invalid."));
    }
    if has_json {
        errors.extend([("400", "Malformed JSON."), ("413", "Body too large."), ("415", "Content-Type is not JSON.")]);
    }
    errors
}

/// Adds the schema of problems to errors, and puts JSON before other content.
fn complete_response(status: &str, response: &mut Value) {
    if status.starts_with(['4', '5']) && response.get("content").is_none() {
        response["content"] = json!({PROBLEM: {"schema": {"$ref": reference("Problem")}}});
    }
    set_binary(response);
    let Some(content) = response.get_mut("content").and_then(Value::as_object_mut) else { return };
    if let Some(stream) = content.remove(STREAM) {
        content.insert(STREAM.to_owned(), stream);
    }
}
