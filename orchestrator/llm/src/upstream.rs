//! One provider over HTTP: its address, its key and one call. Owns timeouts, the authentication of each wire and that
//! no secret leaves in an error. Never retries, chooses a provider or counts money.

mod address;
mod classify;

use std::time::Duration;

use agent::safety::LeakDetector;
use protocol::{Completion, CompletionRequest, FinishReason, Message};
use reqwest::header::{ACCEPT, AUTHORIZATION, CONTENT_TYPE, HeaderMap, HeaderName, HeaderValue};
use secrecy::{ExposeSecret, SecretString};
use serde_json::Value;
use tokio::time::{Instant, timeout, timeout_at};

use self::address::Address;
use super::{
    dialect::{Dialects, Refusal},
    error::{ErrorKind, GatewayError},
    gateway::CallContext,
    provider::{
        CallProgress,
        attempt_error::{AttemptError, Disposition},
    },
    serve::JOB_TITLE_HEADER,
    wire::{DecodeError, Decoder, Delta, RequestOptions, Wire},
};
use base::digest;
use config::{Dialect, OpenAiWire, ProviderKind, ProviderSettings};

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// As much of a key's digest as tells two accounts apart.
const KEY_DIGEST_CHARS: usize = 8;
/// Shorter keys are not redacted: placeholder keys for endpoints that need none are short and occur within words.
const MIN_REDACTED_KEY_BYTES: usize = 3;
/// The version of Anthropic's wire that the codec speaks.
const ANTHROPIC_VERSION: &str = "2023-06-01";
/// How long the usage may come after the end of an answer.
const AFTER_END: Duration = Duration::from_secs(1);
/// Maximum bytes read from an error response.
const MAX_ERROR_BODY_BYTES: usize = 64 << 10;

/// One provider's endpoint.
pub(super) struct Upstream {
    kind: ProviderKind,
    client: reqwest::Client,
    address: Address,
    headers: HeaderMap,
    api_key: Option<SecretString>,
    /// The address and the key, as far as they are shown: what a reply is signed with may be the account's.
    account: String,
    idle_timeout: Duration,
    dialects: Dialects,
    sends_job_title: bool,
}

impl Upstream {
    /// An endpoint that is reached over the network.
    pub(super) fn new(settings: &ProviderSettings) -> Result<Self, GatewayError> {
        Self::build(settings, settings.base_url.as_str(), |client| client)
    }

    /// A script that is served on this Unix socket.
    pub(super) fn to_socket(settings: &ProviderSettings, socket: &str) -> Result<Self, GatewayError> {
        let socket = socket.to_owned();
        // A name that no preset is for.
        let upstream = Self::build(settings, "http://script.invalid/v1", move |client| client.unix_socket(socket))?;
        Ok(Self { sends_job_title: true, ..upstream })
    }

