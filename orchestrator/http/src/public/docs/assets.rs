//! Serves the document and the page that shows it: Swagger UI from embedded files, without anything from elsewhere.

use std::sync::Arc;

use axum::{
    Router,
    body::Bytes,
    extract::Path,
    http::HeaderMap,
    response::Redirect,
    routing::{MethodRouter, get},
};
use utoipa_swagger_ui::Config;

use crate::{
    problem::ApiError,
    public::response::asset::{Asset, Loaded},
};

const INDEX: &str = include_str!("index.html");
const INITIALIZER: &str = include_str!("initializer.js");
/// The embedded files that the page uses, with their types.
const EMBEDDED: [(&str, &str); 4] = [
    ("swagger-ui.css", "text/css; charset=utf-8"),
    ("swagger-ui-bundle.js", "text/javascript; charset=utf-8"),
    ("favicon-32x32.png", "image/png"),
    ("favicon-16x16.png", "image/png"),
];

/// The page may load only its own scripts, connect only to this server, and not be framed.
const PAGE_POLICY: &str = "default-src 'none'; script-src 'self'; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; \
     connect-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'";
/// What this version serves can differ from what the next one does.
const OWN_MAX_AGE: &str = "public, max-age=300";
const EMBEDDED_MAX_AGE: &str = "public, max-age=86400";

/// `/api/openapi.json` and `/api/docs`.
pub(in crate::public) fn router() -> Router {
    let own = |kind, text: &'static str| asset(kind, OWN_MAX_AGE, move || Ok(Bytes::from_static(text.as_bytes())));
    let document = || Ok(serde_json::to_vec(&super::document())?.into());
    let initializer = ("initializer.js", own("text/javascript; charset=utf-8", INITIALIZER));
    let embedded = EMBEDDED.map(|(name, kind)| (name, asset(kind, EMBEDDED_MAX_AGE, move || embedded(name))));
    let files: Arc<[(&str, Asset)]> = embedded.into_iter().chain([initializer]).collect();
    let file = async move |Path(name): Path<String>, headers: HeaderMap| {
        let (_, asset) = files.iter().find(|(file, _)| *file == name).ok_or_else(ApiError::not_found)?;
        asset.respond(&headers).await
    };
    Router::new()
        .route("/api/openapi.json", serve(asset("application/json", OWN_MAX_AGE, document)))
        .route("/api/docs", get(async || Redirect::to("/api/docs/")))
        .route("/api/docs/", serve(own("text/html; charset=utf-8", INDEX)))
        .route("/api/docs/{file}", get(file))
}

fn asset(kind: &'static str, max_age: &'static str, load: impl Fn() -> Loaded + Send + Sync + 'static) -> Asset {
    Asset::new(kind, max_age, PAGE_POLICY, load)
}

fn serve(asset: Asset) -> MethodRouter {
    let asset = Arc::new(asset);
    get(async move |headers: HeaderMap| asset.respond(&headers).await)
}

fn embedded(name: &str) -> Loaded {
    let file = utoipa_swagger_ui::serve(name, Arc::new(Config::default())).map_err(|error| error.to_string())?;
    file.map(|file| file.bytes.into_owned().into()).ok_or_else(|| format!("{name} is not embedded").into())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_file_of_the_page_is_embedded() {
        for (name, _) in EMBEDDED {
            assert!(!embedded(name).unwrap().is_empty(), "{name}");
        }
        for name in
            EMBEDDED.map(|(name, _)| name).iter().filter(|name| !name.contains("16x16")).chain(&["initializer.js"])
        {
            assert!(INDEX.contains(&format!("\"{name}\"")), "{name} is not used");
        }
    }
}
