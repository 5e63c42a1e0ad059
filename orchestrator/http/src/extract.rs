//! Extractors for bodies, queries and paths, with errors that name the field.
//!
//! Owns the errors about malformed requests. Never knows what a value means.

mod body;
mod objects;
mod query;
mod scan;

use axum::{
    body::Bytes,
    extract::{FromRequest, FromRequestParts, Path, Request},
    http::{HeaderMap, header, request::Parts},
};
use protocol::ErrorCode;
use serde::de::DeserializeOwned;
use serde_json::{Value, error::Category};

pub(crate) use self::body::MAX_INLINE_BYTES;
use self::body::ReceivedBody;
use super::problem::ApiError;
use domain::field_errors::{field_error, location};

/// A JSON body of the public API, with its raw bytes.
#[derive(Debug, Clone)]
pub struct ApiJson<T> {
    pub value: T,
    /// The raw body.
    pub bytes: Bytes,
}

/// A JSON body from a worker, with its raw bytes: parsed once, and a second time only to describe an error. Model calls carry
/// conversations of megabytes.
#[derive(Debug, Clone)]
pub struct WorkerJson<T> {
    pub value: T,
    /// The raw body.
    pub bytes: Bytes,
}

/// An optional JSON body; an empty one is the default value.
#[derive(Debug, Clone)]
pub struct OptionalJson<T>(pub T);

/// A body of any content.
#[derive(Debug, Clone)]
pub struct RawBody(pub Bytes);

/// The query parameters.
#[derive(Debug, Clone)]
pub struct ApiQuery<T>(pub T);

/// The path parameters. An invalid one is 404.
#[derive(Debug, Clone)]
pub struct ApiPath<T>(pub T);

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for WorkerJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let body = ReceivedBody::read(request).await?;
        let value = body.parse(|bytes| serde_json::from_slice(bytes).or_else(|_| parse_json(bytes))).await?;
        Ok(Self { value, bytes: body.bytes })
    }
}

impl<T: DeserializeOwned + Send + 'static, S: Send + Sync> FromRequest<S> for ApiJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        require_json(request.headers())?;
        let body = ReceivedBody::read(request).await?;
        Ok(Self { value: body.parse(parse_json).await?, bytes: body.bytes })
    }
}

impl<S: Send + Sync> FromRequest<S> for RawBody {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        Ok(Self(ReceivedBody::read(request).await?.bytes))
    }
}

impl<T: DeserializeOwned + Default + Send + 'static, S: Send + Sync> FromRequest<S> for OptionalJson<T> {
    type Rejection = ApiError;

    async fn from_request(request: Request, _state: &S) -> Result<Self, ApiError> {
        let typed = require_json(request.headers());
        let body = ReceivedBody::read(request).await?;
        if body.bytes.is_empty() {
            return Ok(Self(T::default()));
        }
        typed?;
        body.parse(parse_json).await.map(Self)
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiQuery<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, _state: &S) -> Result<Self, ApiError> {
        query::read(parts.uri.query().unwrap_or("")).map(Self).map_err(|error| ApiError::invalid(vec![error]))
    }
}

impl<T: DeserializeOwned + Send, S: Send + Sync> FromRequestParts<S> for ApiPath<T> {
    type Rejection = ApiError;

    async fn from_request_parts(parts: &mut Parts, state: &S) -> Result<Self, ApiError> {
        match Path::from_request_parts(parts, state).await {
            Ok(Path(value)) => Ok(Self(value)),
            Err(rejection) if rejection.status().is_server_error() => Err(ApiError::internal(rejection.body_text())),
            Err(_) => Err(ApiError::not_found()),
        }
    }
}

/// Parses a JSON object: 400 when it is not JSON, 422 with the field when it has the wrong shape.
pub(crate) fn parse_json<T: DeserializeOwned>(bytes: &[u8]) -> Result<T, ApiError> {
    if bytes.len() > MAX_INLINE_BYTES {
        return objects::read(bytes).map_err(|(path, error)| json_error(bytes, &path, &error));
    }
    let mut reader = serde_json::Deserializer::from_slice(bytes);
    let value = serde_path_to_error::deserialize(&mut reader).map_err(|error| {
        // The parser says of some values of a wrong type that they are no JSON; the check reads the body as JSON first.
        let mistyped = error.inner().is_syntax().then(|| objects::check::<T>(bytes).err()).flatten();
        let (path, error) = mistyped.unwrap_or_else(|| (error.path().to_string(), error.into_inner()));
        json_error(bytes, &path, &error)
    })?;
    reader.end().map_err(|error| json_error(bytes, ".", &error))?;
    objects::check::<T>(bytes).map_err(|(path, error)| json_error(bytes, &path, &error))?;
    Ok(value)
}

fn json_error(body: &[u8], path: &str, error: &serde_json::Error) -> ApiError {
    let text = error.to_string();
    match error.classify() {
        Category::Data => {
            let message = text.rsplit_once(" at line ").map_or(text.as_str(), |(message, _)| message);
            let body: Option<Value> = serde_json::from_slice(body).ok();
            let found = body.and_then(|body| location::find(&body, path, message));
            ApiError::invalid(vec![field_error(found.as_deref().unwrap_or(path), message, "body")])
        }
        Category::Syntax | Category::Eof | Category::Io => {
            ApiError::new(ErrorCode::BadRequest, format!("the body is not valid JSON: {text}"))
        }
    }
}

fn require_json(headers: &HeaderMap) -> Result<(), ApiError> {
    let kind = headers.get(header::CONTENT_TYPE).and_then(|value| value.to_str().ok()).unwrap_or("");
    let essence = kind.split(';').next().unwrap_or("").trim().to_ascii_lowercase();
    let json = essence == "application/json" || (essence.starts_with("application/") && essence.ends_with("+json"));
    if json {
        return Ok(());
    }
    Err(ApiError::new(ErrorCode::UnsupportedMediaType, "Content-Type must be application/json"))
}
