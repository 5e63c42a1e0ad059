//! The OpenAPI document, made of what the endpoints declare, and the page that shows it.
//!
//! Owns the steps from the declarations to the document. A handler documents an error response by status and description only; the
//! problem body is added here.

mod assets;
mod constraints;
mod examples;
mod operations;
mod overview;
mod schemas;
mod streams;
mod unions;

use protocol::{ChatDelta, ChatStatus, ErrorCode, Event, InstanceEvent, Problem};
use serde_json::Value;
use utoipa::OpenApi;

pub(super) use self::assets::router;

/// Schemas that no handler returns as a JSON body.
#[derive(OpenApi)]
#[openapi(components(schemas(Problem, ErrorCode, ChatDelta, ChatStatus, Event, InstanceEvent)))]
struct Base;

/// The complete document.
pub fn document() -> Value {
    let (_, described) = super::described().merge(super::secrets::routes()).split_for_parts();
    let mut merged = Base::openapi();
    merged.merge(described);
    let mut document = serde_json::to_value(merged).unwrap_or_default();
    operations::complete(&mut document);
    schemas::name_pages(&mut document);
    schemas::open_free_objects(&mut document);
    schemas::describe_defaults(&mut document);
    streams::describe(&mut document);
    unions::name_variants(&mut document);
    streams::require_job_ids(&mut document);
    constraints::add(&mut document);
    schemas::add_merge_patch(&mut document, "/api/routines/{id}", "CreateRoutine");
    examples::add(&mut document);
    overview::add(&mut document);
    schemas::prune(&mut document);
    document
}

#[cfg(test)]
mod tests;
