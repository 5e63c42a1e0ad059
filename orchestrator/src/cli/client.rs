//! The command line's side of the public API.
//!
//! Owns requests, the token, and turning refusals into errors. Never decides what to ask.

use std::time::Duration;

use protocol::{JobId, Problem};
use reqwest::{Method, RequestBuilder, Response, StatusCode, Url, header};
use secrecy::{ExposeSecret, SecretString};
use serde::{Serialize, de::DeserializeOwned};

use super::exit::CliError;
use crate::config::{Environment, mask_urls};

const DEFAULT_URL: &str = "http://127.0.0.1:8080";
const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
const ANSWER_TIMEOUT: Duration = Duration::from_mins(1);
/// The server comments every 15 s; three silent ones in a row are a dead connection.
const STREAM_SILENCE: Duration = Duration::from_secs(45);
const MAX_PROBLEM_CHARS: usize = 300;

/// Talks to one server as one user.
pub(super) struct Client {
    http: reqwest::Client,
    base: Url,
    token: Option<SecretString>,
}

impl Client {
    /// To `GANTRY_URL` with `GANTRY_TOKEN` or the file of `GANTRY_TOKEN_FILE`.
    pub(super) fn from_environment(environment: &Environment) -> Result<Self, CliError> {
        let url = environment.get("GANTRY_URL").unwrap_or(DEFAULT_URL);
        let token = match (environment.get("GANTRY_TOKEN"), environment.get("GANTRY_TOKEN_FILE")) {
            (Some(token), _) => Some(token.to_owned()),
            (None, Some(file)) => Some(
                std::fs::read_to_string(file)
                    .map_err(|error| CliError::Usage(format!("GANTRY_TOKEN_FILE={file}: cannot read it: {error}")))?,
            ),
            (None, None) => None,
        };
        Self::new(url, token.map(|token| SecretString::from(token.trim())))
    }

    pub(super) fn new(url: &str, token: Option<SecretString>) -> Result<Self, CliError> {
        let wrong = || CliError::Usage(format!("GANTRY_URL={}: must be such as {DEFAULT_URL}", mask_urls(url)));
        let base = Url::parse(url).map_err(|_| wrong())?;
        if !matches!(base.scheme(), "http" | "https") || base.host().is_none() {
            return Err(wrong());
        }
        let http = built(builder(&base).read_timeout(STREAM_SILENCE))?;
        Ok(Self { http, base, token })
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

    /// `GET`.
    pub(super) async fn get<T: DeserializeOwned>(&self, path: &str, query: &[(&str, String)]) -> Result<T, CliError> {
        let request = self.request(Method::GET, path, query).timeout(ANSWER_TIMEOUT);
        self.read(self.send(request).await?).await
    }

    /// `GET` of a text.
    pub(super) async fn text(&self, path: &str) -> Result<String, CliError> {
        let request = self.request(Method::GET, path, &[]).timeout(ANSWER_TIMEOUT);
        self.send(request).await?.text().await.map_err(|error| self.unreachable(&error))
    }

    /// `POST` of a JSON body.
    pub(super) async fn post<T: DeserializeOwned>(
        &self,
        path: &str,
        body: &impl Serialize,
        idempotency_key: Option<&str>,
    ) -> Result<T, CliError> {
        let mut request = self.request(Method::POST, path, &[]).timeout(ANSWER_TIMEOUT).json(body);
        if let Some(key) = idempotency_key {
            request = request.header("Idempotency-Key", key);
        }
        self.read(self.send(request).await?).await
    }

    /// `GET` of bytes, however many.
    pub(super) async fn download(&self, path: &str) -> Result<Response, CliError> {
        self.send(self.request(Method::GET, path, &[])).await
    }

    /// `PUT` of a body, with its length where that is known; the answer comes when all of it has been taken in.
    pub(super) async fn upload<T: DeserializeOwned>(
        &self,
        path: &str,
        kind: &str,
        (body, length): (reqwest::Body, Option<u64>),
    ) -> Result<T, CliError> {
        // A long upload is a long silence.
        let client = Self { http: built(builder(&self.base))?, base: self.base.clone(), token: self.token.clone() };
        let mut request = client.request(Method::PUT, path, &[]).header(header::CONTENT_TYPE, kind).body(body);
        if let Some(length) = length {
            request = request.header(header::CONTENT_LENGTH, length);
        }
        self.read(self.send(request).await?).await
    }

    /// Opens the stream of a job's events after `after`. None when the job has finished and there are none.
    pub(super) async fn stream(&self, job: JobId, after: i64) -> Result<Option<Response>, CliError> {
        let request = self
            .request(Method::GET, &format!("/api/jobs/{job}/events"), &[])
            .header(header::ACCEPT, "text/event-stream")
            .header("Last-Event-ID", after.to_string());
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

    /// An answer with a good status, or the problem as an error.
    async fn send(&self, request: RequestBuilder) -> Result<Response, CliError> {
        let response = request.send().await.map_err(|error| self.unreachable(&error))?;
        let status = response.status();
        if status.is_success() {
            return Ok(response);
        }
        let text = response.text().await.map_err(|error| self.unreachable(&error))?;
        Err(self.refusal(status, &text))
    }

    fn refusal(&self, status: StatusCode, text: &str) -> CliError {
        if let Ok(problem) = serde_json::from_str::<Problem>(text) {
            return CliError::Refused(Box::new(problem));
        }
        let text = super::text::cut(&super::text::one_line(text), MAX_PROBLEM_CHARS);
        CliError::NotGantry { url: mask_urls(self.base.as_str()), cause: format!("{status} {text}").trim().to_owned() }
    }

    async fn read<T: DeserializeOwned>(&self, response: Response) -> Result<T, CliError> {
        let bytes = response.bytes().await.map_err(|error| self.unreachable(&error))?;
        serde_json::from_slice(&bytes)
            .map_err(|error| CliError::NotGantry { url: mask_urls(self.base.as_str()), cause: error.to_string() })
    }

    /// With the innermost cause, which names the problem.
    pub(super) fn unreachable(&self, error: &reqwest::Error) -> CliError {
        let mut cause: &dyn std::error::Error = error;
        while let Some(next) = cause.source() {
            cause = next;
        }
        CliError::Unreachable { url: mask_urls(self.base.as_str()), cause: cause.to_string() }
    }
}

fn builder(base: &Url) -> reqwest::ClientBuilder {
    let builder = reqwest::Client::builder()
        .user_agent(concat!("gantry-cli/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(CONNECT_TIMEOUT)
        .redirect(reqwest::redirect::Policy::none());
    // A proxy of the environment is for the world outside, not for this machine.
    if base.host_str().is_some_and(|host| host == "localhost" || host.starts_with("127.") || host == "[::1]") {
        return builder.no_proxy();
    }
    builder
}

fn built(builder: reqwest::ClientBuilder) -> Result<reqwest::Client, CliError> {
    builder.build().map_err(|error| CliError::failed("cannot make an HTTP client", error))
}
