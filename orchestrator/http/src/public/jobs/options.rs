//! What a new job may ask for.

use axum::{Json, extract::State};
use protocol::JobOptions;

use crate::{
    problem::ApiError,
    public::{PublicApi, request::Caller},
};

/// Returns what a new job may ask for.
///
/// The operator's models, images, tools and limits, and the defaults, which a user's settings may change.
#[utoipa::path(
    get, path = "/api/options", operation_id = "get_job_options", tag = "jobs",
    responses((status = 200, body = JobOptions, description = "The options."))
)]
pub(super) async fn options(State(api): State<PublicApi>, _caller: Caller) -> Result<Json<JobOptions>, ApiError> {
    let ceiling = &api.submitter.ceiling;
    let day = api.submitter.day_limits;
    let with_default = |default: &String, others: &[String]| {
        let others = others.iter().filter(|name| *name != default).cloned();
        std::iter::once(default.clone()).chain(others).collect()
    };
    Ok(Json(JobOptions {
        models: with_default(&ceiling.default_model, &ceiling.models),
        images: with_default(&ceiling.default_image, &ceiling.images),
        tools: ceiling.tools.clone(),
        mcp_servers: ceiling.mcp_servers.clone(),
        plan: ceiling.default_plan,
        limits: ceiling.default_limits,
        max_limits: ceiling.limits,
        day_max_tokens: (day.max_tokens > 0).then_some(day.max_tokens),
        day_max_cost_usd: day.max_dollars(),
    }))
}
