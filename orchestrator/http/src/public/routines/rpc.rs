//! `POST /api/rpc`: JSON-RPC 2.0 over the routines of the caller.
//!
//! Owns the envelope. Errors of a call are answered with HTTP 200; only authentication and limits of the request are not.

mod cron;
mod error;
mod switches;

use axum::{
    Json,
    extract::State,
    http::StatusCode,
    response::{IntoResponse, Response},
};
use protocol::{ErrorCode, FieldError, JSON_RPC_VERSION, RpcError, RpcRequest, RpcResponse};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::{Map, Value};
use utoipa_axum::{router::OpenApiRouter, routes};

use domain::field_errors::{self, field_error};

use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{ApiJson, RpcCaller},
    },
};

pub(super) fn routes() -> OpenApiRouter<PublicApi> {
    OpenApiRouter::new().routes(routes!(call))
}

/// Calls a method by JSON-RPC 2.0.
///
/// Methods: `cron.list`, `cron.status`, `cron.add`, `cron.update`, `cron.remove`, `cron.run`, `cron.runs`, `wake`; for admins
/// `cron.set_enabled` and `set_heartbeats`. A call that fails is answered with `error`. Batches are refused.
#[utoipa::path(
    post, path = "/api/rpc", operation_id = "call_rpc", tag = "routines",
    request_body(content = RpcRequest, example = json!({"jsonrpc": "2.0", "id": 1, "method": "cron.list"})),
    responses(
        (status = 200, body = RpcResponse, description = "The result of the call, or why it failed."),
        (status = 204, description = "The call had no `id`, so it has no answer."),
    )
)]
async fn call(
    State(api): State<PublicApi>,
    caller: RpcCaller,
    body: Result<ApiJson<Value>, ApiError>,
) -> Result<Response, ApiError> {
    let request = match body {
        Ok(body) => body.value,
        Err(error) if matches!(error.code(), ErrorCode::BadRequest | ErrorCode::Invalid) => {
            return Ok(answer(Value::Null, Err(invalid_request(error.detail()))));
        }
        Err(error) => return Err(error),
    };
    let id = request.get("id").filter(|id| is_id(id)).cloned().unwrap_or_default();
    let request = match read(request) {
        Ok(request) => request,
        Err(wrong) => return Ok(answer(id, Err(invalid_request(&wrong)))),
    };
    let result = run(&api, caller, &request.method, request.params).await;
    Ok(match request.id {
        Some(id) => answer(id, result),
        // A notification: the caller wants no answer.
        None => StatusCode::NO_CONTENT.into_response(),
    })
}

/// The call, or what is wrong with it.
fn read(value: Value) -> Result<RpcRequest, String> {
    if value.is_array() {
        return Err("batches are not supported: send one call in each request".to_owned());
    }
    if !value.is_object() {
        return Err("a call is an object".to_owned());
    }
    let request: RpcRequest = serde_json::from_value(value).map_err(|error| {
        let FieldError { field, message } = field_error(".", &error.to_string(), "call");
        format!("{field}: {message}")
    })?;
    if request.jsonrpc != JSON_RPC_VERSION {
        return Err("jsonrpc must be \"2.0\"".to_owned());
    }
    if !request.id.as_ref().is_none_or(is_id) {
        return Err("id must be a string, a number or null".to_owned());
    }
    Ok(request)
}

fn is_id(id: &Value) -> bool {
    id.is_string() || id.is_number() || id.is_null()
}

fn invalid_request(message: &str) -> RpcError {
    RpcError { code: RpcError::INVALID_REQUEST, message: message.to_owned(), data: None }
}

async fn run(api: &PublicApi, caller: RpcCaller, method: &str, params: Option<Value>) -> Result<Value, RpcError> {
    let params = params.unwrap_or_else(|| Value::Object(Map::new()));
    Ok(match method {
        "cron.list" => cron::list(api, &caller, read_params(&params)?).await?,
        "cron.status" => cron::status(api, &caller, read_params(&params)?).await?,
        "cron.add" => cron::add(api, caller.writer("routine.create")?, params).await?,
        "cron.update" => cron::update(api, caller.writer("routine.update")?, read_params(&params)?).await?,
        "cron.remove" => cron::remove(api, caller.writer("routine.delete")?, read_params(&params)?).await?,
        "cron.run" => cron::run(api, caller.writer("routine.trigger")?, read_params(&params)?).await?,
        "cron.runs" => cron::runs(api, &caller, read_params(&params)?).await?,
        "cron.set_enabled" => switches::cron(api, &caller.admin("automation.cron")?, read_params(&params)?).await?,
        "set_heartbeats" => {
            switches::heartbeats(api, &caller.admin("automation.heartbeats")?, read_params(&params)?).await?
        }
        "wake" => switches::wake(api, &caller.writer("session.wake")?, read_params(&params)?).await?,
        _ => {
            let message = "method not found".to_owned();
            return Err(RpcError { code: RpcError::METHOD_NOT_FOUND, message, data: None });
        }
    })
}

/// The parameters of a method: an object.
fn read_params<T: DeserializeOwned>(params: &Value) -> Result<T, ApiError> {
    if !params.is_object() {
        return Err(ApiError::field("params", "must be an object"));
    }
    Ok(field_errors::read(params, "params")?)
}

/// A result as JSON.
fn to_result(result: &impl Serialize) -> Result<Value, ApiError> {
    serde_json::to_value(result).map_err(ApiError::internal)
}

fn answer(id: Value, result: Result<Value, RpcError>) -> Response {
    let (result, error) = match result {
        Ok(result) => (Some(result), None),
        Err(error) => (None, Some(error)),
    };
    Json(RpcResponse { jsonrpc: JSON_RPC_VERSION.to_owned(), id, result, error }).into_response()
}
