//! Pauses, stops, kills and removes containers, and reads their output.
//!
//! Never reports that a container has ended or is gone without having inspected it.

use std::time::Duration;

use tokio::sync::SemaphorePermit;

use super::{Docker, client::ClientError, wire};
use crate::{ContainerStatus, EngineError};

/// Longest time from SIGKILL to the container's end: the kernel has to free the memory of a large container or a fork
/// bomb.
const KILL_TIMEOUT: Duration = Duration::from_secs(10);
/// Longest time from the removal to the disappearance; another removal may be in progress.
const REMOVE_TIMEOUT: Duration = Duration::from_secs(10);
/// Part of the grace period that is waited for with a permit; a worker that handles SIGTERM has exited by then.
const PROMPT_END: Duration = Duration::from_millis(500);
/// Time between two inspections of a container that is being removed.
const INSPECT_INTERVAL: Duration = Duration::from_millis(50);

impl Docker {
    /// SIGTERM, `grace`, SIGKILL.
    pub(super) async fn stop_container(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        if self.is_paused(&id).await? {
            // SIGTERM would only be delivered on unpause.
            let _permit = self.end_permit().await?;
            return self.kill_confirmed(&id).await;
        }
        let prompt = grace.min(PROMPT_END);
        {
            let _permit = self.end_permit().await?;
            match self.client.signal(&id, "SIGTERM").await {
                Ok(()) | Err(ClientError::Conflict(_)) => {}
                Err(ClientError::NotFound(_)) => return Ok(()),
                Err(ClientError::Engine(error)) => return Err(error),
            }
            if self.has_ended_within(&id, prompt).await? {
                return Ok(());
            }
        }
        // Without a permit, so that the rest of the grace period delays no other container's end.
        let rest = grace.saturating_sub(prompt);
        if !rest.is_zero() && self.has_ended_within(&id, rest).await? {
            return Ok(());
        }
        let _permit = self.end_permit().await?;
        self.kill_confirmed(&id).await
    }

    /// Pauses, so that no process reacts to the end of another one, then kills.
    pub(super) async fn kill_container(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        let _permit = self.end_permit().await?;
        // Not fatal: not every runtime can pause.
        if let Err(error) = self.client.pause(&id).await {
            tracing::debug!(container.id = id, ?error, "not paused before the kill");
        }
        self.kill_confirmed(&id).await
    }

    pub(super) async fn pause_container(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        // A conflict: it is paused already, or has just ended.
        unless_done(self.client.pause(&id).await)
    }

    pub(super) async fn unpause_container(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        if !self.is_paused(&id).await? {
            return Ok(());
        }
        unless_done(self.client.unpause(&id).await)
    }

    /// The PID of the container's first process on the host.
    pub(super) async fn host_pid(&self, name: &str) -> Result<Option<u32>, EngineError> {
        Ok(self.find(name).await?.as_ref().and_then(wire::host_pid))
    }

    /// Waits until the container has ended; none if it still runs after `limit`.
    pub(super) async fn wait_for_exit(
        &self,
        id: &str,
        limit: Duration,
    ) -> Result<Option<ContainerStatus>, EngineError> {
        if !self.has_ended_within(id, limit).await? {
            return Ok(None);
        }
        let inspected = self.client.inspect(id).await?;
        Ok(Some(wire::view(&inspected).status))
    }

    /// The last `max_bytes` of the container's output.
    pub(super) async fn output(&self, name: &str, max_bytes: usize) -> Result<String, EngineError> {
        let Some(id) = self.find(name).await?.and_then(|found| found.id) else {
            return Err(EngineError::Refused(format!("container {name} not found")));
        };
        let tail = self.client.logs(&id, max_bytes).await?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    /// Removes the container of this name if it exists.
    pub(super) async fn remove_container(&self, name: &str) -> Result<(), EngineError> {
        match self.find(name).await?.and_then(|found| found.id) {
            Some(id) => self.remove_confirmed(&id).await,
            None => Ok(()),
        }
    }

    pub(super) async fn remove_confirmed(&self, id: &str) -> Result<(), EngineError> {
        let permit = self.end_permit().await?;
        let removed = self.client.remove(id).await;
        // The confirmation needs no permit.
        drop(permit);
        // A conflict: a removal is in progress.
        unless_done(removed)?;
        let gone = async {
            while self.client.inspect_existing(id).await?.is_some() {
                tokio::time::sleep(INSPECT_INTERVAL).await;
            }
            Ok(())
        };
        tokio::time::timeout(REMOVE_TIMEOUT, gone).await.unwrap_or_else(|_| {
            let seconds = REMOVE_TIMEOUT.as_secs();
            Err(EngineError::Other(format!("container {id} still exists {seconds} s after its removal")))
        })
    }

    /// A permit to end a container: few are ended concurrently.
    async fn end_permit(&self) -> Result<SemaphorePermit<'_>, EngineError> {
        self.ends.acquire().await.map_err(|closed| EngineError::Other(closed.to_string()))
    }

    async fn kill_confirmed(&self, id: &str) -> Result<(), EngineError> {
        match self.client.signal(id, "SIGKILL").await {
            Ok(()) | Err(ClientError::Conflict(_)) => {}
            Err(ClientError::NotFound(_)) => return Ok(()),
            Err(ClientError::Engine(error)) => return Err(error),
        }
        // A paused process ends on unpause. Most engines unpause by themselves, but not all.
        if self.is_paused(id).await? {
            let _unpaused_or_ended = self.client.unpause(id).await;
        }
        if self.has_ended_within(id, KILL_TIMEOUT).await? {
            return Ok(());
        }
        Err(EngineError::Other(format!("container {id} still runs {} s after SIGKILL", KILL_TIMEOUT.as_secs())))
    }

    /// Waits for the container's end, and confirms it with an inspection.
    async fn has_ended_within(&self, id: &str, limit: Duration) -> Result<bool, EngineError> {
        match self.client.wait_not_running(id, limit).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(ClientError::NotFound(_)) => return Ok(true),
            Err(error) => return Err(error.into()),
        }
        let found = self.client.inspect_existing(id).await?;
        Ok(found.is_none_or(|found| wire::view(&found).status != ContainerStatus::Running))
    }

    async fn running_id(&self, name: &str) -> Result<Option<String>, EngineError> {
        let found = self.find(name).await?;
        Ok(found.filter(|found| wire::view(found).status == ContainerStatus::Running).and_then(|found| found.id))
    }

    async fn is_paused(&self, id: &str) -> Result<bool, EngineError> {
        Ok(self.client.inspect_existing(id).await?.as_ref().is_some_and(wire::is_paused))
    }
}

/// The result of a call that changes nothing where the container is gone or in that state already.
fn unless_done(called: Result<(), ClientError>) -> Result<(), EngineError> {
    match called {
        Ok(()) | Err(ClientError::NotFound(_) | ClientError::Conflict(_)) => Ok(()),
        Err(ClientError::Engine(error)) => Err(error),
    }
}
