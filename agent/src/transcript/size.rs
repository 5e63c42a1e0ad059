//! Sizes of requests against the model's context window. Pure.

use protocol::{Message, ToolDefinition};

use crate::{safety::MARKER_BYTES, transcript::calls_of};

/// Estimate of a token's size.
const BYTES_PER_TOKEN: u64 = 4;

/// Estimate of what a message adds beside its text, in bytes: role and delimiters.
const MESSAGE_BYTES: usize = 16;

/// Compaction threshold, percent of the context window less the output.
const COMPACT_AT_PERCENT: u64 = 80;

/// Tokens reserved for the output where a request sets no completion limit; at most a quarter of the window.
const OUTPUT_TOKENS: u64 = 4_096;

/// Recent messages that compaction keeps, in tokens; at most half of the window.
const KEPT_TOKENS: u64 = 8_000;

/// Maximum size of a summary in tokens; at most a twelfth of the window.
const SUMMARY_TOKENS: u64 = 4_000;

/// How the context window of a model is divided, in tokens.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct ContextBudget {
    context: u64,
    /// The window less the room for the output.
    usable: u64,
}

impl ContextBudget {
    /// The division of a window of `context` tokens; `None` when its size is not known.
    pub(crate) fn new(context: u64, max_output: Option<u64>) -> Option<Self> {
        let output = max_output.unwrap_or(OUTPUT_TOKENS).min(context / 4);
        (context > 0).then_some(Self { context, usable: context - output })
    }

    /// Size of a request from which on older messages are summarised.
    pub(crate) const fn threshold(&self) -> u64 {
        self.usable.saturating_mul(COMPACT_AT_PERCENT) / 100
    }

    /// Maximum size of the tool results that one reply adds, in bytes.
    pub(crate) fn result_bytes(&self) -> usize {
        bytes_of(self.usable / 4)
    }

    /// Maximum size of a summary, in bytes.
    pub(crate) fn summary_bytes(&self) -> usize {
        bytes_of(self.summary())
    }

    /// Maximum size of the record that a summary is made from, in bytes.
    pub(crate) fn record_bytes(&self) -> usize {
        bytes_of(self.usable.saturating_mul(6) / 10)
    }

    /// Recent messages that are kept beside `fixed` tokens that never change (system prompt, first prompt, tools). The
    /// request then has room to grow before the next compaction.
    pub(crate) fn kept(&self, fixed: u64) -> u64 {
        let free = self.threshold().saturating_sub(fixed).saturating_sub(self.summary());
        KEPT_TOKENS.min(self.context / 2).min(free / 2)
    }

    fn summary(&self) -> u64 {
        SUMMARY_TOKENS.min(self.usable / 12)
    }
}

fn bytes_of(tokens: u64) -> usize {
    usize::try_from(tokens.saturating_mul(BYTES_PER_TOKEN)).unwrap_or(usize::MAX)
}

/// The estimated number of tokens in this many bytes.
pub(crate) fn estimate_tokens(bytes: usize) -> u64 {
    u64::try_from(bytes).unwrap_or(u64::MAX).div_ceil(BYTES_PER_TOKEN)
}

/// The size of a message as a model reads it.
pub(crate) fn message_bytes(message: &Message) -> usize {
    let text = match message {
        Message::System { content } | Message::User { content } => content.len(),
        Message::Tool { content, .. } => content.len() + MARKER_BYTES,
        Message::Assistant { content, native, .. } => {
            content.len() + native.as_ref().map_or(0, |native| native.value.to_string().len())
        }
    };
    let calls: usize = calls_of(message).iter().map(|call| call.name.len() + call.arguments.to_string().len()).sum();
    text + calls + MESSAGE_BYTES
}

/// The size of a tool's definition as a model reads it.
pub(crate) fn definition_bytes(tool: &ToolDefinition) -> usize {
    tool.name.len() + tool.description.len() + tool.parameters.to_string().len() + MESSAGE_BYTES
}

/// The length to which each text is shortened so that all of them fit `total` bytes: the largest are shortened first.
pub(crate) fn common_limit(lengths: &[usize], total: usize) -> usize {
    let mut sorted = lengths.to_vec();
    sorted.sort_unstable();
    let mut left = total;
    for (index, length) in sorted.iter().enumerate() {
        let share = left / (sorted.len() - index);
        if *length > share {
            return share;
        }
        left -= length;
    }
    usize::MAX
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case::small(8_192, None, 4_915)]
    #[case::usual(128_000, None, 99_123)]
    #[case::output_is_known(128_000, Some(16_384), 89_292)]
    #[case::output_is_at_most_a_quarter(8_192, Some(16_384), 4_915)]
    fn the_threshold_is_four_fifths_of_what_the_output_leaves(
        #[case] context: u64,
        #[case] output: Option<u64>,
        #[case] threshold: u64,
    ) {
        assert_eq!(ContextBudget::new(context, output).unwrap().threshold(), threshold);
    }

    #[test]
    fn a_window_of_unknown_size_has_no_budget() {
        assert_eq!(ContextBudget::new(0, None), None);
    }

    proptest! {
        #[test]
        fn a_compacted_request_and_one_reply_with_results_fit_the_window(
            context in 2_000_u64..2_000_000, fixed_percent in 0_u64..30,
        ) {
            let budget = ContextBudget::new(context, None).unwrap();
            let fixed = budget.usable * fixed_percent / 100;
            let compacted = fixed + budget.summary() + budget.kept(fixed);
            prop_assert!(compacted <= budget.threshold());
            prop_assert!(compacted + estimate_tokens(budget.result_bytes()) <= budget.usable);
        }

        #[test]
        fn texts_cut_to_the_common_limit_fit_and_small_ones_stay(
            lengths in prop::collection::vec(0_usize..5_000, 0..40), total in 0_usize..20_000,
        ) {
            let limit = common_limit(&lengths, total);
            let kept: usize = lengths.iter().map(|length| (*length).min(limit)).sum();
            prop_assert!(kept <= total || lengths.is_empty(), "{kept} of {total}");
            if lengths.iter().sum::<usize>() <= total {
                prop_assert_eq!(limit, usize::MAX);
            } else {
                prop_assert!(kept + lengths.len() >= total, "{kept} of {total}: no byte is lost except by rounding");
            }
        }
    }
}
