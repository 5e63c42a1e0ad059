//! `GET /`: a page for a person who opens the server in a browser.

use axum::{
    http::{HeaderMap, HeaderValue, header},
    response::{IntoResponse, Response},
};
use protocol::ErrorCode;

use super::response::negotiate::wants_html;
use crate::problem::ApiError;

const PAGE: &str = include_str!("home.html");
/// The page has no scripts and loads nothing; its style is inline.
const POLICY: &str =
    "default-src 'none'; style-src 'unsafe-inline'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";

pub(super) async fn home(headers: HeaderMap) -> Result<Response, ApiError> {
    if !wants_html(&headers) {
        let detail =
            "path not found; the endpoints are below /api: /api/docs shows them, and /api/openapi.json describes them";
        return Err(ApiError::new(ErrorCode::NotFound, detail));
    }
    let fields = [
        (header::CONTENT_TYPE, HeaderValue::from_static("text/html; charset=utf-8")),
        (header::CONTENT_SECURITY_POLICY, HeaderValue::from_static(POLICY)),
        (header::VARY, HeaderValue::from_static("accept")),
    ];
    Ok((fields, PAGE).into_response())
}
