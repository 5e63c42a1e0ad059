//! Servers in containers: their names, their limits, and their output as it is read.
//!
//! Guarantees that a container which belongs to no connection is removed, also if its start was given up.

use std::{
    collections::HashSet,
    pin::Pin,
    sync::Arc,
    task::{Context, Poll, ready},
    time::Duration,
};

use futures_util::{StreamExt as _, stream, stream::BoxStream};
use parking_lot::Mutex;
use protocol::{ContainerName, JobId};
use rmcp::{
    RoleClient,
    model::ServerJsonRpcMessage,
    transport::async_rw::{JsonRpcMessageCodec, TransportWriter},
};
use tokio::{
    io::{AsyncBufReadExt as _, AsyncRead, AsyncWrite, BufReader, ReadBuf},
    runtime::Handle,
};
use tokio_util::task::TaskTracker;

use super::{
    error::McpError,
    message::read_messages,
    receive_limit::ReceiveLimit,
    redaction::Redaction,
    stderr::{ErrorOutput, reason},
};
use base::clock::Clock;
use dispatch::Sandbox;
use engine::{ContainerRole, ContainerStatus, Engine, EngineError, McpContainerSpec, Resources, SandboxReadiness};

/// Enough for a program in Node or Python that calls no model.
const RESOURCES: Resources = Resources { memory_mb: 512, cpus: 1.0, pids: 128, disk_mb: 64 };

/// Time for the engine to report the end of a program whose output has ended.
const END_TIMEOUT: Duration = Duration::from_secs(1);
const OBSERVE_INTERVAL: Duration = Duration::from_millis(50);

/// Starts and removes the containers.
pub(super) struct Containers {
    engine: Arc<dyn Engine>,
    sandbox: Arc<Sandbox>,
    clock: Clock,
    /// Starts and removals in progress.
    tasks: TaskTracker,
    /// Containers that belong to a connection, or to one that is being opened or ended.
    live: Mutex<HashSet<String>>,
}

/// A container, which is removed when this is dropped.
pub(super) struct OwnedContainer {
    name: String,
    containers: Arc<Containers>,
    /// None until it has started.
    stderr: Option<ErrorOutput>,
}

/// How a program has ended, as far as that is known.
pub(super) struct ProgramEnd {
    exit_code: Option<i64>,
    /// The end of its standard error, without secrets.
    pub(super) stderr: String,
}

impl ProgramEnd {
    /// The reason for a failure, as far as the program names it.
    pub(super) fn cause(&self) -> Option<String> {
        match (self.exit_code, reason(&self.stderr)) {
            (Some(code), Some(line)) => Some(format!("its program ended with exit code {code} and printed: {line}")),
            (Some(code), None) => Some(format!("its program ended with exit code {code}")),
            (None, line) => line.map(|line| format!("its program printed: {line}")),
        }
    }
}

/// The standard streams of a server.
pub(super) struct Streams {
    stdin: Box<dyn AsyncWrite + Send + Unpin>,
    stdout: LimitedReader,
}

