//! The client of the public API.
//!
//! Owns requests, the token, and the conversion of error responses.

pub(crate) mod claims;
pub mod connection;
pub(crate) mod contexts;
pub(crate) mod pages;
pub(crate) mod rpc;
pub(crate) mod server_checks;
pub(crate) mod stream;
pub(crate) mod zones;

use std::{error::Error as _, time::Duration};

use protocol::Problem;
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};
use serde_json::Value;

use self::{
    claims::UnverifiedClaims,
    connection::{Connection, DEFAULT_URL},
};
pub(crate) use self::{
    pages::{List, Nothing, PageArgs},
    stream::{EventFollower, Followed, StreamRequest},
};
use super::exit::CliError;
use base::{Environment, error_chain, mask_urls};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const PROBE_TIMEOUT: Duration = Duration::from_secs(10);
const RESPONSE_TIMEOUT: Duration = Duration::from_mins(1);
/// The server sends a comment every 15 s; after three missing ones the connection is considered dead.
const STREAM_IDLE_TIMEOUT: Duration = Duration::from_secs(45);
const MAX_PROBLEM_CHARS: usize = 300;

/// A client of one server with one token.
pub struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<SecretString>,
}

impl Client {
    /// The client of the server that the options, variables and contexts select.
    pub(crate) fn from_environment(environment: &Environment) -> Result<Self, CliError> {
        let connection = Connection::from_environment(environment)?;
        Self::new(&connection.url, connection.token)
    }

