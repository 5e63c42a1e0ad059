//! Finds and lists containers.
//!
//! Owns the inspections in progress. A container about which the engine does not answer delays no list.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{
    Docker,
    client::ClientError,
    spec::LABEL_INSTANCE,
    wire::{self, ContainerSummary, Inspected},
};
use crate::{ContainerStatus, ContainerView, EngineError};

/// How long a list waits for an inspection. The result of a slower one is used by a later list.
const INSPECT_WAIT: Duration = Duration::from_millis(500);
const MAX_CONCURRENT_INSPECTS: usize = 50;

impl Docker {
    /// The container of exactly this name. One of another instance is refused.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
        let Some(inspected) = self.client.inspect_existing(name).await? else { return Ok(None) };
        // The engine also accepts a prefix of an id.
        if inspected.name.as_deref().map(|found| found.trim_start_matches('/')) != Some(name) {
            return Ok(None);
        }
        if wire::label(&inspected, LABEL_INSTANCE) != Some(self.settings.instance_id.to_string().as_str()) {
            return Err(EngineError::Refused(format!(
                "container {name} belongs to another installation; rename one of them"
            )));
        }
        Ok(Some(inspected))
    }

    /// All containers with these labels. One that disappears meanwhile is left out.
    ///
    /// For a running container the engine's list is enough, unless an event has just reported a change: the engine
    /// reports an exit before its list shows it, whereas an inspection waits until the exit is recorded.
    pub(super) async fn list_containers(&self, labels: &[String]) -> Result<Vec<ContainerView>, EngineError> {
        let listed = self.client.with_labels(labels).await?;
        // Inspections of containers that are gone are no longer needed.
        self.pending_inspections.lock().retain(|id, _| listed.iter().any(|listed| listed.id.as_ref() == Some(id)));
        let views = stream::iter(listed.into_iter().map(|listed| self.view_listed(listed)));
        Ok(views.buffered(MAX_CONCURRENT_INSPECTS).filter_map(std::future::ready).collect().await)
    }

    /// An engine that lists containers but does not answer about one of them hangs on that one alone (Docker holds the
    /// container's lock while it waits for the runtime). Its status is unknown until the inspection returns.
    async fn view_listed(&self, listed: ContainerSummary) -> Option<ContainerView> {
        let from_list = wire::view_of_listed(&listed);
        let unknown = ContainerView { status: ContainerStatus::Unknown, ..from_list.clone() };
        let id = listed.id?;
        let pending = self.pending_inspections.lock().remove(&id);
        let inspected = match pending {
            Some(inspect) if !inspect.is_finished() => {
                self.pending_inspections.lock().insert(id, inspect);
                return Some(unknown);
            }
            // Nothing has changed since.
            Some(inspect) if !self.changed_containers.lock().contains(&id) => inspect.await,
            _ => {
                // Before the inspection: a change from now on is for the next list.
                let has_changed = self.changed_containers.lock().remove(&id);
                if from_list.status == ContainerStatus::Running && !has_changed {
                    return Some(from_list);
                }
                let (client, name) = (Arc::clone(&self.client), id.clone());
                let mut inspect = self.tasks.spawn(async move { client.inspect(&name).await });
                let Ok(inspected) = tokio::time::timeout(INSPECT_WAIT, &mut inspect).await else {
                    tracing::warn!(container = from_list.name, "the engine does not answer about this container yet");
                    self.pending_inspections.lock().insert(id, inspect);
                    return Some(unknown);
                };
                inspected
            }
        };
        match inspected.unwrap_or_else(|error| Err(ClientError::Engine(EngineError::Other(error.to_string())))) {
            Ok(inspected) => Some(wire::view(&inspected)),
            Err(ClientError::NotFound(_)) => None,
            Err(error) => {
                tracing::warn!(container = from_list.name, ?error, "cannot inspect this container");
                self.changed_containers.lock().insert(id);
                Some(unknown)
            }
        }
    }
}
