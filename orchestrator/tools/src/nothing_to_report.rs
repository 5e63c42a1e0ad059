//! `nothing_to_report`: by which the model of a routine's run says that its user has to know nothing. The run then ends without a text.
//!
//! Offered to runs of routines only. The loop ends after the call; the tool itself does nothing.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use serde_json::json;

use super::builtin::{object, spec};
use domain::routine::prompt;

pub(super) struct NothingToReport;

impl Tool for NothingToReport {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&[], json!({}));
        let description =
            "Ends this run without a message to the user. Call it when there is nothing that the user has to know.";
        spec(prompt::NOTHING_TO_REPORT, description, parameters)
    }

    fn call(&self, _: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async { Ok(ToolOutput::success("The run ends.")) })
    }
}
