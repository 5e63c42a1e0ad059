//! A response body that is JSON text already. Never parses or writes JSON.

use axum::{
    http::{HeaderValue, header},
    response::{IntoResponse, Response},
};

/// JSON text as `application/json`.
pub(in crate::public) struct JsonText(pub(in crate::public) String);

impl IntoResponse for JsonText {
    fn into_response(self) -> Response {
        ([(header::CONTENT_TYPE, HeaderValue::from_static("application/json"))], self.0).into_response()
    }
}
