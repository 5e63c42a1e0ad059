//! A container's life on Docker: made, checked, started or adopted; seen; ended; removed.
//!
//! Owns the order of the calls and what each failure means for the container. Never starts what was not compared with
//! its posture, never says that something is gone without having seen it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};

use super::{
    Docker,
    client::Fault,
    wire::{self, ContainerSummary, Inspected},
};
use crate::{
    engine::{
        ContainerRole, ContainerSpec, ContainerStatus, ContainerView, EngineError, StartedContainer,
        posture::Posture,
        spec::{self, LABEL_INSTANCE},
    },
    failpoint,
};

/// After SIGKILL the kernel still has to free what a fork bomb or a full memory holds.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// A removal that is under way already is waited for.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);
/// A start that takes longer has failed, whatever the engine will still make of it.
const START_LIMIT: Duration = Duration::from_mins(2);
/// The list waits so long for an inspection; what takes longer is seen at the next look.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
const LOOKS_AT_ONCE: usize = 50;
/// Where the engine has no event for what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Docker {
    /// Makes the container, or adopts the one that has its name.
    pub(in crate::engine) async fn start(&self, spec: &ContainerSpec) -> Result<StartedContainer, EngineError> {
        let posture = match self.wanted(spec, &spec.image).await {
            Ok(posture) => posture,
            // The name is gone, and a container that was made when it was there may still run.
            Err(error @ EngineError::ImageMissing(_)) => {
                return match Box::pin(self.find(&spec.name)).await? {
                    Some(seen) => Box::pin(self.adopt(spec, &seen)).await,
                    None => Err(error),
                };
            }
            Err(error) => return Err(error),
        };
        let made_or_adopted = Box::pin(async {
            loop {
                let body = wire::create_body(&posture, &spec.created_at.to_rfc3339());
                match self.client.create(&spec.name, body).await {
                    Ok(id) => {
                        if spec.role == ContainerRole::Job {
                            failpoint::reach("start.after_create");
                        }
                        return self.start_checked(&id, &posture).await;
                    }
                    Err(Fault::NotFound(_)) => return Err(EngineError::ImageMissing(spec.image.clone())),
                    Err(Fault::Engine(error)) => return Err(error),
                    Err(Fault::Conflict(_)) => {}
                }
                if let Some(seen) = self.find(&spec.name).await? {
                    return self.adopt(spec, &seen).await;
                }
                // A name is taken a little before its container can be seen, and let go a little after.
                tokio::time::sleep(LOOK_EVERY).await;
            }
        });
        tokio::time::timeout(START_LIMIT, made_or_adopted).await.unwrap_or_else(|_| {
            let (name, limit_seconds) = (&spec.name, START_LIMIT.as_secs());
            Err(EngineError::Other(format!("container {name} was neither made nor found within {limit_seconds} s")))
        })
    }

    /// The posture with the facts of the image that the engine has under this name or id.
    async fn wanted(&self, spec: &ContainerSpec, image: &str) -> Result<Posture, EngineError> {
        let known = self.known().await?;
        let (image, folders) = (self.image_facts(image).await?, known.folders(spec)?);
        spec::posture(spec, &known.ground(self.settings.instance_id, &image, &folders))
    }

    /// The digest of the posture that such a container gets.
    pub(in crate::engine) async fn digest_of(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.wanted(spec, &spec.image).await?.digest()
    }

    /// The door that every new container passes: inspected, compared, and only then started. What does not pass is gone.
    async fn start_checked(&self, id: &str, posture: &Posture) -> Result<StartedContainer, EngineError> {
        let passed = async {
            let seen = self.client.inspect(id).await?;
            posture.check(&wire::seen_posture(&seen))?;
            match self.client.start(id).await {
                Ok(()) | Err(Fault::Conflict(_)) => Ok(StartedContainer { id: id.to_owned(), adopted: false }),
                Err(fault) => Err(EngineError::from(fault)),
            }
        };
        match passed.await {
            Ok(started) => Ok(started),
            Err(error) => {
                self.discard(id).await;
                Err(error)
            }
        }
    }

    /// One of this name is there. Its image is the one it was made of, whatever the image's name means by now.
    async fn adopt(&self, spec: &ContainerSpec, seen: &Inspected) -> Result<StartedContainer, EngineError> {
        let (id, image) = (seen.id.clone().unwrap_or_default(), seen.image.clone().unwrap_or_default());
        let posture = self.wanted(spec, &image).await?;
        match wire::view(seen).status {
            ContainerStatus::Created => self.start_checked(&id, &posture).await,
            ContainerStatus::Running | ContainerStatus::Exited { .. } | ContainerStatus::Unknown => {
                if let Err(error) = posture.check(&wire::seen_posture(seen)) {
                    self.discard(&id).await;
                    return Err(error);
                }
                Ok(StartedContainer { id, adopted: true })
            }
        }
    }

    /// Removes what must not run. A failure is told and left to the next look at the list.
    async fn discard(&self, id: &str) {
        if let Err(error) = self.remove_confirmed(id).await {
            tracing::warn!(container.id = id, %error, "a container that must not run could not be removed");
        }
    }

    /// The container of exactly this name. One of another instance is refused: it is not ours to know or touch.
    pub(in crate::engine) async fn find(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
        let seen = match self.client.inspect(name).await {
            Ok(seen) => seen,
            Err(Fault::NotFound(_)) => return Ok(None),
            Err(fault) => return Err(fault.into()),
        };
        // The engine also answers to the beginning of an id.
        if seen.name.as_deref().map(|seen| seen.trim_start_matches('/')) != Some(name) {
            return Ok(None);
        }
        if wire::label(&seen, LABEL_INSTANCE) != Some(self.settings.instance_id.to_string().as_str()) {
            return Err(EngineError::Refused(format!(
                "container {name} belongs to another install; rename one of them"
            )));
        }
        Ok(Some(seen))
    }

    /// Every container with these labels. One that goes away while we look is left out.
    ///
    /// Of one that runs the list says all there is to know, unless something has just happened to it: the engine tells of a
    /// death before its list shows it, while an inspection waits until that is written down.
    pub(in crate::engine) async fn all(&self, labels: &[String]) -> Result<Vec<ContainerView>, EngineError> {
        let listed = self.client.with_labels(labels).await?;
        // Nobody asks again about one that has gone.
        self.looks().retain(|id, _| listed.iter().any(|listed| listed.id.as_ref() == Some(id)));
        let looks = stream::iter(listed.into_iter().map(|listed| self.look_at(listed)));
        Ok(looks.buffered(LOOKS_AT_ONCE).filter_map(std::future::ready).collect().await)
    }

    /// An engine that lists and has no answer about one container hangs on that one alone (Docker holds its lock while it waits
    /// for the runtime). Nobody else waits for that: what becomes of it is unknown until the inspection is back.
    async fn look_at(&self, listed: ContainerSummary) -> Option<ContainerView> {
        let known = wire::view_of_listed(&listed);
        let unknown = ContainerView { status: ContainerStatus::Unknown, ..known.clone() };
        let id = listed.id?;
        let before = self.looks().remove(&id);
        let looked = match before {
            Some(look) if !look.is_finished() => {
                self.looks().insert(id, look);
                return Some(unknown);
            }
            // What it found still holds.
            Some(look) if !self.moved().contains(&id) => look.await,
            _ => {
                // Before it is looked at: what happens from now on counts for the next look.
                let moved = self.moved().remove(&id);
                if known.status == ContainerStatus::Running && !moved {
                    return Some(known);
                }
                let (client, name) = (Arc::clone(&self.client), id.clone());
                let mut look = self.tasks.spawn(async move { client.inspect(&name).await });
                let Ok(looked) = tokio::time::timeout(LOOK_LIMIT, &mut look).await else {
                    tracing::warn!(container = known.name, "the engine has no answer about this container yet");
                    self.looks().insert(id, look);
                    return Some(unknown);
                };
                looked
            }
        };
        match looked.unwrap_or_else(|died| Err(Fault::Engine(EngineError::Other(died.to_string())))) {
            Ok(seen) => Some(wire::view(&seen)),
            Err(Fault::NotFound(_)) => None,
            Err(fault) => {
                tracing::warn!(container = known.name, ?fault, "the engine cannot say how this container is");
                self.moved().insert(id);
                Some(unknown)
            }
        }
    }

    /// SIGTERM, `grace`, SIGKILL.
    pub(in crate::engine) async fn end(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        if self.is_paused(&id).await? {
            // It cannot hear a SIGTERM.
            return self.kill_confirmed(&id).await;
        }
        match self.client.signal(&id, "SIGTERM").await {
            Ok(()) | Err(Fault::Conflict(_)) => {}
            Err(Fault::NotFound(_)) => return Ok(()),
            Err(Fault::Engine(error)) => return Err(error),
        }
        if self.ended_within(&id, grace).await? { Ok(()) } else { self.kill_confirmed(&id).await }
    }

    /// Freezes it first, so that nothing in it acts on being killed piece by piece.
    pub(in crate::engine) async fn end_now(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        // Not every runtime can; the kill is what counts.
        if let Err(fault) = self.client.pause(&id).await {
            tracing::debug!(container.id = id, ?fault, "not paused before the kill");
        }
        self.kill_confirmed(&id).await
    }

    /// Freezes what runs.
    pub(in crate::engine) async fn freeze(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        match self.client.pause(&id).await {
            // A conflict: it is frozen already, or has just ended.
            Ok(()) | Err(Fault::NotFound(_) | Fault::Conflict(_)) => Ok(()),
            Err(Fault::Engine(error)) => Err(error),
        }
    }

    /// Thaws what is frozen.
    pub(in crate::engine) async fn thaw(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        if !self.is_paused(&id).await? {
            return Ok(());
        }
        match self.client.unpause(&id).await {
            Ok(()) | Err(Fault::NotFound(_) | Fault::Conflict(_)) => Ok(()),
            Err(Fault::Engine(error)) => Err(error),
        }
    }

    /// The host's number of its first process.
    pub(in crate::engine) async fn first_process(&self, name: &str) -> Result<Option<u32>, EngineError> {
        Ok(self.find(name).await?.as_ref().and_then(wire::first_process))
    }

    async fn kill_confirmed(&self, id: &str) -> Result<(), EngineError> {
        match self.client.signal(id, "SIGKILL").await {
            Ok(()) | Err(Fault::Conflict(_)) => {}
            Err(Fault::NotFound(_)) => return Ok(()),
            Err(Fault::Engine(error)) => return Err(error),
        }
        // A frozen process dies when it thaws; engines do that themselves, but not all of them.
        if self.is_paused(id).await? {
            let _thawed_or_ended = self.client.unpause(id).await;
        }
        if self.ended_within(id, KILL_LIMIT).await? {
            return Ok(());
        }
        Err(EngineError::Other(format!("container {id} still runs {} s after SIGKILL", KILL_LIMIT.as_secs())))
    }

    /// Waits for the end, and believes only what inspect says.
    async fn ended_within(&self, id: &str, limit: Duration) -> Result<bool, EngineError> {
        match self.client.wait_not_running(id, limit).await {
            Ok(true) => {}
            Ok(false) => return Ok(false),
            Err(Fault::NotFound(_)) => return Ok(true),
            Err(fault) => return Err(fault.into()),
        }
        match self.client.inspect(id).await {
            Ok(seen) => Ok(wire::view(&seen).status != ContainerStatus::Running),
            Err(Fault::NotFound(_)) => Ok(true),
            Err(fault) => Err(fault.into()),
        }
    }

    async fn running_id(&self, name: &str) -> Result<Option<String>, EngineError> {
        let found = self.find(name).await?;
        Ok(found.filter(|seen| wire::view(seen).status == ContainerStatus::Running).and_then(|seen| seen.id))
    }

    async fn is_paused(&self, id: &str) -> Result<bool, EngineError> {
        match self.client.inspect(id).await {
            Ok(seen) => Ok(wire::is_paused(&seen)),
            Err(Fault::NotFound(_)) => Ok(false),
            Err(fault) => Err(fault.into()),
        }
    }

    /// Waits until it has ended; none when it still runs after `limit`.
    pub(in crate::engine) async fn exit_of(
        &self,
        id: &str,
        limit: Duration,
    ) -> Result<Option<ContainerStatus>, EngineError> {
        if !self.ended_within(id, limit).await? {
            return Ok(None);
        }
        let seen = self.client.inspect(id).await?;
        Ok(Some(wire::view(&seen).status))
    }

    /// The last of what it printed.
    pub(in crate::engine) async fn printed(&self, name: &str, max_bytes: usize) -> Result<String, EngineError> {
        let Some(id) = self.find(name).await?.and_then(|seen| seen.id) else {
            return Err(EngineError::Refused(format!("container {name} is not there")));
        };
        let tail = self.client.logs(&id, max_bytes).await?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    /// Removes the container of this name, if it is ours and there.
    pub(in crate::engine) async fn clear(&self, name: &str) -> Result<(), EngineError> {
        match self.find(name).await?.and_then(|seen| seen.id) {
            Some(id) => self.remove_confirmed(&id).await,
            None => Ok(()),
        }
    }

    async fn remove_confirmed(&self, id: &str) -> Result<(), EngineError> {
        match self.client.remove(id).await {
            // A conflict is a removal that is under way.
            Ok(()) | Err(Fault::NotFound(_) | Fault::Conflict(_)) => {}
            Err(Fault::Engine(error)) => return Err(error),
        }
        let gone = async {
            loop {
                match self.client.inspect(id).await {
                    Err(Fault::NotFound(_)) => return Ok(()),
                    Ok(_) => tokio::time::sleep(LOOK_EVERY).await,
                    Err(fault) => return Err(fault.into()),
                }
            }
        };
        tokio::time::timeout(REMOVE_LIMIT, gone).await.unwrap_or_else(|_| {
            Err(EngineError::Other(format!(
                "container {id} is still there {} s after its removal",
                REMOVE_LIMIT.as_secs()
            )))
        })
    }
}
