//! The only user of bollard: every call of Docker's API that Gantry makes, with its timeout and typed failures.
//!
//! Never decides what a failure means for a job.

use std::{collections::HashMap, future::Future, pin::Pin, sync::OnceLock, time::Duration};

use bollard::{
    API_DEFAULT_VERSION,
    container::{AttachContainerResults, LogOutput},
    errors::Error,
    models::{ContainerCreateBody, ContainerInspectResponse, ImageInspect, SystemInfo, SystemVersion},
    query_parameters::{
        AttachContainerOptionsBuilder, CreateContainerOptionsBuilder, EventsOptionsBuilder,
        KillContainerOptionsBuilder, ListContainersOptionsBuilder, LogsOptionsBuilder, RemoveContainerOptionsBuilder,
        WaitContainerOptionsBuilder,
    },
};
use futures_util::{Stream, StreamExt};
use tokio::io::AsyncRead;
use tokio_util::io::StreamReader;

use super::wire::ContainerSummary;
use base::error_chain;

use crate::{AttachedStreams, EngineError};

/// Timeout of a ping, after which the engine is unreachable.
const PING_TIMEOUT: Duration = Duration::from_secs(2);
/// Timeout of calls that only read.
const READ_TIMEOUT: Duration = Duration::from_secs(10);
/// Timeout of calls that create, start or end a container: the engine may be busy.
const CHANGE_TIMEOUT: Duration = Duration::from_mins(1);
/// bollard's timeout: longer than any of ours, so that ours apply.
const CLIENT_TIMEOUT_SECONDS: u64 = 24 * 3600;

/// The engine's default address.
const DEFAULT_HOST: &str = "unix:///var/run/docker.sock";

/// Why a call failed.
#[derive(Debug)]
pub(super) enum ClientError {
    /// The engine has no object of that name.
    NotFound(String),
    /// The object is in that state already, or its state does not allow the call.
    Conflict(String),
    /// Any other failure.
    Engine(EngineError),
}

impl From<EngineError> for ClientError {
    fn from(error: EngineError) -> Self {
        Self::Engine(error)
    }
}

impl From<ClientError> for EngineError {
    fn from(error: ClientError) -> Self {
        match error {
            ClientError::NotFound(message) | ClientError::Conflict(message) => Self::Other(message),
            ClientError::Engine(error) => error,
        }
    }
}

/// Events of containers: the id of each changed container.
pub(super) type Changes = Pin<Box<dyn Stream<Item = Result<Option<String>, EngineError>> + Send>>;

/// A connection to one engine, created at the first call, since the engine may start after the orchestrator.
pub(super) struct Client {
    host: String,
    inner: OnceLock<bollard::Docker>,
}

impl Client {
    pub(super) fn new(host: Option<&str>) -> Self {
        Self { host: host.unwrap_or(DEFAULT_HOST).to_owned(), inner: OnceLock::new() }
    }

    fn docker(&self) -> Result<&bollard::Docker, ClientError> {
        if let Some(docker) = self.inner.get() {
            return Ok(docker);
        }
        let docker = connect(&self.host)?;
        Ok(self.inner.get_or_init(|| docker))
    }

    pub(super) async fn ping(&self) -> Result<(), ClientError> {
        self.call(PING_TIMEOUT, bollard::Docker::ping).await.map(drop)
    }

    pub(super) async fn version(&self) -> Result<SystemVersion, ClientError> {
        self.call(READ_TIMEOUT, bollard::Docker::version).await
    }

    pub(super) async fn info(&self) -> Result<SystemInfo, ClientError> {
        self.call(READ_TIMEOUT, bollard::Docker::info).await
    }

    pub(super) async fn image(&self, name: &str) -> Result<ImageInspect, ClientError> {
        self.call(READ_TIMEOUT, |docker| docker.inspect_image(name)).await
    }

    pub(super) async fn inspect(&self, name: &str) -> Result<ContainerInspectResponse, ClientError> {
        self.call(READ_TIMEOUT, |docker| docker.inspect_container(name, None)).await
    }

    /// The same, or `None` where there is no such container.
    pub(super) async fn inspect_existing(&self, name: &str) -> Result<Option<ContainerInspectResponse>, EngineError> {
        match self.inspect(name).await {
            Ok(inspected) => Ok(Some(inspected)),
            Err(ClientError::NotFound(_)) => Ok(None),
            Err(error) => Err(error.into()),
        }
    }

