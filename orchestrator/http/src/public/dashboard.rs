//! The dashboard: its shell for every path of a page, and its files below `/assets/<version>/`.
//!
//! Owns what of the paths is the dashboard's. The files are the crate `dashboard`'s.

use std::{collections::HashMap, sync::Arc};

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::{HeaderMap, HeaderName, HeaderValue, Method, Uri, header},
    response::{IntoResponse, Response},
    routing::get,
};
use dashboard::Dashboard;
use protocol::ErrorCode;

use super::{
    request::browser::is_safe,
    response::{asset::Asset, negotiate::names_html},
};
use crate::problem::ApiError;

/// A version of the files never changes.
const FILES_MAX_AGE: &str = "public, max-age=31536000, immutable";
/// The shell names the version, so it is asked for each time.
const SHELL_MAX_AGE: &str = "no-cache";
/// Paths of the API, which are not pages.
const OTHERS: [&str; 5] = ["/api", "/assets", "/healthz", "/readyz", "/metrics"];
/// Headers of the shell besides its policy. It uses none of the browser's capabilities but the clipboard.
const SHELL_HEADERS: [(&str, &str); 2] = [
    ("cross-origin-opener-policy", "same-origin"),
    (
        "permissions-policy",
        "accelerometer=(), autoplay=(), camera=(), display-capture=(), encrypted-media=(), fullscreen=(), geolocation=(), gyroscope=(), \
         magnetometer=(), microphone=(), midi=(), payment=(), picture-in-picture=(), publickey-credentials-get=(), screen-wake-lock=(), \
         usb=(), xr-spatial-tracking=(), clipboard-write=(self)",
    ),
];

/// What a client reads that asks for a page as a program does, such as curl for `/`.
const NO_PAGE: &str = "path not found; the dashboard is for a browser, and `gantry dashboard` prints its link; the endpoints are below \
                       /api: /api/docs shows them, and /api/openapi.json describes them";

/// The routes of the dashboard. Its pages are all paths that nothing else has.
pub(super) fn router() -> Router {
    let Dashboard { shell, policy, version, files } = Dashboard::load();
    let file_policy = policy.clone();
    let files: HashMap<String, Asset> = files
        .into_iter()
        .map(|file| {
            let content = Bytes::from(file.content.into_owned());
            let load = move || Ok(content.clone());
            (file.path, Asset::new(file.content_type, FILES_MAX_AGE, &file_policy, load))
        })
        .collect();
    let files = Arc::new((version, files));
    let file = async move |Path((version, path)): Path<(String, String)>, headers: HeaderMap| {
        let (current, files) = &*files;
        // Files of another version do not fit together with those that the page has.
        let asset = files.get(&path).filter(|_| version == *current).ok_or_else(ApiError::not_found)?;
        asset.respond(&headers).await
    };
    let shell = Bytes::from(shell);
    let load = move || Ok(shell.clone());
    let shell = Arc::new(Asset::new("text/html; charset=utf-8", SHELL_MAX_AGE, policy, load));
    let page = async move |method: Method, uri: Uri, headers: HeaderMap| -> Result<Response, ApiError> {
        if !is_page(&method, uri.path()) || !names_html(&headers) {
            return Err(ApiError::new(ErrorCode::NotFound, NO_PAGE));
        }
        let mut response = shell.respond(&headers).await?;
        for (name, value) in SHELL_HEADERS {
            response.headers_mut().insert(HeaderName::from_static(name), HeaderValue::from_static(value));
        }
        response.headers_mut().append(header::VARY, HeaderValue::from_static("accept"));
        Ok(response.into_response())
    };
    Router::new().route("/assets/{version}/{*path}", get(file)).fallback(page)
}

fn is_page(method: &Method, path: &str) -> bool {
    let is_below =
        |other: &&str| path.strip_prefix(*other).is_some_and(|rest| rest.is_empty() || rest.starts_with('/'));
    is_safe(method) && !OTHERS.iter().any(is_below)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(Method::GET, "/", true)]
    #[case(Method::HEAD, "/jobs/01a2", true)]
    #[case(Method::GET, "/apiary", true)]
    #[case(Method::POST, "/jobs", false)]
    #[case(Method::GET, "/api/nothing", false)]
    #[case(Method::GET, "/assets", false)]
    #[case(Method::GET, "/assets/old/app/main.js", false)]
    #[case(Method::GET, "/metrics", false)]
    fn pages_are_what_nothing_else_has(#[case] method: Method, #[case] path: &str, #[case] is: bool) {
        assert_eq!(is_page(&method, path), is);
    }
}
