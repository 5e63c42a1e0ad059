//! `secret_list`: the names of the owner's secrets. Never a value.

use agent::{BoxFuture, Invocation, Tool, ToolError, ToolOutput, ToolSpec};
use protocol::{ToolErrorKind, limits::MAX_SECRETS};
use serde_json::json;

use super::builtin::{object, spec};
use store::Store;

pub(super) struct SecretList(pub(super) Store);

impl Tool for SecretList {
    fn spec(&self) -> ToolSpec {
        let parameters = object(&[], json!({}));
        spec("secret_list", "Lists the names of the owner's stored secrets. Their values are never shown.", parameters)
    }

    fn call(&self, invocation: Invocation) -> BoxFuture<'_, Result<ToolOutput, ToolError>> {
        Box::pin(async move {
            let owner = invocation.context.owner.as_str();
            let secrets = self.0.secrets(owner, None, MAX_SECRETS).await.map_err(|error| {
                tracing::error!(user = owner, error = &error as &dyn std::error::Error, "secrets could not be listed");
                ToolError::new(ToolErrorKind::Failed, "the secrets could not be listed; try again")
            })?;
            let names: Vec<String> = secrets.into_iter().map(|(name, _)| name).collect();
            Ok(ToolOutput::success(json!({"names": names})))
        })
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent::{ApprovalContext, ApprovalRequirement, ToolContext};
    use chrono::DateTime;
    use protocol::{CallId, EgressView, ThreadId, UserId, WorkId};
    use secrecy::SecretString;

    use super::*;
    use secrets::{KeySource, Secrets};
    use store::AuditEntry;

    fn invocation(owner: &str) -> Invocation {
        let context = ToolContext {
            owner: UserId(owner.to_owned()),
            work: WorkId::Thread(ThreadId::nil()),
            approval: ApprovalContext::autonomous(),
            policy: agent::ToolPolicy::default(),
            only: None,
            egress: EgressView::default(),
            max_children: 0,
        };
        let (call_id, stop) = (CallId::from("t1"), tokio_util::sync::CancellationToken::new());
        Invocation { call_id, arguments: json!({}), context: Arc::new(context), stop }
    }

    #[tokio::test]
    async fn the_owner_gets_its_names_and_no_values() {
        let directory = tempfile::tempdir().unwrap();
        let store = Store::open(&format!("sqlite://{}/gantry.db", directory.path().display())).await.unwrap();
        let secrets = Secrets::open(store.clone(), &KeySource::DataDir(directory.path().to_owned())).await.unwrap();
        let entry = AuditEntry::by_operator("secret.set", DateTime::UNIX_EPOCH);
        for (owner, name) in [("ada", "B"), ("ada", "A"), ("bob", "C")] {
            secrets.set(owner, name, &SecretString::from("the value"), None, &entry).await.unwrap();
        }
        let tool = SecretList(store.clone());
        assert_eq!(tool.spec().approval, ApprovalRequirement::Never);
        for (owner, names) in [("ada", json!(["A", "B"])), ("bob", json!(["C"])), ("eve", json!([]))] {
            let output = tool.call(invocation(owner)).await.unwrap();
            assert_eq!(output, ToolOutput::success(json!({"names": names})), "{owner}");
        }
        store.close().await;
    }
}
