//! Calls over `POST /api/rpc`: JSON-RPC 2.0. The methods are in `routine/cron`.

use serde::{Deserialize, Serialize};
use serde_json::Value;

/// The version of JSON-RPC.
pub const JSON_RPC_VERSION: &str = "2.0";

/// A call.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct RpcRequest {
    /// `2.0`.
    pub jsonrpc: String,
    /// A string, a number or null, which the answer repeats. A call without one is a notification and has no answer.
    #[serde(default, skip_serializing_if = "Option::is_none", deserialize_with = "present")]
    #[cfg_attr(feature = "openapi", schema(schema_with = call_id_schema))]
    pub id: Option<Value>,
    /// The name of the method, such as `cron.list`.
    pub method: String,
    /// An object.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Object))]
    pub params: Option<Value>,
}

/// JSON-RPC allows three types for the id of a call; `Value` alone would be described as any JSON.
#[cfg(feature = "openapi")]
fn call_id_schema() -> utoipa::openapi::schema::Object {
    use utoipa::openapi::schema::{ObjectBuilder, SchemaType, Type};
    ObjectBuilder::new().schema_type(SchemaType::from_iter([Type::String, Type::Number, Type::Null])).build()
}

/// A null that is given differs from a field that is left out.
fn present<'de, D: serde::Deserializer<'de>>(source: D) -> Result<Option<Value>, D::Error> {
    Value::deserialize(source).map(Some)
}

/// The answer to a call: `result` or `error`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RpcResponse {
    /// `2.0`.
    pub jsonrpc: String,
    /// The id of the call; null if it could not be read.
    #[cfg_attr(feature = "openapi", schema(schema_with = call_id_schema, required))]
    pub id: Value,
    /// What the method returns.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    #[cfg_attr(feature = "openapi", schema(value_type = Value))]
    pub result: Option<Value>,
    /// Why it failed.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub error: Option<RpcError>,
}

/// Why a call failed.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RpcError {
    /// −32600, −32601 or −32602 as JSON-RPC defines them, else −32000.
    pub code: i32,
    /// What happened, in one sentence.
    pub message: String,
    /// The stable name of the error.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub data: Option<RpcErrorData>,
}

/// The stable name of an error.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
pub struct RpcErrorData {
    /// The code that the same error has in a problem of the REST API.
    pub code: String,
    /// The field that it is about.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub field: Option<String>,
}

impl RpcError {
    /// The call is not a request of JSON-RPC.
    pub const INVALID_REQUEST: i32 = -32_600;
    /// There is no such method.
    pub const METHOD_NOT_FOUND: i32 = -32_601;
    /// The parameters are invalid.
    pub const INVALID_PARAMS: i32 = -32_602;
    /// Any other error; `data.code` says which.
    pub const SERVER_ERROR: i32 = -32_000;
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_notification_differs_from_a_call_with_the_id_null() {
        let call = |text| serde_json::from_str::<RpcRequest>(text).unwrap().id;
        assert_eq!(call(r#"{"jsonrpc": "2.0", "method": "m"}"#), None);
        assert_eq!(call(r#"{"jsonrpc": "2.0", "method": "m", "id": null}"#), Some(Value::Null));
    }
}
