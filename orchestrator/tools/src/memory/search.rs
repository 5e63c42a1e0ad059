//! `memory_search`: the documents that match words best.

use std::sync::Arc;

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::{Value, json};

use super::access::{invalid, store_failed, text};
use base::per_user_semaphore::PerUserSemaphore;
use domain::memory::{MAX_QUERY_BYTES, MemoryQuery};
use store::Store;

use crate::builtin::{object, spec};

/// Results by default: enough to choose from, and cheap to read.
const DEFAULT_LIMIT: u32 = 10;
/// Results at most.
const MAX_LIMIT: u32 = 50;

pub(super) struct MemorySearch {
    pub(super) store: Store,
    pub(super) list_reads: Arc<PerUserSemaphore>,
}

impl Tool for MemorySearch {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "query": {"type": "string", "minLength": 1, "maxLength": MAX_QUERY_BYTES, "description": "Words to look for; there are no operators."},
            "limit": {"type": "integer", "minimum": 1, "maximum": MAX_LIMIT, "description": "Maximum number of results; 10 when left out."}
        });
        spec(
            "memory_search",
            "Searches the owner's memory by words. Returns paths with snippets, best match first.",
            object(&["query"], properties),
        )
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let query =
                MemoryQuery::parse(text(&invocation, "query")).map_err(|rule| invalid(format!("query {rule}")))?;
            let limit = invocation.arguments.get("limit").and_then(Value::as_u64);
            let limit = limit.and_then(|limit| u32::try_from(limit).ok()).unwrap_or(DEFAULT_LIMIT);
            let user = invocation.context.owner.as_str();
            let _permit = self.list_reads.acquire(user).await.map_err(|_| closed())?;
            let found = self.store.search_memory(user, query, limit).await.map_err(|error| store_failed(&error))?;
            Ok(ToolOutput::success(json!({"items": found})))
        })
    }
}

/// The semaphore was closed, which nothing does.
pub(super) fn closed() -> ToolError {
    ToolError::new(ToolErrorKind::Failed, "memory is not available")
}
