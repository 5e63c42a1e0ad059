//! `/api/jobs`: the endpoints of jobs and of their files. Contents and routes.

mod archive;
mod changes;
mod control;
pub(super) mod create;
mod events;
mod file_content;
mod file_path;
pub(super) mod files;
mod histogram;
mod model_request;
mod options;
mod read;
mod receive;
mod records;

use axum::extract::DefaultBodyLimit;
use utoipa_axum::{router::OpenApiRouter, routes};

use super::{PublicApi, request::audited};

/// Maximum body of a new job: a prompt and inline files as base64. Larger files are uploaded as an archive.
const MAX_CREATE_BODY_BYTES: usize = 24 * 1024 * 1024;

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    let create = audited("job.create", routes!(create::create)).layer(DefaultBodyLimit::max(MAX_CREATE_BODY_BYTES));
    OpenApiRouter::new()
        .routes(routes!(read::list))
        .merge(create)
        .routes(routes!(read::summary))
        .routes(routes!(histogram::histogram))
        .routes(routes!(read::get))
        .merge(audited("job.cancel", routes!(control::cancel)))
        .merge(audited("job.delete", routes!(control::delete)))
        .merge(audited("job.start", routes!(control::start)))
        .merge(audited("job.prompt", routes!(control::prompt)))
        .merge(audited("job.restart", routes!(create::restart)))
        .merge(audited("job.accept", routes!(control::accept)))
        .merge(audited("job.reject", routes!(control::reject)))
        .routes(routes!(events::events))
        .routes(routes!(events::event))
        .routes(routes!(files::list))
        .routes(routes!(file_content::read))
        .routes(routes!(changes::changes))
        .merge(audited("files.write", routes!(files::put)))
        .routes(routes!(archive::pack))
        .merge(audited("files.write", routes!(archive::unpack)))
        .routes(routes!(records::actions))
        .routes(routes!(records::llm_calls))
        .routes(routes!(records::egress))
        .routes(routes!(model_request::get))
        .routes(routes!(records::logs))
        .routes(routes!(records::prompts))
        .routes(routes!(options::options))
}
