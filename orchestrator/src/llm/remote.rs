//! Providers over the network: the only code that knows the client library. Owns one call, streamed and put together;
//! never retries, never chooses.

use std::{collections::HashMap, time::Duration};

use futures_util::StreamExt;
use genai::{
    ServiceTarget,
    adapter::AdapterKind,
    chat::{ChatRequest, ChatStream, ChatStreamEvent, StreamEnd},
    resolver::{AuthData, Endpoint},
};
use protocol::{Completion, CompletionRequest, TokenUsage};
use secrecy::{ExposeSecret, SecretString};

use self::address::Address;
use super::{
    arguments,
    error::{ErrorKind, GatewayError},
    fault::Fault,
    provider::add,
};

use crate::config::{ProviderKind, ProviderSettings};

mod address;
mod errors;
mod reply;
mod request;

const CONNECT_TIMEOUT: Duration = Duration::from_secs(10);
/// A shorter one is no secret.
const MIN_KEY_BYTES: usize = 3;

/// The wires of real providers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum RemoteKind {
    OpenAi,
    Anthropic,
    Ollama,
}

impl RemoteKind {
    const fn adapter(self) -> AdapterKind {
        match self {
            Self::OpenAi => AdapterKind::OpenAI,
            Self::Anthropic => AdapterKind::Anthropic,
            Self::Ollama => AdapterKind::Ollama,
        }
    }

    const fn own_address(self) -> &'static str {
        match self {
            Self::OpenAi => ProviderKind::OpenAi.default_base_url(),
            Self::Anthropic => ProviderKind::Anthropic.default_base_url(),
            Self::Ollama => ProviderKind::Ollama.default_base_url(),
        }
    }
}

/// One provider's wire.
pub(super) struct Remote {
    kind: RemoteKind,
    client: genai::Client,
    endpoint: Endpoint,
    address: Address,
    api_key: Option<SecretString>,
    silence: Duration,
}

impl Remote {
    pub(super) fn new(kind: RemoteKind, settings: &ProviderSettings) -> Result<Self, GatewayError> {
        let wrong = |field, message: String| GatewayError::Provider { provider: settings.name.clone(), field, message };
        let address = Address::of(kind, Some(&settings.base_url)).map_err(|message| wrong("base_url", message))?;
        let http = reqwest::Client::builder()
            .connect_timeout(CONNECT_TIMEOUT.min(Duration::from_secs(settings.timeout_seconds)))
            // A key in a provider's own header would follow a redirect to another host.
            .redirect(reqwest::redirect::Policy::none())
            .build()
            .map_err(|error| wrong("client", error.to_string()))?;
        let client =
            genai::Client::builder().with_reqwest(http).build().map_err(|error| wrong("client", error.to_string()))?;
        Ok(Self {
            kind,
            client,
            endpoint: Endpoint::from_owned(address.base.as_str()),
            address,
            api_key: settings.api_key.clone(),
            silence: Duration::from_secs(settings.timeout_seconds),
        })
    }

    /// Asks once. What came of an answer that was not finished, also of one that nobody waited for, is added to `wasted`.
    pub(super) async fn complete(
        &self,
        model: &str,
        request: &CompletionRequest,
        wasted: &mut TokenUsage,
    ) -> Result<Completion, Fault> {
        let chat = ChatRequest::new(request::messages(self.kind, &request.messages))
            .with_tools(request::tools(self.kind, request));
        // Always by target: a bare name would be routed by what it looks like.
        let target = ServiceTarget {
            endpoint: self.endpoint.clone(),
            auth: AuthData::Key(self.api_key.as_ref().map_or("none", |key| key.expose_secret()).to_owned()),
            model: genai::ModelIden::new(self.kind.adapter(), request::safe_model_name(self.kind, model)),
        };
        let mut options = request::options(self.kind, model, request, self.silence, self.api_key.as_ref());
        // A key goes into the same header on all wires but Anthropic's, and then it stands alone there.
        if let Some(basic) = &self.address.authorization
            && (self.api_key.is_none() || self.kind == RemoteKind::Anthropic)
        {
            options = options.with_extra_headers([("Authorization", basic.expose_secret().to_owned())]);
        }
        let answer = match self.client.exec_chat_stream(target, chat, Some(&options)).await {
            Ok(response) => drink(self.kind, response.stream, Seen::of(request, wasted)).await,
            Err(error) => Err(errors::fault(error)),
        };
        answer.map_err(|fault| self.without_key(fault))
    }

    /// Some providers quote the key or the address in their refusal. One of a letter or two is a placeholder for an endpoint that wants none,
    /// and stands in every word.
    fn without_key(&self, mut fault: Fault) -> Fault {
        fault.message = self.address.hide(&fault.message);
        if let Some(key) = &self.api_key
            && key.expose_secret().len() >= MIN_KEY_BYTES
        {
            fault.message = fault.message.replace(key.expose_secret(), "[key]");
        }
        fault
    }
}

