//! A tool of an MCP server, for every user: the connection is that of the call's owner.

use std::{sync::Arc, time::Duration};

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolDefinition;
use serde_json::Value;

use super::output::output;
use mcp::McpClient;

/// Time limit of a call.
const TIMEOUT: Duration = Duration::from_mins(1);

/// One tool of one server.
pub(super) struct McpTool {
    pub(super) client: Arc<McpClient>,
    pub(super) server: Arc<str>,
    /// The server's own name of the tool.
    pub(super) tool: String,
    pub(super) definition: ToolDefinition,
    pub(super) requirement: ApprovalRequirement,
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec {
            definition: self.definition.clone(),
            timeout: TIMEOUT,
            sensitive: Vec::new(),
            parallel: true,
            estimated_cost_micro_usd: 0,
        }
    }

    fn approval(&self, _arguments: &Value) -> ApprovalRequirement {
        self.requirement
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { arguments, context, stop, .. } = invocation;
            let answer = self.client.call((&self.server, context.owner.as_str()), &self.tool, arguments, &stop).await?;
            Ok(output(answer))
        })
    }
}
