//! Tools of MCP servers: which of them a context has, and what an admin sees of the servers.
//!
//! Owns that a context without a person gets only the tools of MCP servers that it names. The calls go through the executor like
//! those of any tool.

mod admin;
mod catalog;
mod definition;
mod output;
mod schema;
mod tool;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use agent::{ApprovalContext, RegisteredTool, ToolContext, ToolRegistry};
use futures_util::future::join_all;

use self::{
    catalog::{CALL_WAIT, Catalog, TURN_WAIT},
    definition::SEPARATOR,
};
use crate::{clock::Clock, mcp::McpClient, store::Store};

/// Tools of MCP servers in one context. Model providers accept some hundred tools.
const MAX_TOOLS_IN_CONTEXT: usize = 384;

/// The tools of MCP servers.
#[derive(Clone)]
pub struct McpTools {
    catalog: Arc<Catalog>,
    store: Store,
}

impl McpTools {
    /// The tools of these servers.
    pub fn new(client: Arc<McpClient>, store: Store, clock: Clock) -> Self {
        Self { catalog: Arc::new(Catalog::new(client, store.clone(), clock)), store }
    }

    /// `base` and the tools of MCP servers that this context may have.
    pub async fn registry(&self, base: &ToolRegistry, context: &ToolContext) -> ToolRegistry {
        let servers = self.servers_of(context);
        self.extended(base, context, servers, TURN_WAIT).await
    }

    /// `base` and the tool of this name, if it is one of an MCP server that this context may have.
    pub async fn registry_for_call(&self, base: &ToolRegistry, context: &ToolContext, tool: &str) -> ToolRegistry {
        let servers = self.servers_of(context);
        let server = server_of(tool).filter(|server| servers.contains(*server)).map(str::to_owned);
        self.extended(base, context, server.into_iter().collect(), CALL_WAIT).await
    }

    /// The tools of MCP servers that a user's chats have, with the name of their server.
    pub async fn of_user(&self, user: &str) -> Vec<(String, Arc<RegisteredTool>)> {
        let servers = self.catalog.client.servers().map(|server| server.name.clone()).collect();
        self.tools(servers, user, TURN_WAIT).await
    }

    /// The names of the servers.
    pub fn server_names(&self) -> Vec<String> {
        self.catalog.client.servers().map(|server| server.name.clone()).collect()
    }

    /// The servers whose tools the context may have.
    fn servers_of(&self, context: &ToolContext) -> BTreeSet<String> {
        let named =
            context.only.as_ref().map(|names| names.iter().filter_map(|name| server_of(name)).collect::<BTreeSet<_>>());
        let is_attended = matches!(context.approval, ApprovalContext::Interactive { .. });
        let servers = self.catalog.client.servers().map(|server| &server.name);
        let may_have = |server: &&String| named.as_ref().map_or(is_attended, |named| named.contains(server.as_str()));
        servers.filter(may_have).cloned().collect()
    }

    async fn extended(
        &self,
        base: &ToolRegistry,
        context: &ToolContext,
        servers: BTreeSet<String>,
        wait: Duration,
    ) -> ToolRegistry {
        let mut registry = base.clone();
        let tools = self.tools(servers, context.owner.as_str(), wait).await;
        let is_named = |name: &str| context.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name));
        for (_, tool) in tools.into_iter().filter(|(_, tool)| is_named(tool.name())).take(MAX_TOOLS_IN_CONTEXT) {
            // A name that is taken stays that of the tool that has it. No built-in tool has the separator in its name.
            let _refused = registry.add(tool);
        }
        registry
    }

    async fn tools(&self, servers: BTreeSet<String>, user: &str, wait: Duration) -> Vec<(String, Arc<RegisteredTool>)> {
        let lists = servers.into_iter().map(|server| async move {
            let tools = self.catalog.tools(&server, user, wait).await;
            tools.iter().map(|tool| (server.clone(), Arc::clone(tool))).collect::<Vec<_>>()
        });
        join_all(lists).await.into_iter().flatten().collect()
    }
}

/// The server in the name of a tool.
fn server_of(tool: &str) -> Option<&str> {
    tool.split_once(SEPARATOR).map(|(server, _)| server)
}
