//! `tool_list`: the tools that the caller is offered. Never those that its context hides.

use agent::{BoxFuture, Invocation, Tool, ToolContext, ToolError, ToolOutput, ToolRegistry, ToolSpec};
use protocol::{Placement, ToolDefinition, ToolDomain, ToolErrorKind, WorkId};
use serde_json::{Value, json};

use super::{
    builtin::{object, offered_of, spec, usable_in},
    mcp::McpTools,
};
use store::{Store, StoreError};

/// The tool's name, which a request may name before the tool is registered.
pub(super) const TOOL_LIST: &str = "tool_list";

pub(super) struct ToolList {
    /// The other tools that are built in.
    pub(super) registry: ToolRegistry,
    pub(super) mcp: McpTools,
    pub(super) store: Store,
}

impl ToolList {
    /// Whether the caller runs in a container, which has its own tools.
    async fn is_in_container(&self, context: &ToolContext) -> Result<bool, StoreError> {
        let WorkId::Job(id) = context.work else { return Ok(false) };
        Ok(self.store.job(id).await?.is_some_and(|job| job.brief.placement == Placement::Container))
    }

    async fn offered(&self, context: &ToolContext) -> Result<Vec<ToolDefinition>, StoreError> {
        let is_in_container = self.is_in_container(context).await?;
        let registry = self.mcp.registry(&usable_in(&self.registry, context), context).await;
        let mut tools = offered_of(registry, context.clone());
        tools.retain(|tool| is_in_container || tool.domain == ToolDomain::Orchestrator);
        tools.push(self.spec().definition);
        tools.sort_by(|one, other| one.name.cmp(&other.name));
        Ok(tools)
    }
}

impl Tool for ToolList {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&[], json!({}));
        spec(TOOL_LIST, "Lists the tools that you may call, and what each of them does.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let tools = self.offered(&invocation.context).await.map_err(|error| {
                tracing::error!(error = &error as &dyn std::error::Error, "the caller's job could not be read");
                ToolError::new(ToolErrorKind::Failed, "the tools could not be listed; try again")
            })?;
            let item = |tool: &ToolDefinition| json!({"name": tool.name, "description": tool.description, "domain": tool.domain});
            let mut output = json!({"items": tools.iter().map(item).collect::<Vec<Value>>()});
            let unavailable = self.mcp.unavailable_in(&invocation.context);
            if !unavailable.is_empty() {
                output["unavailable"] = json!(unavailable);
            }
            Ok(ToolOutput::success(output))
        })
    }
}
