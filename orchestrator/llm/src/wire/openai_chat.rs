//! OpenAI chat completions, also as compatible servers speak it. Owns the names of what goes back to
//! a provider with its reply.

pub(super) mod patch;
pub(super) mod request;
pub(super) mod stream;
pub(super) mod usage;

/// Reasoning as text, under one of two names. Servers that write both read the second.
const REASONING_FIELDS: [&str; 2] = ["reasoning_content", "reasoning"];
/// Reasoning as a list of parts, some of them signed or encrypted (`OpenRouter`).
const REASONING_DETAILS: &str = "reasoning_details";
/// Signatures of a reply and of its calls (Google).
const EXTRA_CONTENT: &str = "extra_content";
/// The signatures of the calls, in the order of the calls. Not a field of the format.
const CALLS: &str = "calls";
