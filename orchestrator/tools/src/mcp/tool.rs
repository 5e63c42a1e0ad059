//! A tool of an MCP server, for every user: the connection is that of the call's owner.

use std::{sync::Arc, time::Duration};

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolDefinition;

use super::output::output;
use mcp::McpClient;

/// One tool of one server.
pub(super) struct McpTool {
    pub(super) client: Arc<McpClient>,
    pub(super) server: Arc<str>,
    /// The server's own name of the tool.
    pub(super) tool: String,
    pub(super) definition: ToolDefinition,
    pub(super) requirement: ApprovalRequirement,
    /// Greatest length of a call. The client ends calls earlier, by the server's own limit.
    pub(super) timeout: Duration,
}

impl Tool for McpTool {
    fn spec(&self) -> ToolSpec {
        ToolSpec { approval: self.requirement, ..ToolSpec::new(self.definition.clone(), self.timeout) }
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let Invocation { arguments, context, stop, .. } = invocation;
            let answer = self.client.call((&self.server, context.owner.as_str()), &self.tool, arguments, &stop).await?;
            Ok(output(answer))
        })
    }
}
