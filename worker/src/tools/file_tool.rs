//! Adapts plain functions to file tools. The functions run on blocking threads.

use std::{sync::Arc, time::Duration};

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolDefinition, ToolErrorKind};
use serde::de::DeserializeOwned;
use serde_json::Value;
use tokio_util::sync::CancellationToken;

use super::workspace::Workspace;

/// Time limit of a file tool's call.
pub(crate) const TOOL_TIMEOUT_SECONDS: u64 = 60;

/// The function of a file tool; its result is plain text for the model.
pub(crate) type Work = fn(&Workspace, Value, &CancellationToken) -> Result<String, ToolError>;

/// The declaration of a file tool.
#[derive(Debug, Clone, Copy)]
pub(crate) struct FileToolKind {
    /// The tool's name.
    pub(crate) name: &'static str,
    /// False if calls of one reply must run in order.
    pub(crate) parallel: bool,
    /// The function that runs a call.
    pub(crate) work: Work,
}

/// A file tool for one workspace.
pub(crate) struct FileTool {
    /// The declaration.
    pub(crate) kind: FileToolKind,
    /// The definition that the model sees.
    pub(crate) definition: ToolDefinition,
    /// The workspace that it works on.
    pub(crate) workspace: Arc<Workspace>,
}

impl Tool for FileTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            parallel: self.kind.parallel,
            approval: agent::container_tool_requirement(self.kind.name),
            ..ToolSpec::new(self.definition.clone(), Duration::from_secs(TOOL_TIMEOUT_SECONDS))
        }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let (workspace, work) = (Arc::clone(&self.workspace), self.kind.work);
        Box::pin(async move {
            let Invocation { arguments, stop, .. } = invocation;
            let run = tokio::task::spawn_blocking(move || work(&workspace, arguments, &stop));
            let text = run.await.map_err(|_| ToolError::new(ToolErrorKind::Failed, "the tool panicked"))??;
            Ok(ToolOutput::success(text))
        })
    }
}

/// Parses arguments that were validated against the schema. An error means that the schema is not strict enough.
pub(crate) fn parse_arguments<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, error.to_string()))
}
