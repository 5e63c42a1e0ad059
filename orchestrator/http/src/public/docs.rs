//! The OpenAPI document, made of what the endpoints declare, and the page that shows it.
//!
//! Owns the steps from the declarations to the document. A handler documents an error response by status and description only; the
//! problem body is added here.

mod assets;
mod constraints;
mod operations;
mod schemas;
mod streams;
mod unions;

use protocol::{
    ChatDelta, ChatStatus, ErrorCode, Event, InstanceEvent, JobStreamPosition, LiveJobEvent, Problem, StreamPosition,
};
use serde_json::Value;
use utoipa::{
    Modify, OpenApi,
    openapi::security::{HttpAuthScheme, HttpBuilder, SecurityScheme},
};

pub(super) use self::assets::router;

const DESCRIPTION: &str = "Gantry runs AI-agent jobs in sandboxed containers.

Send a token with each request: `Authorization: Bearer TOKEN`. `gantry token create --user NAME --role user` creates one where the \
server runs.

Errors are problem details (RFC 9457) with a stable `code`. Lists answer `items` and `next_cursor`, which is passed as `cursor` to \
get the next page. Unknown fields and parameters are refused. Features that this version does not have are refused with 422 \
`not_available`.";

/// What is not about a single operation: the tags in the order in which they are shown, and the schemas that no handler returns as a
/// JSON body.
#[derive(OpenApi)]
#[openapi(
    info(title = "Gantry", description = DESCRIPTION, contact(name = "Gantry")),
    servers((url = "/", description = "The server that this document comes from.")),
    security(("bearer" = [])),
    modifiers(&Bearer),
    tags(
        (name = "jobs", description = "Create jobs, follow their events, send prompts to them and cancel them."),
        (name = "files", description = "The files in the workspaces of jobs."),
        (name = "events", description = "The events of all jobs, routines, chats, gates and notifications of the caller."),
        (name = "chat", description = "Conversations with the agent."),
        (name = "gates", description = "Tool calls that wait for the approval of a person."),
        (name = "routines", description = "Work that is started by a schedule, an event or a webhook."),
        (name = "memory", description = "Documents that agents and their users share."),
        (name = "notifications", description = "Messages of routines and jobs to their user."),
        (name = "tools", description = "The tools of agents, and who may use them."),
        (name = "secrets", description = "Secrets of users, such as tokens for other services."),
        (name = "session", description = "Sessions of browsers, and who the caller is."),
        (name = "settings", description = "The settings of the caller."),
        (name = "operation", description = "Usage, audit log and metrics."),
        (name = "health", description = "The state of the server."),
    ),
    components(schemas(
        Problem, ErrorCode, ChatDelta, ChatStatus, Event, InstanceEvent, LiveJobEvent, JobStreamPosition, StreamPosition
    )),
)]
struct Base;

struct Bearer;

impl Modify for Bearer {
    fn modify(&self, document: &mut utoipa::openapi::OpenApi) {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT");
        let bearer = bearer.description(Some("A token of `gantry token create`.")).build();
        document.components.get_or_insert_default().add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
}

/// The complete document.
pub fn document() -> Value {
    let uncompressed = super::account::secrets::routes().merge(super::session::routes(true));
    let (_, described) = super::described().merge(uncompressed).split_for_parts();
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
    operations::sort_by_tag(&mut document);
    schemas::prune(&mut document);
    document
}

#[cfg(test)]
mod tests;
