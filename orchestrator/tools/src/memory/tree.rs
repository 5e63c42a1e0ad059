//! `memory_tree`: the documents in a directory and below it.

use std::sync::Arc;

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::MemoryEntry;
use serde_json::{Value, json};

use super::{
    access::{invalid, store_failed, text},
    search::closed,
};
use base::per_user_semaphore::PerUserSemaphore;
use domain::memory::MemoryPath;
use store::Store;

use crate::builtin::{object, spec};

/// Documents that are listed one by one; of more, directories are counted.
const MAX_LISTED: u32 = 200;

pub(super) struct MemoryTree {
    pub(super) store: Store,
    pub(super) list_reads: Arc<PerUserSemaphore>,
}

impl Tool for MemoryTree {
    fn spec(&self) -> ToolSpec {
        let properties = json!({"path": {"type": "string", "description": "Directory, such as notes; all documents when left out."}});
        let parameters = object(&[], properties);
        let description = "Lists the documents in the owner's memory. Where there are many, it lists directories with their number of documents.";
        spec("memory_tree", description, parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let directory = MemoryPath::parse_directory(text(&invocation, "path"))
                .map_err(|rule| invalid(format!("path {rule}")))?;
            let user = invocation.context.owner.as_str();
            let _permit = self.list_reads.acquire(user).await.map_err(|_| closed())?;
            let failed = |error| store_failed(&error);
            let entries = self.store.memory_tree(user, directory.as_ref(), "", MAX_LISTED + 1).await.map_err(failed)?;
            if entries.len() <= MAX_LISTED as usize {
                let items: Vec<MemoryEntry> = entries.into_iter().filter_map(|(_, entry)| entry).collect();
                return Ok(ToolOutput::success(json!({"items": items})));
            }
            let listed = self.store.memory_directory(user, directory.as_ref(), MAX_LISTED).await.map_err(failed)?;
            let items: Vec<Value> =
                listed.into_iter().map(|(path, documents)| json!({"path": path, "documents": documents})).collect();
            Ok(ToolOutput::success(
                json!({"items": items, "note": "there are many documents: give the path of a directory"}),
            ))
        })
    }
}