    pub fn new(url: &str, token: Option<SecretString>) -> Result<Self, CliError> {
        let invalid =
            || CliError::Usage(format!("server URL {}: must be an HTTP URL such as {DEFAULT_URL}", mask_urls(url)));
        let base = Url::parse(url).map_err(|_| invalid())?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(invalid());
        }
        let http = build_client(builder(&base).read_timeout(STREAM_IDLE_TIMEOUT))?;
        Ok(Self { http, base, token })
    }

    /// The user that the token names; `None` for a token of an unknown form. The server decides what the token may do.
    pub fn user(&self) -> Option<String> {
        self.token.as_ref().and_then(|token| UnverifiedClaims::of(token.expose_secret())).map(|claims| claims.user)
    }

    fn request(&self, method: Method, path: &str, query: &[(&str, String)]) -> RequestBuilder {
        let mut url = self.base.clone();
        url.set_path(&format!("{}{path}", self.base.path().trim_end_matches('/')));
        if !query.is_empty() {
            url.query_pairs_mut().extend_pairs(query);
        }
        let request = self.http.request(method, url);
        match &self.token {
            Some(token) => request.bearer_auth(token.expose_secret()),
            None => request,
        }
    }

    /// Sends `GET`.
    pub async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, CliError> {
        let request = self.request(Method::GET, path, query).header(header::ACCEPT, "application/json");
        self.read(self.send(request.timeout(RESPONSE_TIMEOUT)).await?).await
    }

    /// Sends `GET` for an object with a version: the number in its `ETag`, if it has one.
    pub(crate) async fn get_with_version<T: DeserializeOwned>(&self, path: &str) -> Result<(T, Option<u64>), CliError> {
        let request = self.request(Method::GET, path, &[]).header(header::ACCEPT, "application/json");
        let response = self.send(request.timeout(RESPONSE_TIMEOUT)).await?;
        let tag = response.headers().get(header::ETAG).and_then(|tag| tag.to_str().ok());
        let version = tag.and_then(|tag| tag.trim_matches('"').parse().ok());
        Ok((self.read(response).await?, version))
    }

    /// Sends `GET` to an endpoint whose status is part of the answer, and returns it with its JSON; null for other
    /// content.
    pub async fn probe(&self, path: &str) -> Result<(u16, Value), CliError> {
        let request = self.request(Method::GET, path, &[]).timeout(PROBE_TIMEOUT);
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status().as_u16();
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        Ok((status, serde_json::from_slice(&bytes).unwrap_or_default()))
    }

    /// Sends `GET` for text.
    pub async fn text(&self, path: &str) -> Result<String, CliError> {
        let request = self.request(Method::GET, path, &[]).timeout(RESPONSE_TIMEOUT);
        self.send(request).await?.text().await.map_err(|error| self.unreachable(&error))
    }

    /// Sends `POST` with a JSON body.
    pub async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<T, CliError> {
        let mut request = self.request(Method::POST, path, &[]).timeout(RESPONSE_TIMEOUT).json(body);
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        self.read(self.send(request).await?).await
    }

    /// Sends `POST` with query parameters and a JSON body.
    pub(crate) async fn post_with_query<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &impl Serialize,
    ) -> Result<T, CliError> {
        let request = self.request(Method::POST, path, query).timeout(RESPONSE_TIMEOUT).json(body);
        self.read(self.send(request).await?).await
    }

    /// Sends `PATCH` with a JSON body, for an object that must have this version, if one is given.
    pub(crate) async fn patch_if_version<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        version: Option<u64>,
    ) -> Result<T, CliError> {
        let request = self.request(Method::PATCH, path, &[]).timeout(RESPONSE_TIMEOUT).json(body);
        self.read(self.send(if_version(request, version)).await?).await
    }

    /// Sends `PUT` with a JSON body, for an object that must have this version, if one is given.
    pub(crate) async fn put_if_version<T: DeserializeOwned>(
        &self,
        path: &str,
        query: &[(&str, String)],
        body: &impl Serialize,
        version: Option<u64>,
    ) -> Result<T, CliError> {
        let request = self.request(Method::PUT, path, query).timeout(RESPONSE_TIMEOUT).json(body);
        self.read(self.send(if_version(request, version)).await?).await
    }

    /// Sends `DELETE`, for an object that must have this version, if one is given.
    pub(crate) async fn delete_if_version(
        &self,
        path: &str,
        query: &[(&str, String)],
        version: Option<u64>,
    ) -> Result<(), CliError> {
        let request = self.request(Method::DELETE, path, query).timeout(RESPONSE_TIMEOUT);
        self.send(if_version(request, version)).await.map(drop)
    }

    /// Sends `GET` for a body of any size.
    pub async fn download(&self, path: &str, query: &[(&str, String)]) -> Result<Response, CliError> {
        self.send(self.request(Method::GET, path, query)).await
    }

    /// Sends `PUT` with a body and its length, if known. The server responds when it has received everything.
    pub async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        (body, length): (reqwest::Body, Option<u64>),
    ) -> Result<T, CliError> {
        // No read timeout: a long upload has no response for a long time.
        let client =
            Self { http: build_client(builder(&self.base))?, base: self.base.clone(), token: self.token.clone() };
        let mut request = client.request(Method::PUT, path, &[]).header(header::CONTENT_TYPE, kind).body(body);
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        self.read(self.send(request).await?).await
    }

    /// Opens a stream of events. `None` if it is over and there are no more events.
    pub async fn stream(&self, stream: &StreamRequest) -> Result<Option<Response>, CliError> {
        let mut request =
            self.request(Method::GET, &stream.path, &stream.query).header(header::ACCEPT, "text/event-stream");
        if let Some(after) = stream.after {
            request = request.header("Last-Event-ID", after.to_string());
        }
        let response = self.send(request).await?;
        if response.status() == StatusCode::NO_CONTENT {
            return Ok(None);
        }
        let kind = response.headers().get(header::CONTENT_TYPE).and_then(|kind| kind.to_str().ok()).unwrap_or("none");
        if kind.starts_with("text/event-stream") {
            return Ok(Some(response));
        }
        Err(CliError::NotGantry { url: mask_urls(self.base.as_str()), cause: format!("content type {kind}") })
    }

    /// Returns a successful response, or the problem as an error.
    async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        Err(self.error_of(status, &text))
    }

    fn error_of(&self, status: StatusCode, text: &str) -> CliError {
        if let Ok(problem) = serde_json::from_str::<Problem>(text) {
            return CliError::Refused(Box::new(problem));
        }
        let text = super::output::text::truncate(&super::output::text::one_line(text), MAX_PROBLEM_CHARS);
        CliError::NotGantry { url: mask_urls(self.base.as_str()), cause: format!("{status} {text}").trim().to_owned() }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, CliError> {
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| CliError::NotGantry { url: mask_urls(self.base.as_str()), cause: error.to_string() })
    }

    /// Reports the causes. The error itself only repeats the URL, which may contain a secret.
    pub fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let cause = error.source().map_or_else(|| error.to_string(), error_chain);
        CliError::Unreachable { url: mask_urls(self.base.as_str()), cause }
    }
}

fn if_version(request: RequestBuilder, version: Option<u64>) -> RequestBuilder {
    match version {
        Some(version) => request.header(header::IF_MATCH, format!("\"{version}\"")),
        None => request,
    }
}

fn builder(base: &Url) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("gantry-cli/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    // Proxies in the environment do not apply to this machine.
    if base.host_str().is_some_and(|host| host == "localhost" || host.starts_with("127.") || host == "[::1]") {
        return builder.no_proxy();
    }
    builder
}

fn build_client(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, CliError> {
    builder.build().map_err(|error| CliError::failed("cannot create an HTTP client", error))
}
