//! The OpenAPI document and the page that shows it, from embedded assets.

use axum::{
    Router,
    http::{HeaderValue, header},
    middleware,
    response::Response,
};
use protocol::{ErrorCode, Problem};
use utoipa::{
    OpenApi,
    openapi::{
        ContentBuilder, InfoBuilder, OpenApi as Document, Ref, RefOr, ResponseBuilder,
        path::Operation,
        security::{HttpAuthScheme, HttpBuilder, SecurityRequirement, SecurityScheme},
    },
};
use utoipa_swagger_ui::SwaggerUi;

#[derive(OpenApi)]
#[openapi(components(schemas(Problem, ErrorCode)))]
struct Base;

/// The whole document.
pub fn document() -> Document {
    finish(super::described().split_for_parts().1)
}

/// Adds what is the same everywhere: who may call, and how any call may fail.
pub(super) fn finish(described: Document) -> Document {
    let mut document = Base::openapi();
    document.merge(described);
    document.info = InfoBuilder::new()
        .title("Gantry")
        .version(env!("CARGO_PKG_VERSION"))
        .description(Some(
            "Runs AI-agent jobs in locked-down containers. Errors are RFC 9457 problems with a stable `code`.",
        ))
        .build();
    if let Some(components) = document.components.as_mut() {
        let bearer = HttpBuilder::new().scheme(HttpAuthScheme::Bearer).bearer_format("JWT").build();
        components.add_security_scheme("bearer", SecurityScheme::Http(bearer));
    }
    document.security = Some(vec![SecurityRequirement::new("bearer", Vec::<String>::new())]);
    // A path's tail is `{*path}` to the router and a parameter like any other to the document.
    let paths = std::mem::take(&mut document.paths.paths);
    document.paths.paths = paths.into_iter().map(|(path, item)| (path.replace("{*", "{"), item)).collect();
    for item in document.paths.paths.values_mut() {
        let operations = [&mut item.get, &mut item.post, &mut item.put, &mut item.delete, &mut item.patch];
        for operation in operations.into_iter().flatten() {
            add_failures(operation);
        }
    }
    document
}

fn add_failures(operation: &mut Operation) {
    // An endpoint that says `security(())` is open to everyone.
    let open = operation
        .security
        .as_ref()
        .is_some_and(|needed| needed.iter().any(|one| *one == SecurityRequirement::default()));
    let mut add = |status: &str, description: &str| {
        operation.responses.responses.entry(status.to_owned()).or_insert_with(|| problem(description));
    };
    if !open {
        add("401", "No token, or one that is not good.");
        add("403", "The role does not allow it.");
    }
    add("421", "The Host is not one of this server's.");
    add("500", "Internal error; the log has it under the request id.");
}

fn problem(description: &str) -> RefOr<utoipa::openapi::Response> {
    let content = ContentBuilder::new().schema(Some(Ref::from_schema_name("Problem"))).build();
    RefOr::T(ResponseBuilder::new().description(description).content("application/problem+json", content).build())
}

/// `/api/openapi.json` and `/api/docs`.
pub(super) fn router(document: Document) -> Router {
    let router: Router = SwaggerUi::new("/api/docs").url("/api/openapi.json", document).into();
    router.layer(middleware::map_response(guarded))
}

/// The page runs its own scripts and no others, asks nobody but this server, and stands in no frame.
const PAGE_POLICY: HeaderValue = HeaderValue::from_static(
    "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
);

async fn guarded(mut response: Response) -> Response {
    response.headers_mut().insert(header::CONTENT_SECURITY_POLICY, PAGE_POLICY);
    response
}
