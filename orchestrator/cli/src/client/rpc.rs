//! The client's side of JSON-RPC over `POST /api/rpc`.

use protocol::{ErrorCode, JSON_RPC_VERSION, RpcError, RpcRequest, RpcResponse};
use serde::{Serialize, de::DeserializeOwned};

use super::Client;
use crate::{
    exit::{CliError, Exit},
    output::one_line,
};

const PATH: &str = "/api/rpc";

/// Calls a method.
pub(crate) async fn call<T: DeserializeOwned>(
    client: &Client,
    method: &str,
    params: &impl Serialize,
) -> Result<T, CliError> {
    let invalid = |error: serde_json::Error| CliError::failed("cannot write or read JSON", error);
    let request = RpcRequest {
        jsonrpc: JSON_RPC_VERSION.to_owned(),
        id: Some(1.into()),
        method: method.to_owned(),
        params: Some(serde_json::to_value(params).map_err(invalid)?),
    };
    let response: RpcResponse = client.post(PATH, &request, None).await?;
    match response.error {
        Some(error) => Err(CliError::Call(Box::new(error))),
        None => serde_json::from_value(response.result.unwrap_or_default()).map_err(invalid),
    }
}

/// An error in one line, without control characters.
pub(crate) fn describe(error: &RpcError) -> String {
    let code = error.data.as_ref().map(|data| format!("{}: ", data.code)).unwrap_or_default();
    one_line(&format!("{code}{}", error.message))
}

/// The exit code that the same error has when it comes from the REST API.
pub(crate) fn exit_of(error: &RpcError) -> Exit {
    match (error.code, &error.data) {
        (RpcError::INVALID_REQUEST | RpcError::METHOD_NOT_FOUND | RpcError::INVALID_PARAMS, _) => Exit::Usage,
        (_, Some(data)) => Exit::of_status(ErrorCode::parse(&data.code).status()),
        (_, None) => Exit::Unreachable,
    }
}
