//! Refusals that are about the output limit: its name, its maximum, and what the prompt, the account or the tokens of a minute leave
//! of it. Pure.

use config::{Dialect, OutputLimit};

use super::{Refusal, Row, has_any};

/// The lowest output limit that an account's credit or rate may lead to. Below it there is no answer worth having.
const MIN_OUTPUT_TOKENS: u64 = 1_024;

pub(super) fn output_limit(dialect: &Dialect, _refusal: &Refusal<'_>, text: &str) -> Row {
    let used = dialect.output_limit.unwrap_or_default();
    let other = match used {
        OutputLimit::MaxTokens => OutputLimit::MaxCompletionTokens,
        OutputLimit::MaxCompletionTokens => OutputLimit::MaxTokens,
    };
    // A limit that is too high is named, too.
    let is_named = text.contains(other.as_str()) && has_any(text, &["unsupported", "not support", "instead"]);
    let is_unknown =
        text.contains(used.as_str()) && has_any(text, &["extra", "unknown", "unrecognized", "not permitted"]);
    (is_named || is_unknown).then(|| Dialect { output_limit: Some(other), ..Dialect::default() })
}

pub(super) fn max_output_tokens(_dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let is_about = has_any(
        text,
        &["max_tokens", "max_completion_tokens", "max_new_tokens", "completion tokens", "output tokens", "afford"],
    );
    let after = |phrase: &str| text.split(phrase).nth(1).and_then(leading_number);
    let before =
        |phrase: &str| text.split(phrase).next().filter(|head| head.len() < text.len()).and_then(trailing_number);
    let limit = after("at most ")
        .or_else(|| after("can only afford "))
        .or_else(|| after("less than or equal to "))
        .or_else(|| after("[1, "))
        .or_else(|| after("must be <= "))
        .or_else(|| after("model limit of "))
        .or_else(|| after("maximum output tokens ("))
        .or_else(|| before(", which is the maximum allowed number of output tokens"))?;
    let is_smaller = (1..refusal.max_output_tokens).contains(&limit);
    (is_about && is_smaller).then(|| Dialect { max_output_tokens: Some(limit), ..Dialect::default() })
}

/// `maximum context length is 8192 tokens and your request has 2800 input tokens`: the prompt fits, and the answer may be shorter
/// (vllm-project/vllm#42474).
pub(super) fn rest_of_context(_dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let window = text.split("maximum context length is ").nth(1).and_then(leading_number)?;
    let prompt = [" input tokens", " in the messages"]
        .into_iter()
        .find_map(|phrase| text.split_once(phrase).and_then(|(head, _)| trailing_number(head)))?;
    // Some say "at least" this many.
    let rest = window.checked_sub(prompt + window / 64)?;
    let is_enough = (MIN_OUTPUT_TOKENS..refusal.max_output_tokens).contains(&rest);
    is_enough.then(|| Dialect { max_output_tokens: Some(rest), ..Dialect::default() })
}

/// What an account's credit (`OpenRouter`), or the tokens of a minute (Groq, OpenAI), leave for the answer.
pub(super) fn smaller_answer(dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let row = if refusal.status == 402 { max_output_tokens } else { tokens_of_a_minute };
    row(dialect, refusal, text).filter(|smaller| smaller.max_output_tokens >= Some(MIN_OUTPUT_TOKENS))
}

/// `Request too large for model … on tokens per minute (TPM): Limit 8000, Requested 32979`: the output limit counts, whatever the
/// answer (zeeyado/koassistant.koplugin#106).
fn tokens_of_a_minute(_dialect: &Dialect, refusal: &Refusal<'_>, text: &str) -> Row {
    let after = |phrase: &str| text.split(phrase).nth(1).and_then(leading_number);
    let (limit, requested) = (after("limit ")?, after("requested ")?);
    let excess = requested.checked_sub(limit).filter(|_| text.contains("request too large"))?;
    let limit = refusal.max_output_tokens.checked_sub(excess)?;
    Some(Dialect { max_output_tokens: Some(limit), ..Dialect::default() })
}

pub(super) fn leading_number(text: &str) -> Option<u64> {
    let digits: String = text
        .trim_start_matches(['`', '\'', '"'])
        .chars()
        .take_while(|char| char.is_ascii_digit() || *char == ',')
        .filter(char::is_ascii_digit)
        .collect();
    digits.parse().ok()
}

fn trailing_number(text: &str) -> Option<u64> {
    let before = text.trim_end_matches(|char: char| char.is_ascii_digit());
    text[before.len()..].parse().ok()
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::{super::tests::corrected, *};

    #[test]
    fn a_limit_that_is_too_high_is_lowered_and_not_renamed() {
        let known = Dialect { output_limit: Some(OutputLimit::MaxCompletionTokens), ..Dialect::default() };
        let text = "max_tokens is too large: 16384. This model supports at most 4096 completion tokens.";
        let lowered = Dialect { max_output_tokens: Some(4_096), ..Dialect::default() };
        assert_eq!(corrected(&known, 400, text), Some(lowered));
    }

    #[rstest]
    // Groq; the same words with another status are OpenAI's.
    #[case(413, "Request too large for model `x` on tokens per minute (TPM): Limit 8000, Requested 16384", 8_000)]
    #[case(429, "Request too large for gpt-4o on tokens per min (TPM): Limit 30000, Requested 30601.", 15_783)]
    #[case(402, "You requested up to 16384 tokens, but can only afford 2048.", 2_048)]
    #[case(400, "`max_tokens` must be less than or equal to `8192`, the maximum value for this model", 8_192)]
    #[case(
        400,
        "'max_tokens' or 'max_completion_tokens' is too large: 16384. This model's maximum context length is 8192 tokens and your request has 2800 input tokens",
        5_264
    )]
    #[case(
        400,
        "This model's maximum context length is 16384 tokens. However, you requested 16384 output tokens and your prompt contains at least 2900 input tokens",
        13_228
    )]
    #[case(
        400,
        "This model's maximum context length is 8192 tokens. However, you requested 18384 tokens (2000 in the messages, 16384 in the completion).",
        6_064
    )]
    #[case(422, "`max_new_tokens` must be <= 4096. Given: 16384", 4_096)]
    fn an_answer_that_may_be_smaller_is(#[case] status: u16, #[case] text: &str, #[case] tokens: u64) {
        let smaller = Dialect { max_output_tokens: Some(tokens), ..Dialect::default() };
        assert_eq!(corrected(&Dialect::default(), status, text), Some(smaller));
    }
}
