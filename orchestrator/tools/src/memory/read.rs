//! `memory_read`: the text of a document.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::ToolErrorKind;
use serde_json::json;

use super::access::{path, store_failed};
use store::Store;

use crate::builtin::{object, spec};

pub(super) struct MemoryRead {
    pub(super) store: Store,
}

impl Tool for MemoryRead {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "path": {"type": "string", "minLength": 1, "description": "Path of the document, such as notes/today.md."}
        });
        let parameters = object(&["path"], properties);
        spec("memory_read", "Reads a document from the owner's memory, which outlives this work.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let path = path(&invocation.arguments)?;
            let user = invocation.context.owner.as_str();
            let document = self.store.memory_document(user, &path, None).await.map_err(|error| store_failed(&error))?;
            let document = document.ok_or_else(|| {
                let message = format!("no document at {:?}; memory_tree lists the documents", path.as_str());
                ToolError::new(ToolErrorKind::NotFound, message)
            })?;
            Ok(ToolOutput::success(document.content))
        })
    }
}