    fn build(
        settings: &ProviderSettings,
        base_url: &str,
        connector: impl FnOnce(reqwest::ClientBuilder) -> reqwest::ClientBuilder,
    ) -> Result<Self, GatewayError> {
        let wrong = |field, message: String| GatewayError::Provider { provider: settings.name.clone(), field, message };
        let address = Address::of(base_url).map_err(|message| wrong("base_url", message))?;
        let headers = headers(settings.kind, &address, settings.api_key.as_ref())
            .ok_or_else(|| wrong("api_key", "must not contain control characters".to_owned()))?;
        let idle_timeout = Duration::from_secs(settings.timeout_seconds);
        let client = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT.min(idle_timeout))
            // A key in a provider's own header would follow a redirect to another host.
            .redirect(reqwest::redirect::Policy::none());
        let key = settings.api_key.as_ref().map(|key| digest::sha256_hex(key.expose_secret().as_bytes()));
        let key = key.as_deref().map_or("no-key", |key| &key[..KEY_DIGEST_CHARS]);
        let account = format!("{}{} {key}", address.host(), address.url.path().trim_end_matches('/'));
        let client = connector(client).build().map_err(|error| wrong("client", error.to_string()))?;
        Ok(Self {
            kind: settings.kind,
            client,
            headers,
            api_key: settings.api_key.clone(),
            account,
            idle_timeout,
            dialects: Dialects::new(&address.url, settings.dialect.clone()),
            address,
            sends_job_title: false,
        })
    }

    pub(super) const fn dialects(&self) -> &Dialects {
        &self.dialects
    }

    /// Makes one call. The usage of an answer that is not complete, or whose caller is gone, is added to `progress`.
    pub(super) async fn complete(
        &self,
        request: &CompletionRequest,
        options: CallOptions<'_>,
        context: &CallContext<'_>,
        progress: &mut CallProgress,
    ) -> Result<Completion, AttemptError> {
        let mut dialect = self.dialects.of_call(options.model, &request.tools);
        let answer = loop {
            let current = dialect.current();
            let max_output_tokens = options.max_output_tokens.min(current.max_output_tokens.unwrap_or(u64::MAX));
            let wire = self.wire(&current);
            let maker = format!("{wire:?} {} {}", self.account, options.model);
            let effort = current.effort.unwrap_or_default().word(context.effort);
            let sent = RequestOptions {
                maker: &maker,
                effort,
                ..RequestOptions::new(options.model, max_output_tokens, options.context_tokens, &current)
            };
            let (status, body, error) = match self.ask(wire, request, sent, context, progress).await {
                Ok(completion) => {
                    dialect.succeeded();
                    break Ok(completion);
                }
                Err(AskError::Failed(error)) => break Err(error),
                Err(AskError::Refused { status, body, retry_after }) => {
                    let error = AttemptError::of_status(status, &body, retry_after);
                    (status, body, error)
                }
                Err(AskError::RefusedInAnswer(event)) => {
                    (AttemptError::status_of_event(&event), event.to_string(), AttemptError::of_event(&event))
                }
            };
            let tools: Vec<&str> = offered(request, &current).collect();
            let refusal = Refusal {
                status,
                text: &body,
                max_output_tokens,
                has_effort: effort.is_some(),
                has_native: has_native(request),
                tools: &tools,
            };
            if !dialect.correct(&refusal) {
                break Err(error);
            }
        };
        answer.map_err(|error| self.redacted(error, context.detector))
    }

    /// The format of a call.
    fn wire(&self, dialect: &Dialect) -> Wire {
        match (self.kind, dialect.wire.unwrap_or_default()) {
            (ProviderKind::OpenAi, OpenAiWire::Responses) => Wire::OpenAiResponses,
            (ProviderKind::OpenAi | ProviderKind::Scripted, _) => Wire::OpenAiChat,
            (ProviderKind::Anthropic, _) => Wire::Anthropic,
            (ProviderKind::Ollama, _) => Wire::Ollama,
        }
    }

    async fn ask(
        &self,
        wire: Wire,
        request: &CompletionRequest,
        options: RequestOptions<'_>,
        context: &CallContext<'_>,
        progress: &mut CallProgress,
    ) -> Result<Completion, AskError> {
        let body = wire.request(request, &options);
        let mut headers = self.headers.clone();
        if let Some(title) = context.job_title.filter(|_| self.sends_job_title)
            && let Ok(title) = HeaderValue::from_bytes(title.replace(char::is_control, " ").as_bytes())
        {
            headers.insert(JOB_TITLE_HEADER, title);
        }
        let response = self.send(wire, &body, headers).await?;
        let (decoder, prompt_tokens) = (Some(wire.decoder()), wire.estimate(&body));
        let answer = IncompleteAnswer { decoder, prompt_tokens, progress: &mut *progress };
        drop(body);
        let mut completion = self.receive(response, answer, context).await?;
        if fills_context(&completion, options.context_tokens) {
            agent::add_usage(&mut progress.usage, &completion.usage);
            let message = "the prompt leaves no room for an answer in the context of the model";
            return Err(AttemptError::new(Disposition::Fatal, ErrorKind::ContextLength, message).into());
        }
        if let Some(native) = &mut completion.native {
            options.maker.clone_into(&mut native.maker);
        }
        Ok(completion)
    }

    /// Sends a request body and waits for the head of the answer.
    async fn send(&self, wire: Wire, body: &Value, headers: HeaderMap) -> Result<reqwest::Response, AskError> {
        let request = self.client.post(self.address.of_call(wire)).headers(headers).body(body.to_string());
        let response = timeout(self.idle_timeout, request.send())
            .await
            .map_err(|_| classify::idle_timeout(self.idle_timeout))?
            .map_err(classify::transport)?;
        let kind = response.headers().get(CONTENT_TYPE).map(HeaderValue::as_bytes).unwrap_or_default();
        if response.status().is_success() && kind.starts_with(b"text/html") {
            let message = "the answer is a web page; check the base URL of this provider";
            return Err(AttemptError::new(Disposition::Failover, ErrorKind::NotFound, message).into());
        }
        if response.status().is_success() {
            return Ok(response);
        }
        let (status, retry_after) = (response.status().as_u16(), classify::retry_after(response.headers()));
        let body = self.read_error_body(response).await;
        Err(AskError::Refused { status, body, retry_after })
    }

    async fn read_error_body(&self, mut response: reqwest::Response) -> String {
        let mut body = Vec::new();
        while let Ok(Ok(Some(chunk))) = timeout(self.idle_timeout, response.chunk()).await {
            body.extend_from_slice(&chunk);
            if body.len() >= MAX_ERROR_BODY_BYTES {
                body.truncate(MAX_ERROR_BODY_BYTES);
                break;
            }
        }
        String::from_utf8_lossy(&body).into_owned()
    }

    async fn receive(
        &self,
        mut response: reqwest::Response,
        mut answer: IncompleteAnswer<'_>,
        context: &CallContext<'_>,
    ) -> Result<Completion, AskError> {
        let is_streamed = context.deltas.is_some_and(|deltas| !deltas.discards());
        let (mut pending, mut until) = (Vec::new(), None);
        loop {
            let chunk = if answer.has_ended() {
                // Some servers neither close the connection nor end the body well.
                let until = *until.get_or_insert_with(|| Instant::now() + AFTER_END);
                timeout_at(until, response.chunk()).await.map(Result::unwrap_or_default).unwrap_or_default()
            } else {
                timeout(self.idle_timeout, response.chunk())
                    .await
                    .map_err(|_| classify::idle_timeout(self.idle_timeout))?
                    .map_err(classify::transport)?
            };
            let mut on_delta = |delta: Delta<'_>| {
                if is_streamed {
                    pending.push(owned(delta));
                }
            };
            let completion = match chunk {
                Some(bytes) => answer.push(&bytes, &mut on_delta).map(|()| None),
                None => answer.finish(&mut on_delta).map(Some),
            };
            for delta in pending.drain(..) {
                answer.progress.has_streamed = true;
                context.send(delta).await;
            }
            match completion {
                Ok(Some(completion)) => return Ok(completion),
                Ok(None) => {}
                // A proxy answers before it has asked the provider.
                Err(DecodeError::Provider(event)) if !answer.progress.has_streamed => {
                    return Err(AskError::RefusedInAnswer(event));
                }
                Err(error) => return Err(classify::decoding(error).into()),
            }
        }
    }

    /// Providers quote the key, the address or what they received in their refusals. Nothing but this has seen the
    /// error before.
    fn redacted(&self, mut error: AttemptError, detector: Option<&LeakDetector>) -> AttemptError {
        error.message = self.address.redact(&error.message);
        if let Some(key) = &self.api_key
            && key.expose_secret().len() >= MIN_REDACTED_KEY_BYTES
        {
            error.message = error.message.replace(key.expose_secret(), "[key]");
        }
        if let Some(detector) = detector {
            detector.redact_text(&mut error.message);
        }
        error.shorten();
        error
    }
}

