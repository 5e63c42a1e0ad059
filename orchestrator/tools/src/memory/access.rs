//! Shared by the memory tools: the store and the clock, arguments, and errors that tell the model what to do.

use std::sync::Arc;

use agent::{Invocation, Tool, ToolError};
use protocol::ToolErrorKind;
use serde_json::Value;

use super::{read::MemoryRead, search::MemorySearch, tree::MemoryTree, write::MemoryWriter};
use base::{clock::Clock, per_user_semaphore::PerUserSemaphore};
use domain::memory::MemoryPath;
use secrets::LeakDetectors;
use store::{Store, StoreError};

/// Concurrent reads of many rows by the memory tools in total: half of the connections of the control plane, which they
/// share with workers' calls and the dispatcher.
const MAX_LIST_READS: usize = 2;

pub(crate) fn memory_tools(store: &Store, clock: &Clock, detectors: &LeakDetectors) -> [Box<dyn Tool>; 4] {
    let list_reads = Arc::new(PerUserSemaphore::new(MAX_LIST_READS, 1));
    [
        Box::new(MemoryRead { store: store.clone() }),
        Box::new(MemoryWriter { store: store.clone(), clock: clock.clone(), detectors: detectors.clone() }),
        Box::new(MemorySearch { store: store.clone(), list_reads: Arc::clone(&list_reads) }),
        Box::new(MemoryTree { store: store.clone(), list_reads }),
    ]
}

/// An argument that is a string; empty if it was left out.
pub(super) fn text<'a>(invocation: &'a Invocation, name: &str) -> &'a str {
    invocation.arguments.get(name).and_then(Value::as_str).unwrap_or_default()
}

/// The path of a document.
pub(super) fn path(arguments: &Value) -> Result<MemoryPath, ToolError> {
    let path = arguments.get("path").and_then(Value::as_str).unwrap_or_default();
    MemoryPath::parse(path).map_err(|rule| invalid(format!("path {rule}")))
}

pub(super) fn invalid(message: String) -> ToolError {
    ToolError::new(ToolErrorKind::InvalidParameters, message)
}

/// The store failed: logged here, because the model reads no cause.
pub(super) fn store_failed(error: &StoreError) -> ToolError {
    if let StoreError::UserStorageFull(storage) = error {
        return ToolError::new(ToolErrorKind::Failed, storage.to_string());
    }
    tracing::error!(error = error as &dyn std::error::Error, "memory could not be read or written");
    ToolError::new(ToolErrorKind::Failed, "memory is not available now; try again")
}
