//! The limits and options of one loop. Plain values; the caller says where they come from.

use std::time::Duration;

/// Default time for which a model that does not answer is asked again.
pub const DEFAULT_OUTAGE_PATIENCE: Duration = Duration::from_mins(5);

/// The limits and options of one loop.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Maximum number of model calls, planning's and compaction's included. The last one is text only.
    pub max_iterations: u32,
    /// Maximum number of tool calls.
    pub max_tool_calls: u32,
    /// Replies whose tool calls are run. The model call after the last of them is text only and ends the work. `None`: as many as the
    /// other limits allow.
    pub max_tool_rounds: Option<u32>,
    /// Sampling temperature, clamped to 0–2; `None` leaves it to the provider. Calls for a plan, its assessment or a summary
    /// have none.
    pub temperature: Option<f64>,
    /// Whether the work starts with a plan.
    pub plan: bool,
    /// Whether tools are offered; without them there are no nudges either.
    pub use_tools: bool,
    /// A tool that leaves nothing to answer: the work ends after the calls of a reply in which a call of it succeeds.
    pub final_tool: Option<&'static str>,
    /// Whether calls that the model writes as text are run, unless they stand in what it has read. For models without native tool
    /// calls. An answer of another provider says where its setting differs.
    pub text_tool_calls: bool,
    /// Completion limit of one model call, in tokens.
    pub max_tokens: Option<u64>,
    /// How long a model that does not answer is asked again before the work fails. Waits that a provider asked for do not count.
    pub outage_patience: Duration,
    /// How long there is to wait for a provider that asks for it. One that asks for more ends the work at once; without a
    /// limit it is asked again after an hour.
    pub longest_wait: Option<Duration>,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_iterations: 50,
            max_tool_calls: 500,
            max_tool_rounds: None,
            temperature: None,
            plan: false,
            use_tools: true,
            final_tool: None,
            text_tool_calls: false,
            max_tokens: None,
            outage_patience: DEFAULT_OUTAGE_PATIENCE,
            longest_wait: None,
        }
    }
}

/// A temperature that every provider accepts; one that is not a number is 0.
pub(crate) const fn clamp_temperature(temperature: f64) -> f64 {
    if temperature.is_nan() { 0.0 } else { temperature.clamp(0.0, 2.0) }
}