/// What a program reads, and the messages that it prints.
type Transport =
    (TransportWriter<RoleClient, Box<dyn AsyncWrite + Send + Unpin>>, BoxStream<'static, ServerJsonRpcMessage>);

impl OwnedContainer {
    /// How the program has ended. One that goes on is waited for for a moment.
    pub(super) async fn end(&self, redaction: &Redaction) -> ProgramEnd {
        let exit_code = tokio::time::timeout(END_TIMEOUT, self.exit_code()).await.ok().flatten();
        if exit_code.is_some()
            && let Some(stderr) = &self.stderr
        {
            let _ended = tokio::time::timeout(END_TIMEOUT, stderr.ended()).await;
        }
        let stderr = self.stderr.as_ref().map(|stderr| stderr.text(redaction)).unwrap_or_default();
        ProgramEnd { exit_code, stderr }
    }

    async fn exit_code(&self) -> Option<i64> {
        loop {
            let container = self.containers.engine.observe(&self.name).await.ok().flatten()?;
            if let ContainerStatus::Exited { code, .. } = container.status {
                return Some(code);
            }
            tokio::time::sleep(OBSERVE_INTERVAL).await;
        }
    }

    /// Removes it. If that is given up, it is removed when this is dropped.
    pub(super) async fn remove(&self) {
        self.containers.remove(&self.name).await;
    }
}

impl Drop for OwnedContainer {
    fn drop(&mut self) {
        let is_removed = !self.containers.live.lock().contains(&self.name);
        if !is_removed && let Ok(runtime) = Handle::try_current() {
            let (containers, name) = (Arc::clone(&self.containers), self.name.clone());
            self.containers.tasks.spawn_on(async move { containers.remove(&name).await }, &runtime);
        }
    }
}

impl Streams {
    /// The streams as the protocol library takes them. The program's input ends when it drops them.
    pub(super) fn transport(self) -> Transport {
        (TransportWriter::<RoleClient, _>::new(self.stdin, JsonRpcMessageCodec::default()), messages(self.stdout))
    }
}

/// The messages in a program's output, one on each line. Other lines are ignored.
fn messages(output: LimitedReader) -> BoxStream<'static, ServerJsonRpcMessage> {
    let messages = stream::unfold(BufReader::new(output), async |mut output| {
        let mut line = Vec::new();
        while output.read_until(b'\n', &mut line).await.is_ok_and(|bytes| bytes > 0) {
            let messages = read_messages(&line);
            if !messages.is_empty() {
                return Some((stream::iter(messages), output));
            }
            line.clear();
        }
        None
    });
    messages.flatten().boxed()
}

impl Containers {
    pub(super) fn new(engine: Arc<dyn Engine>, sandbox: Arc<Sandbox>, clock: Clock, tasks: TaskTracker) -> Self {
        Self { engine, sandbox, clock, tasks, live: Mutex::default() }
    }

    /// Starts a container for this server and user, if the sandbox is ready.
    pub(super) async fn start(
        self: &Arc<Self>,
        (server, user): (&str, &str),
        (image, command): (&str, &[String]),
        limit: &ReceiveLimit,
    ) -> Result<(OwnedContainer, Streams), McpError> {
        let failed = |cause: String| McpError::Sandbox { server: server.to_owned(), cause };
        if let SandboxReadiness::NotReady { reason, .. } = self.sandbox.state().await {
            return Err(failed(format!("the sandbox is not ready ({})", reason.as_str())));
        }
        let name = ContainerName::Mcp { id: JobId::generate() }.to_string();
        self.live.lock().insert(name.clone());
        let container = OwnedContainer { name: name.clone(), containers: Arc::clone(self), stderr: None };
        let spec = McpContainerSpec {
            name,
            server: server.to_owned(),
            owner: user.to_owned(),
            created_at: self.clock.now(),
            image: image.to_owned(),
            command: command.to_vec(),
            resources: RESOURCES,
        };
        // Continues if the caller goes away: the engine could go on with a start that is given up, after the removal.
        let engine = Arc::clone(&self.engine);
        let starting = self.tasks.spawn(async move { (engine.start_mcp(&spec).await, container) });
        let (started, mut container) = starting.await.map_err(|_| failed("the server is shutting down".to_owned()))?;
        let streams = started.map_err(|error| {
            tracing::warn!(mcp.server = server, %error, "the container of an MCP server does not start");
            failed(describe(&error))
        })?;
        container.stderr = Some(ErrorOutput::of(streams.stderr, &self.tasks));
        let stdout = LimitedReader { inner: streams.stdout, limit: limit.clone(), line_bytes: 0 };
        Ok((container, Streams { stdin: streams.stdin, stdout }))
    }

