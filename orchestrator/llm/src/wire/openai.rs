//! Shared by OpenAI's two formats: temperature, tools and tool choice.

use protocol::{ToolChoice, ToolDefinition};
use serde_json::{Value, json};

use config::Field;

use super::{ForcedTool, RequestOptions, adapt::Adapted};

/// The maximum temperature of these formats.
const MAX_TEMPERATURE: f64 = 2.0;

/// How a format writes a tool, and the choice of one.
pub(super) struct ToolShapes {
    pub(super) tool: fn(&ToolDefinition) -> Value,
    pub(super) choice: fn(&str) -> Value,
}

/// Adds the options of a request except the output limit.
pub(super) fn add_options(body: &mut Value, request: &Adapted<'_>, options: &RequestOptions<'_>, shapes: &ToolShapes) {
    if let Some(temperature) = request.temperature.filter(|given| given.is_finite()) {
        body["temperature"] = json!(temperature.clamp(0.0, MAX_TEMPERATURE));
    }
    if request.tools.is_empty() {
        return;
    }
    body["tools"] = request.tools.iter().map(|tool| (shapes.tool)(tool)).collect();
    let dialect = options.dialect;
    let choice = match (request.tool_choice, options.forced_tool) {
        (ToolChoice::None, _) => Some(json!("none")),
        (ToolChoice::Auto, None) => None,
        (ToolChoice::Auto, Some(ForcedTool::Any)) => Some(json!("required")),
        (ToolChoice::Auto, Some(ForcedTool::Named(name))) => Some((shapes.choice)(name)),
    };
    if let Some(choice) = choice.filter(|_| dialect.tool_choice != Some(Field::Omit)) {
        body["tool_choice"] = choice;
    }
    if let Some(parallel) = options.parallel_tool_calls.filter(|_| dialect.parallel_tool_calls != Some(Field::Omit)) {
        body["parallel_tool_calls"] = json!(parallel);
    }
}
