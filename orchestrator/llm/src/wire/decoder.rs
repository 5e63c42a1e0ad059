//! Decodes one answer: frames in, deltas on the way, a completion at the end. Owns what is common to the wires.

use std::borrow::Cow;

use protocol::{Completion, FinishReason, NativeReply, TokenUsage};
use serde_json::Value;

use super::{
    Wire,
    framing::{Frame, Framer, Framing},
    halves::{self, Joiner},
    usage_counter::UsageCounter,
};

/// Maximum length of a tool's name. Providers allow 64 to 128 characters.
const MAX_TOOL_NAME_BYTES: usize = 256;

/// Why an answer cannot be used.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
pub enum DecodeError {
    /// It ended before its end mark.
    #[error("the answer ended before it was complete")]
    Interrupted,
    /// It does not follow the wire format.
    #[error("{0}")]
    Invalid(String),
    /// The provider reported an error in it, in this shape.
    #[error("the provider reported an error in its answer")]
    Provider(Value),
    #[error("the model answered with an image; images are not supported here")]
    Image,
    /// The model, or a filter behind it, refused; with the category, in the provider's word.
    #[error("the provider refused to answer: {0}")]
    Refused(String),
}

/// A piece of an answer, as it arrives.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Delta<'a> {
    Text(&'a str),
    Reasoning(&'a str),
}

/// Receives deltas.
pub(super) type OnDelta<'a> = &'a mut dyn FnMut(Delta<'_>);

/// Puts the payloads of one wire together.
pub(super) trait Assembler: Send {
    /// Takes a payload; `event` is the name of its server-sent event.
    fn payload(&mut self, event: Option<&str>, value: &Value, on_delta: OnDelta<'_>) -> Result<(), DecodeError>;

    /// Takes an end mark: `[DONE]`, or the end of an answer that came as one document.
    fn end_mark(&mut self);

    /// The usage reported, and the text written, so far.
    fn counter(&self) -> &UsageCounter;

    /// The answer. Its usage is filled in by the caller.
    fn into_completion(self: Box<Self>) -> Result<Completion, DecodeError>;
}

impl Wire {
    pub(super) const fn framing(self) -> Framing {
        match self {
            Self::OpenAiChat | Self::OpenAiResponses | Self::Anthropic => Framing::Events,
            Self::Ollama => Framing::Lines,
        }
    }
}

/// Decodes one answer.
pub struct Decoder {
    framer: Framer,
    assembler: Box<dyn Assembler>,
    /// Nothing counts after the end: some servers report then what became of their connection.
    has_ended: bool,
    text: Joiner,
    reasoning: Joiner,
}

impl Decoder {
    pub(super) fn new(wire: Wire, assembler: Box<dyn Assembler>) -> Self {
        let (text, reasoning) = (Joiner::default(), Joiner::default());
        Self { framer: Framer::new(wire.framing()), assembler, has_ended: false, text, reasoning }
    }

    /// Takes the next bytes, at any boundary.
    pub fn push(&mut self, bytes: &[u8], on_delta: OnDelta<'_>) -> Result<(), DecodeError> {
        let Self { framer, assembler, has_ended, text, reasoning } = self;
        let mut shown = |delta: Delta<'_>| show(delta, text, reasoning, on_delta);
        let taken = framer.push(bytes, &mut |frame| take(assembler.as_mut(), has_ended, &frame, &mut shown));
        if self.has_ended { Ok(()) } else { taken }
    }

    /// Whether the mark of the end has come. After it only the usage may follow.
    pub const fn has_ended(&self) -> bool {
        self.has_ended
    }

    /// The usage so far: as reported, else estimated; zero if nothing was received.
    pub fn usage(&self, prompt_tokens: u64) -> TokenUsage {
        self.assembler.counter().usage(prompt_tokens)
    }

    /// Ends the answer after the last bytes.
    pub fn finish(
        mut self,
        prompt_tokens: u64,
        on_delta: OnDelta<'_>,
    ) -> Result<Completion, (DecodeError, TokenUsage)> {
        let Self { framer, assembler, has_ended, text, reasoning } = &mut self;
        let mut shown = |delta: Delta<'_>| show(delta, text, reasoning, on_delta);
        let was_complete = *has_ended;
        let ended = framer.finish(&mut |frame| take(assembler.as_mut(), has_ended, &frame, &mut shown));
        let ended = if was_complete { Ok(()) } else { ended };
        let (text, reasoning) = (text.finish(), reasoning.finish());
        [Delta::Text(&text), Delta::Reasoning(&reasoning)]
            .into_iter()
            .filter(|delta| !delta.is_empty())
            .for_each(on_delta);
        let usage = self.usage(prompt_tokens);
        let decoded = ended.and_then(|()| self.assembler.into_completion());
        let mut completion = decoded.map_err(|error| (error, usage))?;
        join_texts(&mut completion);
        for call in &mut completion.tool_calls {
            call.name.truncate(call.name.floor_char_boundary(MAX_TOOL_NAME_BYTES));
        }
        Ok(Completion { usage, ..completion })
    }
}

impl Delta<'_> {
    const fn is_empty(&self) -> bool {
        match self {
            Self::Text(text) | Self::Reasoning(text) => text.is_empty(),
        }
    }
}

/// Shows a piece, with what was held back before it.
fn show(delta: Delta<'_>, text: &mut Joiner, reasoning: &mut Joiner, on_delta: OnDelta<'_>) {
    let (shown, is_text) = match delta {
        Delta::Text(piece) => (text.push(piece), true),
        Delta::Reasoning(piece) => (reasoning.push(piece), false),
    };
    if !shown.is_empty() {
        on_delta(if is_text { Delta::Text(&shown) } else { Delta::Reasoning(&shown) });
    }
}

fn join_texts(completion: &mut Completion) {
    let texts = [Some(&mut completion.content), completion.reasoning.as_mut()].into_iter().flatten();
    let names = completion.tool_calls.iter_mut().flat_map(|call| [&mut call.id, &mut call.name]);
    for text in texts.chain(names) {
        if let Cow::Owned(joined) = halves::join(text) {
            *text = joined;
        }
    }
    completion.tool_calls.iter_mut().for_each(|call| halves::join_all(&mut call.arguments));
    if let Some(native) = &mut completion.native {
        halves::join_all(&mut native.value);
    }
}

/// The events that are the last of an answer: of Anthropic, and of OpenAI's responses. Ollama's last line is `done`.
const LAST_EVENTS: [&str; 3] = ["message_stop", "response.completed", "response.incomplete"];

fn take(
    assembler: &mut dyn Assembler,
    has_ended: &mut bool,
    frame: &Frame,
    on_delta: OnDelta<'_>,
) -> Result<(), DecodeError> {
    match frame {
        Frame::Json { event, value } => {
            let taken = assembler.payload(event.as_deref(), value, on_delta);
            if *has_ended {
                return Ok(());
            }
            taken?;
            let kind = value["type"].as_str().or(event.as_deref());
            *has_ended = kind.is_some_and(|kind| LAST_EVENTS.contains(&kind)) || value["done"] == true;
            Ok(())
        }
        Frame::Done | Frame::EndOfDocument => {
            assembler.end_mark();
            *has_ended |= matches!(frame, Frame::Done);
            Ok(())
        }
    }
}

/// Refuses an answer without an end mark, or with nothing but an end mark.
pub(super) fn check_end(reported: Option<FinishReason>, has_end_mark: bool, is_empty: bool) -> Result<(), DecodeError> {
    match reported {
        None if !has_end_mark => Err(DecodeError::Interrupted),
        None if is_empty => Err(DecodeError::Invalid("the answer is empty and has no end".to_owned())),
        _ => Ok(()),
    }
}

/// The provider's own form of a reply; its maker is filled in by the caller.
pub(super) const fn native(value: Value) -> NativeReply {
    NativeReply { maker: String::new(), value, prefix: None }
}

/// A completion to be filled in.
pub(super) fn empty_completion() -> Completion {
    Completion {
        content: String::new(),
        tool_calls: Vec::new(),
        reasoning: None,
        native: None,
        finish_reason: FinishReason::Stop,
        usage: TokenUsage::default(),
        notice: None,
        text_tool_calls: None,
    }
}

/// The finish reason of a reply with tool calls is `tool_calls`, whatever the provider reports, unless it was cut off.
pub(super) fn finish_reason(reported: Option<FinishReason>, has_calls: bool) -> FinishReason {
    match reported {
        Some(FinishReason::Stop) | None if has_calls => FinishReason::ToolCalls,
        Some(reason) => reason,
        None => FinishReason::Stop,
    }
}
