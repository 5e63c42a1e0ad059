//! Usage of an answer: as the provider reports it, else estimated from the bytes received.

use protocol::TokenUsage;
use serde_json::Value;

use super::{
    Wire, anthropic,
    framing::{Frame, Framer},
    ollama, openai_chat, openai_responses,
};
use crate::arguments::tokens_of_bytes;

/// Token counts as a provider reports them. All are cumulative, so a smaller one never replaces a larger one: proxies end
/// streams with zeros.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(super) struct ReportedUsage {
    pub(super) input: Option<u64>,
    pub(super) output: Option<u64>,
    pub(super) cache_read: Option<u64>,
    pub(super) cache_write: Option<u64>,
}

/// A larger count is an error of the server, and the estimate is used: sums of such counts would exceed the integers of
/// the database. Today's largest context windows have 10 million tokens.
const MAX_REPORTED_TOKENS: u64 = 1_000_000_000;

/// Counts one answer.
#[derive(Debug, Clone, Default)]
pub(super) struct UsageCounter {
    reported: ReportedUsage,
    /// The reported input leaves out what was read from and written to the cache.
    input_excludes_cache: bool,
    written_bytes: usize,
    is_complete: bool,
}

impl UsageCounter {
    /// Takes counts of a wire whose input includes the cached tokens.
    pub(super) fn report(&mut self, counts: ReportedUsage) {
        let known = &mut self.reported;
        let plausible = |count: Option<u64>| count.filter(|tokens| *tokens <= MAX_REPORTED_TOKENS);
        known.input = plausible(counts.input).max(known.input);
        known.output = plausible(counts.output).max(known.output);
        known.cache_read = plausible(counts.cache_read).max(known.cache_read);
        known.cache_write = plausible(counts.cache_write).max(known.cache_write);
    }

    /// Takes counts of a wire whose input leaves the cached tokens out.
    pub(super) fn report_excluding_cache(&mut self, counts: ReportedUsage) {
        self.input_excludes_cache = true;
        self.report(counts);
    }

    /// Counts text, reasoning and arguments of the answer.
    pub(super) fn wrote(&mut self, text: &str) {
        self.written_bytes += text.len();
    }

    /// The answer is complete: its reported usage is final.
    pub(super) fn complete(&mut self) {
        self.is_complete = true;
    }

    pub(super) fn usage(&self, prompt_tokens: u64) -> TokenUsage {
        let ReportedUsage { input, output, cache_read, cache_write } = self.reported;
        let (cache_read, cache_write) = (cache_read.unwrap_or(0), cache_write.unwrap_or(0));
        let cached = cache_read.saturating_add(cache_write);
        let reported_input =
            if self.input_excludes_cache { input.map(|input| input.saturating_add(cached)) } else { input };
        // No request has an empty prompt: a zero means that the server does not count.
        let reported_input = reported_input.filter(|tokens| *tokens > 0);
        if !self.is_complete && self.written_bytes == 0 && reported_input.is_none() {
            return TokenUsage::default();
        }
        let written = tokens_of_bytes(self.written_bytes);
        let output_tokens = match output.filter(|tokens| *tokens > 0) {
            Some(output) if self.is_complete => output,
            // Counts at the beginning of a stream do not include the rest of it.
            output => output.unwrap_or(0).max(written),
        };
        let input_tokens = reported_input.unwrap_or(prompt_tokens);
        TokenUsage {
            input_tokens,
            output_tokens,
            cache_read_tokens: cache_read.min(input_tokens),
            cache_write_tokens: cache_write.min(input_tokens.saturating_sub(cache_read)),
        }
    }
}

/// Reads usage from the bytes of an answer that is relayed unchanged. Never fails and never delays bytes: usage that it
/// cannot read is estimated.
pub struct UsageTap {
    framer: Framer,
    read: fn(Option<&str>, &Value, &mut UsageCounter),
    counter: UsageCounter,
    prompt_tokens: u64,
    is_readable: bool,
    unreadable_bytes: usize,
}

impl UsageTap {
    pub(super) fn new(wire: Wire, prompt_tokens: u64) -> Self {
        let read = match wire {
            Wire::OpenAiChat => openai_chat::usage::read,
            Wire::OpenAiResponses => openai_responses::usage::read,
            Wire::Anthropic => anthropic::usage::read,
            Wire::Ollama => ollama::usage::read,
        };
        Self {
            framer: Framer::new(wire.framing()),
            read,
            counter: UsageCounter::default(),
            prompt_tokens,
            is_readable: true,
            unreadable_bytes: 0,
        }
    }

    /// Takes bytes that are relayed.
    pub fn observe(&mut self, bytes: &[u8]) {
        if !self.is_readable {
            self.unreadable_bytes += bytes.len();
            return;
        }
        let Self { framer, read, counter, .. } = self;
        self.is_readable = framer
            .push(bytes, &mut |frame| {
                take(&frame, *read, counter);
                Ok(())
            })
            .is_ok();
    }

    /// The usage of the answer. One that was cut off is charged for what was received.
    pub fn finish(mut self) -> TokenUsage {
        if self.is_readable {
            let Self { framer, read, counter, .. } = &mut self;
            // An incomplete payload at the end was cut off.
            let _ = framer.finish(&mut |frame| {
                take(&frame, *read, counter);
                Ok(())
            });
        }
        self.counter.written_bytes += self.unreadable_bytes;
        self.counter.usage(self.prompt_tokens)
    }
}

fn take(frame: &Frame, read: fn(Option<&str>, &Value, &mut UsageCounter), counter: &mut UsageCounter) {
    match frame {
        Frame::Json { event, value } => read(event.as_deref(), value, counter),
        Frame::Done | Frame::EndOfDocument => counter.complete(),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_implausible_count_is_estimated_and_an_earlier_one_is_kept() {
        let mut counter = UsageCounter::default();
        counter.report(ReportedUsage { cache_read: Some(7), ..ReportedUsage::default() });
        let absurd = Some(MAX_REPORTED_TOKENS + 1);
        counter.report(ReportedUsage {
            input: absurd,
            output: absurd,
            cache_read: Some(u64::MAX),
            cache_write: absurd,
        });
        counter.wrote(&"x".repeat(400));
        counter.complete();
        let usage = counter.usage(50);
        let expected = TokenUsage { input_tokens: 50, output_tokens: 100, cache_read_tokens: 7, cache_write_tokens: 0 };
        assert_eq!(usage, expected);
    }
}