    /// The containers with all these labels, running or not.
    pub(super) async fn with_labels(&self, labels: &[String]) -> Result<Vec<ContainerSummary>, ClientError> {
        let filters = HashMap::from([("label", labels.to_vec())]);
        let options = ListContainersOptionsBuilder::new().all(true).filters(&filters).build();
        self.call(READ_TIMEOUT, |docker| docker.list_containers(Some(options))).await
    }

    pub(super) async fn create(&self, name: &str, body: ContainerCreateBody) -> Result<String, ClientError> {
        let options = CreateContainerOptionsBuilder::new().name(name).build();
        let created = self.call(CHANGE_TIMEOUT, |docker| docker.create_container(Some(options), body)).await?;
        Ok(created.id)
    }

    pub(super) async fn start(&self, id: &str) -> Result<(), ClientError> {
        self.call(CHANGE_TIMEOUT, |docker| docker.start_container(id, None)).await
    }

    /// Attaches to the standard streams: to standard error by itself, so that its reader can end without the others.
    pub(super) async fn attach(&self, id: &str) -> Result<AttachedStreams, ClientError> {
        let options = || AttachContainerOptionsBuilder::new().stream(true);
        let attached = self.attach_to(id, options().stdin(true).stdout(true)).await?;
        let errors = self.attach_to(id, options().stderr(true)).await?;
        let (stdin, stdout, stderr) = (Box::new(attached.input), reader(attached.output), reader(errors.output));
        Ok(AttachedStreams { stdin, stdout, stderr })
    }

    async fn attach_to(
        &self,
        id: &str,
        options: AttachContainerOptionsBuilder,
    ) -> Result<AttachContainerResults, ClientError> {
        self.call(READ_TIMEOUT, |docker| docker.attach_container(id, Some(options.build()))).await
    }

    pub(super) async fn signal(&self, id: &str, signal: &str) -> Result<(), ClientError> {
        let options = KillContainerOptionsBuilder::new().signal(signal).build();
        self.call(CHANGE_TIMEOUT, |docker| docker.kill_container(id, Some(options))).await
    }

    pub(super) async fn pause(&self, id: &str) -> Result<(), ClientError> {
        self.call(CHANGE_TIMEOUT, |docker| docker.pause_container(id)).await
    }

    pub(super) async fn unpause(&self, id: &str) -> Result<(), ClientError> {
        self.call(CHANGE_TIMEOUT, |docker| docker.unpause_container(id)).await
    }

    pub(super) async fn remove(&self, id: &str) -> Result<(), ClientError> {
        let options = RemoveContainerOptionsBuilder::new().force(true).v(true).build();
        self.call(CHANGE_TIMEOUT, |docker| docker.remove_container(id, Some(options))).await
    }

    /// Waits until the container does not run; `false` if it still runs after `limit`.
    pub(super) async fn wait_not_running(&self, id: &str, limit: Duration) -> Result<bool, ClientError> {
        let options = WaitContainerOptionsBuilder::new().condition("not-running").build();
        let mut responses = Box::pin(self.docker()?.wait_container(id, Some(options)));
        match tokio::time::timeout(limit, responses.next()).await {
            Err(_) => Ok(false),
            // An exit code other than 0 is reported as this error.
            Ok(Some(Ok(_) | Err(Error::DockerContainerWaitError { .. }))) => Ok(true),
            Ok(Some(Err(error))) => Err(client_error(error)),
            Ok(None) => Err(ClientError::Engine(EngineError::Unreachable(
                "the connection was closed while a container ran".to_owned(),
            ))),
        }
    }

    /// The last `max_bytes` of the container's output.
    pub(super) async fn logs(&self, id: &str, max_bytes: usize) -> Result<Vec<u8>, ClientError> {
        // A line has at least one byte.
        let options = LogsOptionsBuilder::new().stdout(true).stderr(true).tail(&max_bytes.to_string()).build();
        let mut chunks = Box::pin(self.docker()?.logs(id, Some(options)));
        let mut tail: Vec<u8> = Vec::new();
        let reading = async {
            while let Some(chunk) = chunks.next().await {
                tail.extend_from_slice(chunk.map_err(client_error)?.as_ref());
                // Truncated at twice the size, so that not every chunk moves the bytes.
                if tail.len() > max_bytes.saturating_mul(2) {
                    tail.drain(..tail.len() - max_bytes);
                }
            }
            Ok::<(), ClientError>(())
        };
        tokio::time::timeout(READ_TIMEOUT, reading).await.map_err(|_| timed_out(READ_TIMEOUT))??;
        let surplus = tail.len().saturating_sub(max_bytes);
        tail.drain(..surplus);
        Ok(tail)
    }