/// What has come so far. An answer that ends otherwise than well, or is dropped half-way, is paid for all the same.
struct Seen<'a> {
    request: &'a CompletionRequest,
    wasted: &'a mut TokenUsage,
    text_bytes: usize,
    /// By call: the library gives a call's arguments as they stand, not what is new.
    call_bytes: HashMap<String, usize>,
    whole: bool,
}

impl<'a> Seen<'a> {
    fn of(request: &'a CompletionRequest, wasted: &'a mut TokenUsage) -> Self {
        Self { request, wasted, text_bytes: 0, call_bytes: HashMap::new(), whole: false }
    }

    fn usage(&self) -> TokenUsage {
        let written = self.text_bytes + self.call_bytes.values().sum::<usize>();
        if written == 0 {
            return TokenUsage::default();
        }
        TokenUsage { output_tokens: arguments::tokens_of_bytes(written), ..asked(self.request) }
    }
}

impl Drop for Seen<'_> {
    fn drop(&mut self) {
        if !self.whole {
            add(self.wasted, &self.usage());
        }
    }
}

/// The estimate of a request's own tokens.
fn asked(request: &CompletionRequest) -> TokenUsage {
    let bytes = serde_json::to_vec(&(&request.messages, &request.tools)).map_or(0, |body| body.len());
    TokenUsage { input_tokens: arguments::tokens_of_bytes(bytes), ..TokenUsage::default() }
}

async fn drink(kind: RemoteKind, mut stream: ChatStream, mut seen: Seen<'_>) -> Result<Completion, Fault> {
    while let Some(event) = stream.next().await {
        match event {
            Ok(ChatStreamEvent::Chunk(chunk) | ChatStreamEvent::ReasoningChunk(chunk)) => {
                seen.text_bytes += chunk.content.len();
            }
            Ok(ChatStreamEvent::ToolCallChunk(chunk)) => {
                let arguments = &chunk.tool_call.fn_arguments;
                let bytes = arguments.as_str().map_or_else(|| arguments.to_string().len(), str::len);
                seen.call_bytes.insert(chunk.tool_call.call_id, chunk.tool_call.fn_name.len() + bytes);
            }
            Ok(ChatStreamEvent::End(end)) => return finish(kind, end, seen),
            Ok(ChatStreamEvent::Start | ChatStreamEvent::ThoughtSignatureChunk(_) | ChatStreamEvent::Heartbeat) => {}
            Err(error) => return Err(errors::fault(error)),
        }
    }
    // The library ends a truncated stream without a word.
    Err(Fault::transient(ErrorKind::StreamInterrupted, "the answer ended in the middle"))
}

fn finish(kind: RemoteKind, end: StreamEnd, mut seen: Seen<'_>) -> Result<Completion, Fault> {
    if kind == RemoteKind::Ollama && end.captured_stop_reason.is_none() {
        // On this wire the library makes an end of its own for a stream that had none.
        return Err(Fault::transient(ErrorKind::StreamInterrupted, "the answer ended in the middle"));
    }
    let nothing = end.captured_content.is_none() && end.captured_reasoning_content.is_none();
    if nothing && end.captured_stop_reason.is_none() {
        return Err(Fault::transient(ErrorKind::InvalidResponse, "the stream held no answer"));
    }
    seen.whole = true;
    let estimate = TokenUsage { output_tokens: seen.usage().output_tokens, ..asked(seen.request) };
    Ok(reply::completion(end, estimate))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_answer_that_nobody_waits_for_is_paid_for_as_far_as_it_came() {
        let request = CompletionRequest {
            call_id: protocol::CallId::generate(),
            messages: vec![protocol::Message::User { content: "hello".to_owned() }],
            tools: vec![],
            tool_choice: protocol::ToolChoice::Auto,
            max_tokens: None,
            temperature: None,
        };
        let mut wasted = TokenUsage::default();
        drop(Seen::of(&request, &mut wasted));
        assert_eq!(wasted, TokenUsage::default(), "nothing came");
        let mut seen = Seen::of(&request, &mut wasted);
        seen.text_bytes = 400;
        drop(seen);
        let expected = TokenUsage { output_tokens: arguments::tokens_of_bytes(400), ..asked(&request) };
        assert_eq!(wasted, expected);
        let mut seen = Seen::of(&request, &mut wasted);
        (seen.text_bytes, seen.whole) = (400, true);
        drop(seen);
        assert_eq!(wasted, expected, "a whole answer tells its own usage");
    }
}