    async fn remove(&self, container: &str) {
        if let Err(error) = self.engine.remove(container).await {
            tracing::warn!(container.name = container, %error, "the container of an MCP server cannot be removed yet");
        }
        // If it is still there, it is removed with the leftovers.
        self.live.lock().remove(container);
    }

    /// Removes containers of MCP servers that belong to no connection, such as those of an earlier process.
    pub(super) async fn remove_leftovers(&self) {
        let containers = match self.engine.list().await {
            Ok(containers) => containers,
            Err(error) => {
                tracing::debug!(%error, "containers of MCP servers cannot be listed");
                return;
            }
        };
        for container in containers.into_iter().filter(|one| one.role == Some(ContainerRole::Mcp)) {
            let is_leftover = !self.live.lock().contains(&container.name);
            if is_leftover && let Err(error) = self.engine.remove(&container.name).await {
                tracing::warn!(container.name = container.name, %error, "the container of an MCP server cannot be removed yet");
            }
        }
    }
}

/// What a user may know of an engine's error; the log has the rest.
fn describe(error: &EngineError) -> String {
    match error {
        EngineError::Unreachable(_) => "the container engine does not answer".to_owned(),
        EngineError::ImageMissing(image) => format!("image {image} is not on the engine"),
        EngineError::RuntimeMissing(runtime) => format!("runtime {runtime} is not on the engine"),
        EngineError::PostureMismatch { field, .. } => format!("the container does not meet the posture: {field}"),
        EngineError::Refused(message) | EngineError::Other(message) if is_missing_program(message) => {
            "the container does not start: its image does not have the program of its command".to_owned()
        }
        EngineError::Refused(_) | EngineError::Other(_) => {
            "the container does not start; see the server's log".to_owned()
        }
    }
}

fn is_missing_program(message: &str) -> bool {
    let message = message.to_ascii_lowercase();
    message.contains("executable file not found") || message.contains("no such file or directory")
}

/// A server's output, one message on each line, cut at the connection's limits.
pub(super) struct LimitedReader {
    inner: Box<dyn AsyncRead + Send + Unpin>,
    limit: ReceiveLimit,
    /// Bytes of the current line.
    line_bytes: usize,
}

impl AsyncRead for LimitedReader {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<std::io::Result<()>> {
        let before = buffer.filled().len();
        ready!(Pin::new(&mut self.inner).poll_read(cx, buffer))?;
        let read = &buffer.filled()[before..];
        let mut line_bytes = self.line_bytes;
        let mut longest = 0;
        for part in read.split_inclusive(|byte| *byte == b'\n') {
            line_bytes += part.len();
            longest = longest.max(line_bytes);
            if part.ends_with(b"\n") {
                line_bytes = 0;
            }
        }
        self.line_bytes = line_bytes;
        let checked = self.limit.take(read.len()).and_then(|()| self.limit.check_message(longest));
        Poll::Ready(checked.map_err(std::io::Error::other))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::message::result_object;

    #[tokio::test]
    async fn lines_that_are_no_messages_end_nothing() {
        let output = b"\xef\xbb\xbf{\"jsonrpc\":\"2.0\",\"id\":1,\"result\":{\"a\":\"caf\xe9\"}}\r\n\
            started on port 80\n\x00\xff\n\n{}\n\
            {\"jsonrpc\":\"2.0\",\"id\":2,\"result\":{}}";
        let limit = ReceiveLimit::new();
        let reader = LimitedReader { inner: Box::new(&output[..]), limit: limit.clone(), line_bytes: 0 };
        let read: Vec<ServerJsonRpcMessage> = messages(reader).collect().await;
        let results = read.into_iter().map(|message| match message {
            ServerJsonRpcMessage::Response(response) => result_object(response.result),
            other => panic!("{other:?}"),
        });
        assert_eq!(results.collect::<Vec<_>>(), [Some("{\"a\":\"caf\u{fffd}\"}".to_owned()), Some("{}".to_owned())]);
        assert_eq!(limit.cause(), None);
    }
}
