//! Tools of MCP servers: which of them a context has, and what an admin sees of the servers.
//!
//! Guarantees that a context without a person gets only the tools of MCP servers that it names. The calls go through
//! the executor like those of any tool.

mod admin;
mod catalog;
mod definition;
mod lists;
mod output;
mod schema;
mod tool;
mod unavailable;

use std::{collections::BTreeSet, sync::Arc, time::Duration};

use agent::{ApprovalContext, RegisteredTool, ToolContext, ToolRegistry};
use futures_util::future::join_all;
use protocol::{McpTransportKind, ToolDefinition, UnavailableMcpTools};

use self::{
    catalog::{CALL_WAIT, Catalog, TURN_WAIT},
    definition::SEPARATOR,
    unavailable::unavailable_tool,
};
use crate::UserTool;
use base::{clock::Clock, error_chain};
use domain::request::server_of_all;
use mcp::{ConfiguredServer, McpClient, McpError};
use store::{Store, StoreError};

/// Tools of MCP servers in one context. Model providers accept some hundred tools.
const MAX_TOOLS_IN_CONTEXT: usize = 384;

/// Before the name of a server that a tool comes from.
const SOURCE: &str = "mcp:";

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
        let mut registry = self.extended(base, context, servers.clone(), TURN_WAIT).await;
        for server in servers {
            self.add_without_secret(&mut registry, context, &server).await;
        }
        registry
    }

    /// `base` and the tool of this name, if it is one of an MCP server that this context may have.
    pub(crate) async fn registry_for_call(
        &self,
        base: &ToolRegistry,
        context: &ToolContext,
        tool: &str,
    ) -> ToolRegistry {
        let servers = self.servers_of(context);
        let Some(server) = server_of(tool).filter(|server| servers.contains(*server)) else { return base.clone() };
        let mut registry = self.extended(base, context, [server.to_owned()].into(), CALL_WAIT).await;
        // Otherwise it would not exist, and the caller would not learn why.
        if let Some(error) = self.catalog.error(server, context.owner.as_str()) {
            add_unavailable(&mut registry, tool, error);
        }
        registry
    }

    /// The names of all tools that the context's owner has of these servers at this moment. Empty for a server that does not
    /// answer in time.
    pub(crate) async fn names_of(&self, context: &ToolContext, servers: BTreeSet<String>) -> Vec<String> {
        let every = ToolContext { only: None, ..context.clone() };
        let mut registry = self.extended(&ToolRegistry::new(), &every, servers.clone(), TURN_WAIT).await;
        for server in servers {
            self.add_without_secret(&mut registry, &every, &server).await;
        }
        registry.iter().map(|tool| tool.name().to_owned()).collect()
    }

    /// The tools of MCP servers that a user's chats have. No container is started for a server whose definitions are
    /// known.
    pub(super) async fn of_user(&self, user: &str) -> Vec<UserTool> {
        let lists = self.catalog.client.servers().map(|server| self.of_server(server, user));
        join_all(lists).await.into_iter().flatten().collect()
    }

    /// The tools that the user does not have, of servers that were asked for them.
    pub fn unavailable_to(&self, user: &str) -> Vec<UnavailableMcpTools> {
        let servers = self.catalog.client.servers();
        servers.flat_map(|server| self.catalog.unavailable(&server.name, user)).collect()
    }

    /// The tools that the context has not, of servers whose tools it may have.
    pub(super) fn unavailable_in(&self, context: &ToolContext) -> Vec<UnavailableMcpTools> {
        let servers = self.servers_of(context).into_iter();
        servers.flat_map(|server| self.catalog.unavailable(&server, context.owner.as_str())).collect()
    }

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
        let tools = self.tools(servers.clone(), context.owner.as_str(), wait).await;
        for server in &servers {
            for name in self.catalog.withheld(server, context.owner.as_str()).iter() {
                registry.withhold(name, &withheld_reason(server, name));
            }
        }
        let is_named = |name: &str| context.only.as_ref().is_none_or(|only| only.iter().any(|one| one == name));
        for (_, tool) in tools.into_iter().filter(|(_, tool)| is_named(tool.name())).take(MAX_TOOLS_IN_CONTEXT) {
            // A name that is taken stays that of the tool that has it. No built-in tool has the separator in its name.
            let _refused = registry.add(tool);
        }
        registry
    }

    async fn of_server(&self, server: &ConfiguredServer, user: &str) -> Vec<UserTool> {
        let of_definition = |definition: &ToolDefinition, requirement| UserTool {
            source: format!("{SOURCE}{}", server.name),
            definition: definition.clone(),
            requirement,
        };
        let mut known = None;
        if server.kind == McpTransportKind::Stdio {
            known = self.catalog.known(&server.name, user);
            if known.is_none() {
                let shared = self.catalog.shared(&server.name).await.unwrap_or_else(|error| not_read(&error));
                if !shared.is_empty() {
                    return shared.iter().map(|one| of_definition(&one.definition, server.requirement)).collect();
                }
            }
        }
        let tools = match known {
            Some(tools) => tools,
            None => self.catalog.tools(&server.name, user, TURN_WAIT).await,
        };
        tools.iter().map(|tool| of_definition(&tool.spec().definition, tool.default_requirement())).collect()
    }

    /// Adds the tools of a server that needs a secret which is not stored: each call fails with the reason. A context
    /// that names no tools has those whose names are known; nothing else of their definitions is shown, because another
    /// user's credentials may have led to it.
    async fn add_without_secret(&self, registry: &mut ToolRegistry, context: &ToolContext, server: &str) {
        let error = self.catalog.error(server, context.owner.as_str());
        let Some(error) = error.filter(|error| matches!(error, McpError::MissingSecret { .. })) else { return };
        let names: Vec<String> = if let Some(only) = &context.only {
            let is_tool = |name: &&String| server_of(name) == Some(server) && server_of_all(name).is_none();
            only.iter().filter(is_tool).cloned().collect()
        } else {
            let shared = self.catalog.shared(server).await.unwrap_or_else(|error| not_read(&error));
            shared.into_iter().map(|one| one.definition.name).collect()
        };
        let count = registry.iter().filter(|tool| server_of(tool.name()).is_some()).count();
        for name in names.iter().take(MAX_TOOLS_IN_CONTEXT.saturating_sub(count)) {
            add_unavailable(registry, name, error.clone());
        }
    }

    async fn tools(&self, servers: BTreeSet<String>, user: &str, wait: Duration) -> Vec<(String, Arc<RegisteredTool>)> {
        let lists = servers.into_iter().map(|server| async move {
            let tools = self.catalog.tools(&server, user, wait).await;
            tools.iter().map(|tool| (server.clone(), Arc::clone(tool))).collect::<Vec<_>>()
        });
        join_all(lists).await.into_iter().flatten().collect()
    }
}

fn add_unavailable(registry: &mut ToolRegistry, name: &str, error: McpError) {
    if let Some(tool) = unavailable_tool(name, error) {
        // Refused if the tool itself is there, from an earlier list.
        let _refused = registry.add(Arc::new(tool));
    }
}

/// Why a call of a tool whose definition has changed fails.
fn withheld_reason(server: &str, name: &str) -> String {
    let tool = name.split_once(SEPARATOR).map_or(name, |(_, tool)| tool);
    format!("its definition has changed and waits for an admin (gantry admin mcp approve {server} {tool})")
}

/// Reports that definitions could not be read. Nothing is listed then.
fn not_read<T: Default>(error: &StoreError) -> T {
    tracing::error!(error = error_chain(error), "the definitions of an MCP server could not be read");
    T::default()
}

/// The server in the name of a tool.
fn server_of(tool: &str) -> Option<&str> {
    tool.split_once(SEPARATOR).map(|(server, _)| server)
}