    /// Events of containers with this label from the engine's time `since` on (seconds).
    pub(super) fn changes(&self, label: &str, since: i64) -> Result<Changes, ClientError> {
        let kinds = ["start", "die", "oom", "destroy", "pause", "unpause"];
        let filters = HashMap::from([
            ("type", vec!["container".to_owned()]),
            ("label", vec![label.to_owned()]),
            ("event", kinds.map(str::to_owned).to_vec()),
        ]);
        let options = EventsOptionsBuilder::new().since(&since.to_string()).filters(&filters).build();
        let events = self.docker()?.events(Some(options));
        Ok(Box::pin(
            events.map(|event| {
                event.map(|event| event.actor?.id).map_err(|error| EngineError::from(client_error(error)))
            }),
        ))
    }

    async fn call<'a, T, F>(
        &'a self,
        limit: Duration,
        request: impl FnOnce(&'a bollard::Docker) -> F,
    ) -> Result<T, ClientError>
    where
        F: Future<Output = Result<T, Error>>,
    {
        let response = request(self.docker()?);
        tokio::time::timeout(limit, response).await.map_err(|_| timed_out(limit))?.map_err(client_error)
    }
}

fn connect(host: &str) -> Result<bollard::Docker, ClientError> {
    let docker = if host.starts_with("unix://") {
        bollard::Docker::connect_with_unix(host, CLIENT_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else if host.starts_with("tcp://") || host.starts_with("http://") {
        bollard::Docker::connect_with_http(host, CLIENT_TIMEOUT_SECONDS, API_DEFAULT_VERSION)
    } else {
        return Err(ClientError::Engine(EngineError::Unreachable(format!(
            "invalid address {host}; use unix:///path or tcp://host:port"
        ))));
    };
    docker.map_err(client_error)
}

fn timed_out(limit: Duration) -> ClientError {
    ClientError::Engine(EngineError::Unreachable(format!("no answer within {} s", limit.as_secs())))
}

fn client_error(error: Error) -> ClientError {
    match error {
        Error::DockerResponseServerError { status_code, message } => error_response(status_code, message),
        Error::SocketNotFoundError(path) => {
            ClientError::Engine(EngineError::Unreachable(format!("no socket at {path}")))
        }
        Error::RequestTimeoutError => ClientError::Engine(EngineError::Unreachable("no answer in time".to_owned())),
        Error::IOError { .. } | Error::HyperResponseError { .. } | Error::HyperLegacyError { .. } => {
            ClientError::Engine(EngineError::Unreachable(error_chain(&error)))
        }
        other => ClientError::Engine(EngineError::Other(error_chain(&other))),
    }
}

/// What a container prints.
fn reader(output: impl Stream<Item = Result<LogOutput, Error>> + Send + 'static) -> Box<dyn AsyncRead + Send + Unpin> {
    let chunks = output.map(|chunk| chunk.map(LogOutput::into_bytes).map_err(std::io::Error::other));
    Box::new(StreamReader::new(chunks.boxed()))
}

/// Classifies an error response. An unknown runtime has no distinct status, so it is recognised by the message.
fn error_response(status: u16, message: String) -> ClientError {
    match status {
        404 => ClientError::NotFound(message),
        304 | 409 => ClientError::Conflict(message),
        400..500 => match unknown_runtime(&message) {
            Some(name) => ClientError::Engine(EngineError::RuntimeMissing(name)),
            None => ClientError::Engine(EngineError::Refused(message)),
        },
        _ => ClientError::Engine(EngineError::Other(message)),
    }
}

/// The name in "unknown or invalid runtime name: x" and "Unknown runtime specified x".
fn unknown_runtime(message: &str) -> Option<String> {
    let lower = message.to_lowercase();
    let phrases = ["unknown or invalid runtime name", "unknown runtime specified"];
    if !phrases.iter().any(|phrase| lower.contains(phrase)) {
        return None;
    }
    message.split_whitespace().next_back().map(|name| name.trim_matches('"').to_owned())
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case("unknown or invalid runtime name: runsc", Some("runsc"))]
    #[case("Unknown runtime specified kata", Some("kata"))]
    #[case("invalid mount config for type \"bind\": bind source path does not exist: /x", None)]
    fn an_unknown_runtime_is_distinguished_from_other_refusals(#[case] message: &str, #[case] runtime: Option<&str>) {
        let wanted = runtime.map_or_else(
            || EngineError::Refused(message.to_owned()),
            |name| EngineError::RuntimeMissing(name.to_owned()),
        );
        assert_eq!(EngineError::from(error_response(400, message.to_owned())), wanted);
    }
}