/// What a call asks for besides the conversation.
#[derive(Debug, Clone, Copy)]
pub(super) struct CallOptions<'a> {
    pub(super) model: &'a str,
    /// The limit of completion tokens.
    pub(super) max_output_tokens: u64,
    /// The model's context size.
    pub(super) context_tokens: u64,
}

/// Why a request has no answer.
enum AskError {
    /// The provider answered with this status, before anything was streamed.
    Refused {
        status: u16,
        body: String,
        retry_after: Option<Duration>,
    },
    /// The answer is this error, before anything was streamed.
    RefusedInAnswer(Value),
    Failed(AttemptError),
}

impl From<AttemptError> for AskError {
    fn from(error: AttemptError) -> Self {
        Self::Failed(error)
    }
}

/// Whether nothing was written because the prompt fills the context: some servers report no error then.
fn fills_context(completion: &Completion, context_tokens: u64) -> bool {
    completion.finish_reason == FinishReason::Length
        && completion.content.is_empty()
        && completion.tool_calls.is_empty()
        && completion.usage.input_tokens >= context_tokens / 10 * 9
}

/// The names of the tools that a request offers.
fn offered<'a>(request: &'a CompletionRequest, dialect: &'a Dialect) -> impl Iterator<Item = &'a str> {
    let is_left_out = |name: &&str| dialect.left_out_tools.iter().flatten().any(|left_out| left_out == name);
    request.tools.iter().map(|tool| tool.name.as_str()).filter(move |name| !is_left_out(name))
}

/// Whether a request has a reply in a provider's own form.
fn has_native(request: &CompletionRequest) -> bool {
    request.messages.iter().any(|message| matches!(message, Message::Assistant { native: Some(_), .. }))
}

