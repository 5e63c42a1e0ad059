//! The common frame of the file tools: plain functions that run on blocking threads.

use std::{sync::Arc, time::Duration};

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
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
    /// The name by which the model calls it.
    pub(crate) name: &'static str,
    /// Whether a person must agree.
    pub(crate) approval: ApprovalRequirement,
    /// False where calls of one reply must keep their order.
    pub(crate) parallel: bool,
    /// Its function.
    pub(crate) work: Work,
}

/// A file tool on one workspace.
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
            definition: self.definition.clone(),
            timeout: Duration::from_secs(TOOL_TIMEOUT_SECONDS),
            sensitive: Vec::new(),
            parallel: self.kind.parallel,
        }
    }

    fn approval(&self, _: &Value) -> ApprovalRequirement {
        self.kind.approval
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        let (workspace, work) = (Arc::clone(&self.workspace), self.kind.work);
        Box::pin(async move {
            let Invocation { arguments, stop, .. } = invocation;
            let run = tokio::task::spawn_blocking(move || work(&workspace, arguments, &stop));
            let text = run.await.map_err(|_| ToolError::new(ToolErrorKind::Failed, "the tool broke down"))??;
            Ok(ToolOutput::success(text))
        })
    }
}

/// Parses the arguments. They are valid by the schema, so a failure here is a schema that is not strict enough.
pub(crate) fn parsed<T: DeserializeOwned>(arguments: Value) -> Result<T, ToolError> {
    serde_json::from_value(arguments)
        .map_err(|error| ToolError::new(ToolErrorKind::InvalidParameters, error.to_string()))
}
