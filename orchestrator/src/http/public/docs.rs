//! The OpenAPI document and the page that shows it, from embedded assets.
//!
//! Owns what all operations have in common: authentication and error responses. A handler documents an error response by status and
//! description only; the problem body is added here.

use axum::{
    Router,
    http::{HeaderValue, header},
    middleware,
};
use protocol::{ChatDelta, ChatEventKind, ChatStatus, ErrorCode, Problem};
use utoipa::{
    OpenApi,
    openapi::{
        ContentBuilder, InfoBuilder, OpenApi as Document, Ref, RefOr, Response, ResponseBuilder,
        path::{Operation, Parameter, ParameterIn},
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_swagger_ui::SwaggerUi;

#[derive(OpenApi)]
#[openapi(components(schemas(Problem, ErrorCode, ChatEventKind, ChatDelta, ChatStatus)))]
struct Base;

/// The complete document.
pub fn document() -> Document {
    finish(super::described().split_for_parts().1)
}

/// Adds what all operations have in common: authentication and error responses.
pub(super) fn finish(described: Document) -> Document {
    let mut document = Base::openapi();
    document.merge(described);
    document.info = InfoBuilder::new()
        .title("Gantry")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Runs AI-agent jobs in sandboxed containers. Errors are RFC 9457 problem details with a stable `code`.",
        ))
        .build();
    if let Some(components) = document.components.as_mut() {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
    document.security = Some(vec![SecurityRequirement::new("bearer", Vec::<String>::new())]);
    // The router's `{*path}` is an ordinary parameter in OpenAPI.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for (path, item) in &mut document.paths.paths {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            for (status, description) in common_errors(path, operation) {
                let responses = &mut operation.responses.responses;
                let add = || RefOr::T(ResponseBuilder::new().description(description).build());
                responses.entry(status.to_owned()).or_insert_with(add);
            }
            for (status, response) in &mut operation.responses.responses {
                add_problem_body(status, response);
            }
        }
    }
    document
}

/// The errors that an operation can have because of its path, parameters, body and security.
fn common_errors(path: &str, operation: &Operation) -> Vec<(&'static str, &'static str)> {
    let mut errors = vec![("421", "Host not allowed."), ("500", "Internal server error; the log has the details.")];
    // `security(())` marks a public endpoint.
    let is_public =
        operation.security.as_ref().is_some_and(|schemes| schemes.contains(&SecurityRequirement::default()));
    if !is_public {
        errors.extend([("401", "Missing or invalid token."), ("403", "Insufficient role.")]);
    }
    if path.contains('{') {
        errors.push(("404", "Not found, or owned by another user."));
    }
    let is_query = |one: &RefOr<Parameter>| matches!(one, RefOr::T(one) if one.parameter_in == ParameterIn::Query);
    let has_query = operation.parameters.iter().flatten().any(is_query);
    let has_json =
        matches!(&operation.request_body, Some(RefOr::T(body)) if body.content.contains_key("application/json"));
    if has_query || has_json {
        errors.push(("422", "A parameter or field is invalid."));
    }
    if has_json {
        errors.extend([("400", "Malformed JSON."), ("413", "Body too large."), ("415", "Content-Type is not JSON.")]);
    }
    errors
}

/// Adds the problem schema to an error response without content.
fn add_problem_body(status: &str, response: &mut RefOr<Response>) {
    let RefOr::T(response) = response else { return };
    if status.starts_with(['4', '5']) && response.content.is_empty() {
        let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
        response.content.insert("application/problem+json".to_owned(), RefOr::T(content));
    }
}

/// `/api/openapi.json` and `/api/docs`.
pub(super) fn router(document: Document) -> Router {
    let router: Router = SwaggerUi::new("/api/docs").url("/api/openapi.json", document).into();
    router.layer(middleware::map_response(set_page_policy))
}

/// The page may load only its own scripts, connect only to this server, and not be framed.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

async fn set_page_policy(mut response: axum::response::Response) -> axum::response::Response {
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, PAGE_POLICY);
    response
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use serde_json::Value;

    use super::*;

    fn references(value: &Value, found: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => {
                found.extend(fields.get("$ref").and_then(Value::as_str).map(str::to_owned));
                fields.values().for_each(|value| references(value, found));
            }
            Value::Array(items) => items.iter().for_each(|value| references(value, found)),
            _ => {}
        }
    }

    fn operations(document: &Value) -> impl Iterator<Item = (String, &Value)> {
        let items = document["paths"].as_object().unwrap().iter();
        items.flat_map(|(path, item)| {
            item.as_object().unwrap().iter().map(move |(method, operation)| (format!("{method} {path}"), operation))
        })
    }

    #[test]
    fn every_reference_resolves() {
        let document = serde_json::to_value(document()).unwrap();
        let mut found = BTreeSet::new();
        references(&document, &mut found);
        let missing: Vec<_> =
            found.iter().filter(|name| document.pointer(name.trim_start_matches('#')).is_none()).collect();
        assert!(found.len() > 10 && missing.is_empty(), "{missing:?} of {found:?}");
    }

    #[test]
    fn operation_ids_are_unique() {
        let document = serde_json::to_value(document()).unwrap();
        let mut seen = BTreeSet::new();
        for (name, operation) in operations(&document) {
            let id = operation["operationId"].as_str().unwrap();
            assert!(seen.insert(id.to_owned()) && id.contains('_'), "{name}: {id} is not unique, or not verb_noun");
        }
    }

    #[test]
    fn errors_of_json_bodies_are_documented() {
        let document = serde_json::to_value(document()).unwrap();
        let with_body: Vec<_> = operations(&document)
            .filter(|(_, operation)| operation["requestBody"]["content"]["application/json"].is_object())
            .collect();
        assert!(with_body.len() > 4, "{with_body:?}");
        for (name, operation) in with_body {
            for status in ["400", "401", "403", "413", "415", "421", "422", "500"] {
                assert!(operation["responses"][status]["description"].is_string(), "{name}: {status}");
            }
        }
    }

    #[test]
    fn every_error_response_is_a_problem() {
        let document = serde_json::to_value(document()).unwrap();
        for (name, operation) in operations(&document).filter(|(name, _)| name != "get /readyz") {
            for (status, response) in operation["responses"].as_object().unwrap() {
                let is_error = status.starts_with(['4', '5']);
                assert_eq!(is_error, response["content"]["application/problem+json"].is_object(), "{name} {status}");
            }
        }
    }
}