/// The headers of every call; none if the key cannot be one.
fn headers(kind: ProviderKind, address: &Address, key: Option<&SecretString>) -> Option<HeaderMap> {
    let mut headers = HeaderMap::new();
    headers.insert(CONTENT_TYPE, HeaderValue::from_static("application/json"));
    headers.insert(ACCEPT, HeaderValue::from_static("text/event-stream, application/json, */*;q=0.1"));
    if kind == ProviderKind::Anthropic {
        headers.insert("anthropic-version", HeaderValue::from_static(ANTHROPIC_VERSION));
    }
    let mut secret = |name: HeaderName, value: String| {
        let mut value = HeaderValue::from_str(&value).ok()?;
        value.set_sensitive(true);
        headers.insert(name, value);
        Some(())
    };
    // A user in the URL and a key share a header on all wires but Anthropic's; the key is the more specific of the two.
    if let Some(basic) = &address.authorization {
        secret(AUTHORIZATION, basic.expose_secret().to_owned())?;
    }
    if let Some(key) = key.map(ExposeSecret::expose_secret) {
        match kind {
            ProviderKind::Anthropic => secret(HeaderName::from_static("x-api-key"), key.to_owned())?,
            _ if address.is_azure() => secret(HeaderName::from_static("api-key"), key.to_owned())?,
            _ => secret(AUTHORIZATION, format!("Bearer {key}"))?,
        }
    }
    Some(headers)
}

/// An answer that has not been decoded to its end. On drop, the usage so far is recorded.
struct IncompleteAnswer<'a> {
    decoder: Option<Decoder>,
    prompt_tokens: u64,
    progress: &'a mut CallProgress,
}

impl IncompleteAnswer<'_> {
    fn has_ended(&self) -> bool {
        self.decoder.as_ref().is_some_and(Decoder::has_ended)
    }

    fn push(&mut self, bytes: &[u8], on_delta: &mut dyn FnMut(Delta<'_>)) -> Result<(), DecodeError> {
        let Some(decoder) = &mut self.decoder else { return Ok(()) };
        decoder.push(bytes, on_delta)
    }

    fn finish(&mut self, on_delta: &mut dyn FnMut(Delta<'_>)) -> Result<Completion, DecodeError> {
        let decoder = self.decoder.take().ok_or(DecodeError::Interrupted)?;
        decoder.finish(self.prompt_tokens, on_delta).map_err(|(error, usage)| {
            agent::add_usage(&mut self.progress.usage, &usage);
            error
        })
    }
}

/// A delta that outlives the bytes that it was read from.
fn owned(delta: Delta<'_>) -> agent::Delta {
    match delta {
        Delta::Text(text) => agent::Delta::Text(text.to_owned()),
        Delta::Reasoning(text) => agent::Delta::Reasoning(text.to_owned()),
    }
}

impl Drop for IncompleteAnswer<'_> {
    fn drop(&mut self) {
        if let Some(decoder) = &self.decoder {
            agent::add_usage(&mut self.progress.usage, &decoder.usage(self.prompt_tokens));
        }
    }
}

#[cfg(test)]
mod tests {
    use protocol::TokenUsage;

    use super::*;

    fn of(progress: &mut CallProgress) -> IncompleteAnswer<'_> {
        IncompleteAnswer { decoder: Some(Wire::OpenAiChat.decoder()), prompt_tokens: 9, progress }
    }

    #[test]
    fn an_abandoned_answer_is_charged_for_what_had_arrived() {
        let mut progress = CallProgress::default();
        drop(of(&mut progress));
        assert_eq!(progress.usage, TokenUsage::default(), "nothing came");
        let text = "x".repeat(400);
        let chunk = serde_json::json!({"choices": [{"delta": {"content": text}}]});
        let mut answer = of(&mut progress);
        answer.push(format!("data: {chunk}\n\n").as_bytes(), &mut |_| {}).unwrap();
        drop(answer);
        let expected = TokenUsage { input_tokens: 9, output_tokens: 100, ..TokenUsage::default() };
        assert_eq!(progress.usage, expected);
        let mut answer = of(&mut progress);
        answer.push(format!("data: {chunk}\n\ndata: [DONE]\n\n").as_bytes(), &mut |_| {}).unwrap();
        assert_eq!(answer.finish(&mut |_| {}).unwrap().usage, expected);
        drop(answer);
        assert_eq!(progress.usage, expected, "a complete answer has its own usage");
    }
}
