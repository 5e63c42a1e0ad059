//! How one loop is to work. Plain values; where they come from is the caller's.

use std::time::Duration;

/// The temperature when nobody says otherwise.
pub const DEFAULT_TEMPERATURE: f64 = 0.7;

/// Default time for which a model that does not answer is asked again (contract: agent, One loop).
pub const DEFAULT_OUTAGE_PATIENCE: Duration = Duration::from_mins(5);

/// What the loop keeps to.
#[derive(Debug, Clone, PartialEq)]
pub struct Settings {
    /// Model calls, planning's and compaction's included. The last one is text only.
    pub max_iterations: u32,
    /// Tool calls.
    pub max_tool_calls: u32,
    /// 0–2; clamped.
    pub temperature: f64,
    /// Plan first.
    pub plan: bool,
    /// False: text only, and no nudges.
    pub use_tools: bool,
    /// Completion limit of one model call, in tokens.
    pub max_tokens: Option<u64>,
    /// How long a model that does not answer is asked before the work fails. Waits that a provider asked for do not count.
    pub outage_patience: Duration,
}

impl Default for Settings {
    fn default() -> Self {
        Self {
            max_iterations: 50,
            max_tool_calls: 500,
            temperature: DEFAULT_TEMPERATURE,
            plan: false,
            use_tools: true,
            max_tokens: None,
            outage_patience: DEFAULT_OUTAGE_PATIENCE,
        }
    }
}

/// A temperature that every provider takes.
pub(crate) fn clamp_temperature(temperature: f64) -> f64 {
    if temperature.is_finite() { temperature.clamp(0.0, 2.0) } else { DEFAULT_TEMPERATURE }
}
