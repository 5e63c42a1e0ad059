//! The tools that a list stands for when its work starts, by name.
//!
//! Guarantees that "all tools of a server" does not change within an attempt. The grammar of lists is in `domain`.

use std::collections::BTreeSet;

use agent::ToolContext;

use super::BuiltinTools;
use domain::{
    job::JobRecord,
    request::{ToolSelection, all_tools_of},
};
use store::StoreError;

impl BuiltinTools {
    /// The names that a selection stands for. The entries for all tools of a server stay, which name no tool: they tell that
    /// the context may have tools of the server.
    pub(super) fn names(&self, selection: &ToolSelection<'_>, of_servers: Vec<String>) -> Vec<String> {
        let mut names: Vec<String> = selection.names.iter().map(|name| (*name).to_owned()).collect();
        if selection.has_built_in {
            names.extend(self.registry.iter().map(|tool| tool.name().to_owned()));
            names.extend(agent::container_tools().into_iter().map(|tool| tool.name));
        }
        names.extend(of_servers);
        names.extend(selection.servers.iter().map(|server| all_tools_of(server)));
        names
    }

    /// The names of all tools that these servers had when the job's attempt asked first.
    pub(super) async fn attempt_tools(
        &self,
        job: &JobRecord,
        context: &ToolContext,
        servers: BTreeSet<String>,
    ) -> Result<Vec<String>, StoreError> {
        if servers.is_empty() {
            return Ok(Vec::new());
        }
        let store = &self.calls.store;
        if let Some(names) = store.attempt_tools(job.id, job.attempt).await? {
            return Ok(names);
        }
        let names = self.mcp.names_of(context, servers).await;
        store.set_attempt_tools(job.id, job.attempt, &names).await
    }
}

/// The servers all of whose tools are selected.
pub(super) fn servers_of(selection: &ToolSelection<'_>) -> BTreeSet<String> {
    selection.servers.iter().map(|server| (*server).to_owned()).collect()
}
