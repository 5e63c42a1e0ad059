//! `memory_write`: writes a document, or adds to its end.
//!
//! Owns which documents a model may not write, and which it may write only with a person's approval.

use agent::{ApprovalRequirement, BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{MemoryAuthor, ToolErrorKind};
use serde_json::{Value, json};

use super::access::{invalid, path, store_failed, text};
use base::clock::Clock;
use domain::memory::{MAX_DOCUMENTS, MAX_MEMORY_DOCUMENT_BYTES, MemoryPath, ModelWrite};
use secrets::{LeakDetectors, search};
use store::{AuditEntry, MemoryText, MemoryWrite, MemoryWriteOutcome, Store};

use crate::builtin::{object, spec};

pub(super) struct MemoryWriter {
    pub(super) store: Store,
    pub(super) clock: Clock,
    pub(super) detectors: LeakDetectors,
}

impl Tool for MemoryWriter {
    fn spec(&self) -> ToolSpec {
        let properties = json!({
            "path": {"type": "string", "minLength": 1, "description": "Path of the document, such as notes/today.md."},
            "content": {"type": "string", "description": "The text."},
            "append": {"type": "boolean", "description": "Add the text to the end, on a new line, instead of replacing the document."}
        });
        let parameters = object(&["path", "content"], properties);
        spec("memory_write", "Writes a document to the owner's memory, which outlives this work.", parameters)
    }

    fn approval(&self, arguments: &Value) -> Option<ApprovalRequirement> {
        let path = arguments.get("path").and_then(Value::as_str).unwrap_or_default();
        Some(match MemoryPath::parse(path).map(|path| path.model_write()) {
            Ok(ModelWrite::NeedsApproval) => ApprovalRequirement::Always,
            // Refused by the call: there is nothing to approve.
            Ok(ModelWrite::Denied) => ApprovalRequirement::Never,
            Ok(ModelWrite::Allowed) | Err(_) => ApprovalRequirement::UnlessAutoApproved,
        })
    }

    fn check(&self, arguments: &Value) -> Result<(), ToolError> {
        writable_path(arguments).map(drop)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let path = writable_path(&invocation.arguments)?;
            let content = self.redacted(invocation.context.owner.as_str(), &path, text(&invocation, "content")).await?;
            let appends = invocation.arguments.get("append").and_then(Value::as_bool).unwrap_or(false);
            let work = invocation.context.work;
            let user = invocation.context.owner.as_str().to_owned();
            let write = MemoryWrite {
                audit: AuditEntry::by_agent("memory.write", &user, work.job(), self.clock.now()),
                user,
                path,
                text: if appends { MemoryText::Append(content) } else { MemoryText::Replace(content) },
                author: MemoryAuthor::Agent(work),
                expected: None,
            };
            outcome(self.store.write_memory(write).await.map_err(|error| store_failed(&error))?)
        })
    }
}

impl MemoryWriter {
    /// The text without the owner's secrets: a document outlives the work, and other models read it. A path with one is
    /// refused.
    async fn redacted(&self, owner: &str, path: &MemoryPath, content: &str) -> Result<String, ToolError> {
        let detector = self.detectors.of(owner).await.map_err(|error| {
            tracing::error!(error = &error as &dyn std::error::Error, "a document could not be searched for secrets");
            ToolError::new(ToolErrorKind::Failed, "memory cannot be written now; try again")
        })?;
        if detector.redact(path.as_str()).0 != path.as_str() {
            return Err(invalid("path contains a secret; choose another one".to_owned()));
        }
        let content = content.to_owned();
        let redact = move || detector.redact(&content).0.into_owned();
        let failed = |_| ToolError::new(ToolErrorKind::Failed, "memory cannot be written now; try again");
        search(MAX_MEMORY_DOCUMENT_BYTES, redact).await.map_err(failed)
    }
}

/// The path of a document that a model may write.
fn writable_path(arguments: &Value) -> Result<MemoryPath, ToolError> {
    let path = path(arguments)?;
    if path.model_write() == ModelWrite::Denied {
        let message = format!("only the user writes {}", path.as_str());
        return Err(ToolError::new(ToolErrorKind::NotAuthorized, message));
    }
    Ok(path)
}

fn outcome(outcome: MemoryWriteOutcome) -> Result<ToolOutput, ToolError> {
    let message = match outcome {
        MemoryWriteOutcome::Stored { entry, .. } => {
            let stored = json!({"path": entry.path, "version": entry.version, "bytes": entry.bytes});
            return Ok(ToolOutput::success(stored));
        }
        MemoryWriteOutcome::VersionMismatch { .. } => "the document has changed; try again".to_owned(),
        MemoryWriteOutcome::TooLarge { bytes } => format!(
            "the document would have {bytes} bytes; the maximum is {MAX_MEMORY_DOCUMENT_BYTES}: use another document"
        ),
        MemoryWriteOutcome::TooManyDocuments => {
            format!("the owner has {MAX_DOCUMENTS} documents, which is the maximum: write to an existing document")
        }
    };
    Err(ToolError::new(ToolErrorKind::Failed, message))
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    #[rstest]
    #[case(json!({"path": "notes.md", "content": ""}), ApprovalRequirement::UnlessAutoApproved, true)]
    #[case(json!({"path": "HEARTBEAT.md", "content": ""}), ApprovalRequirement::Always, true)]
    #[case(json!({"path": "context/team.md", "content": "", "append": true}), ApprovalRequirement::Always, true)]
    #[case(json!({"path": "IDENTITY.md", "content": ""}), ApprovalRequirement::Never, false)]
    #[case(json!({"path": "../HEARTBEAT.md", "content": ""}), ApprovalRequirement::UnlessAutoApproved, false)]
    #[case(json!({}), ApprovalRequirement::UnlessAutoApproved, false)]
    #[tokio::test]
    async fn the_document_decides_about_the_approval(
        #[case] arguments: Value,
        #[case] expected: ApprovalRequirement,
        #[case] is_writable: bool,
    ) {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let source = secrets::KeySource::DataDir(directory.path().to_owned());
        let secrets = secrets::Secrets::open(store.clone(), &source).await.unwrap();
        let detectors = LeakDetectors::new(std::sync::Arc::new(secrets)).unwrap();
        let tool = MemoryWriter { store: store.clone(), clock: Clock::system(), detectors };
        assert_eq!(tool.approval(&arguments), Some(expected));
        assert_eq!(tool.check(&arguments).is_ok(), is_writable);
        store.close().await;
    }
}
