//! A container's life on Docker: made, checked, started or adopted; seen; ended; removed.
//!
//! Owns the order of the calls and what each failure means for the container. Never starts what was not compared with
//! its posture, never says that something is gone without having seen it.

use std::{sync::Arc, time::Duration};

use futures_util::{StreamExt as _, stream};
use tokio::sync::SemaphorePermit;

use super::{
    Docker,
    client::Fault,
    posture::Posture,
    spec::{self, LABEL_INSTANCE},
    wire::{self, ContainerSummary, Inspected},
};
use crate::{
    engine::{Adoption, AdoptionSpec, ContainerRole, ContainerSpec, ContainerStatus, ContainerView, EngineError},
    failpoint,
};

/// After SIGKILL the kernel still has to free what a fork bomb or a full memory holds.
const KILL_LIMIT: Duration = Duration::from_secs(10);
/// A removal that is under way already is waited for.
const REMOVE_LIMIT: Duration = Duration::from_secs(10);
/// A worker that obeys SIGTERM has ended by then; one that has not gives its permit to another.
const PROMPT_END: Duration = Duration::from_millis(500);
/// A start that takes longer has failed, whatever the engine will still make of it.
const START_LIMIT: Duration = Duration::from_mins(2);
/// The list waits so long for an inspection; what takes longer is seen at the next look.
const LOOK_LIMIT: Duration = Duration::from_millis(500);
const LOOKS_AT_ONCE: usize = 50;
/// Where the engine has no event for what is waited for.
const LOOK_EVERY: Duration = Duration::from_millis(50);

impl Docker {
    /// Makes the container, checks it against the posture and starts it; its id. One of its name that was made and never
    /// started is replaced unless it is the same, and one that runs or has run is taken up: the answer to an earlier call
    /// was lost.
    pub(super) async fn start(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        let posture = self.wanted(spec).await?;
        let started = Box::pin(async {
            loop {
                match self.make(spec, &posture).await? {
                    Some(id) => return self.start_checked(&id, &posture).await,
                    None => match self.find(&spec.name).await? {
                        Some(seen) if wire::view(&seen).status == ContainerStatus::Created => {
                            match self.start_checked(&seen.id.unwrap_or_default(), &posture).await {
                                // It was made by other settings, and is gone.
                                Err(EngineError::PostureMismatch { .. }) => {}
                                other => return other,
                            }
                        }
                        Some(seen) => return self.take_up_own(spec, &posture, &seen).await,
                        // A name is taken a little before its container can be seen, and let go a little after.
                        None => tokio::time::sleep(LOOK_EVERY).await,
                    },
                }
            }
        });
        tokio::time::timeout(START_LIMIT, started).await.unwrap_or_else(|_| {
            let (name, limit_seconds) = (&spec.name, START_LIMIT.as_secs());
            Err(EngineError::Other(format!("container {name} was neither made nor found within {limit_seconds} s")))
        })
    }

    /// Makes the container and compares it with its posture, without starting it; the posture's digest.
    pub(super) async fn make_only(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        let posture = self.wanted(spec).await?;
        let id = self.make(spec, &posture).await?;
        let id = id.ok_or_else(|| EngineError::Other(format!("the name {} is taken", spec.name)))?;
        posture.check(&wire::seen_posture(&self.client.inspect(&id).await?))?;
        posture.digest()
    }

    /// The new container's id; none when its name is taken.
    async fn make(&self, spec: &ContainerSpec, posture: &Posture) -> Result<Option<String>, EngineError> {
        let body = wire::create_body(posture, &spec.created_at.to_rfc3339());
        match self.client.create(&spec.name, body).await {
            Ok(id) => {
                if spec.role == ContainerRole::Job {
                    failpoint::reach("start.after_create");
                }
                Ok(Some(id))
            }
            Err(Fault::NotFound(_)) => Err(EngineError::ImageMissing(spec.image.clone())),
            Err(Fault::Engine(error)) => Err(error),
            Err(Fault::Conflict(_)) => Ok(None),
        }
    }

    /// The posture with the facts of the image that the engine has under this name.
    async fn wanted(&self, spec: &ContainerSpec) -> Result<Posture, EngineError> {
        let known = self.known().await?;
        let (image, folders) = (self.image_facts(&spec.image).await?, known.folders(spec)?);
        spec::posture(spec, &known.context(self.settings.instance_id, &image, &folders))
    }

    /// The digest of the posture that such a container gets.
    pub(super) async fn digest_of(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.wanted(spec).await?.digest()
    }

    /// The gate that every new container passes: inspected, compared, and only then started. What does not pass is gone.
    async fn start_checked(&self, id: &str, posture: &Posture) -> Result<String, EngineError> {
        let passed = async {
            let seen = self.client.inspect(id).await?;
            posture.check(&wire::seen_posture(&seen))?;
            match self.client.start(id).await {
                Ok(()) | Err(Fault::Conflict(_)) => Ok(id.to_owned()),
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

    /// A container of this name runs or has run already. One that is not ours in every respect is removed.
    async fn take_up_own(
        &self,
        spec: &ContainerSpec,
        posture: &Posture,
        seen: &Inspected,
    ) -> Result<String, EngineError> {
        let id = seen.id.clone().unwrap_or_default();
        let adoption = AdoptionSpec {
            name: spec.name.clone(),
            id: None,
            job_id: spec.job_id,
            attempt: spec.attempt,
            posture: posture.digest()?,
            resources: spec.resources,
        };
        match self.check_adopted(&adoption, seen) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.discard(&id).await;
                Err(error)
            }
        }
    }

    /// Takes up a container that an earlier call made, whatever today's settings are.
    pub(super) async fn take_up(&self, spec: &AdoptionSpec) -> Result<Adoption, EngineError> {
        let Some(seen) = self.find(&spec.name).await? else { return Ok(Adoption::NotFound) };
        if wire::view(&seen).status == ContainerStatus::Created {
            return Ok(Adoption::NotStarted);
        }
        self.check_adopted(spec, &seen)?;
        Ok(Adoption::Adopted { id: seen.id.unwrap_or_default() })
    }

    /// Whether it is the one that was made, with the limits that its job has.
    fn check_adopted(&self, spec: &AdoptionSpec, seen: &Inspected) -> Result<(), EngineError> {
        let found = seen.id.as_deref().unwrap_or_default();
        if let Some(id) = spec.id.as_deref().filter(|id| *id != found) {
            return Err(mismatch("Id", found, id));
        }
        for (name, wanted) in spec::identifying_labels(spec, self.settings.instance_id) {
            let found = wire::label(seen, name).unwrap_or("nothing");
            if found != wanted {
                return Err(mismatch(&format!("Config.Labels.{name}"), found, &wanted));
            }
        }
        // Of the runtime that it was made with, which need not be today's.
        spec::live_settings(&spec.resources, wire::runtime(seen))?.check(&wire::live_settings(seen))
    }

    /// Removes what must not run. A failure is told and left to the next look at the list.
    async fn discard(&self, id: &str) {
        if let Err(error) = self.remove_confirmed(id).await {
            tracing::warn!(container.id = id, %error, "a container that must not run could not be removed");
        }
    }

    /// The container of exactly this name. One of another instance is refused: it is not ours to know or touch.
    pub(super) async fn find(&self, name: &str) -> Result<Option<Inspected>, EngineError> {
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
    pub(super) async fn all(&self, labels: &[String]) -> Result<Vec<ContainerView>, EngineError> {
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
    pub(super) async fn end(&self, name: &str, grace: Duration) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        if self.is_paused(&id).await? {
            // It cannot hear a SIGTERM.
            let _permit = self.end_permit().await?;
            return self.kill_confirmed(&id).await;
        }
        let prompt = grace.min(PROMPT_END);
        {
            let _permit = self.end_permit().await?;
            match self.client.signal(&id, "SIGTERM").await {
                Ok(()) | Err(Fault::Conflict(_)) => {}
                Err(Fault::NotFound(_)) => return Ok(()),
                Err(Fault::Engine(error)) => return Err(error),
            }
            if self.ended_within(&id, prompt).await? {
                return Ok(());
            }
        }
        // The rest of its grace is waited for without a permit, so that it delays no other end.
        let rest = grace.saturating_sub(prompt);
        if !rest.is_zero() && self.ended_within(&id, rest).await? {
            return Ok(());
        }
        let _permit = self.end_permit().await?;
        self.kill_confirmed(&id).await
    }

    /// Permission to end a container: few are ended at the same time.
    async fn end_permit(&self) -> Result<SemaphorePermit<'_>, EngineError> {
        self.ends.acquire().await.map_err(|closed| EngineError::Other(closed.to_string()))
    }

    /// Freezes it first, so that nothing in it acts on being killed piece by piece.
    pub(super) async fn end_now(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        let _permit = self.end_permit().await?;
        // Not every runtime can; the kill is what counts.
        if let Err(fault) = self.client.pause(&id).await {
            tracing::debug!(container.id = id, ?fault, "not paused before the kill");
        }
        self.kill_confirmed(&id).await
    }

    /// Freezes what runs.
    pub(super) async fn freeze(&self, name: &str) -> Result<(), EngineError> {
        let Some(id) = self.running_id(name).await? else { return Ok(()) };
        match self.client.pause(&id).await {
            // A conflict: it is frozen already, or has just ended.
            Ok(()) | Err(Fault::NotFound(_) | Fault::Conflict(_)) => Ok(()),
            Err(Fault::Engine(error)) => Err(error),
        }
    }

    /// Thaws what is frozen.
    pub(super) async fn thaw(&self, name: &str) -> Result<(), EngineError> {
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
    pub(super) async fn first_process(&self, name: &str) -> Result<Option<u32>, EngineError> {
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
    pub(super) async fn exit_of(&self, id: &str, limit: Duration) -> Result<Option<ContainerStatus>, EngineError> {
        if !self.ended_within(id, limit).await? {
            return Ok(None);
        }
        let seen = self.client.inspect(id).await?;
        Ok(Some(wire::view(&seen).status))
    }

    /// The last of what it printed.
    pub(super) async fn printed(&self, name: &str, max_bytes: usize) -> Result<String, EngineError> {
        let Some(id) = self.find(name).await?.and_then(|seen| seen.id) else {
            return Err(EngineError::Refused(format!("container {name} is not there")));
        };
        let tail = self.client.logs(&id, max_bytes).await?;
        Ok(String::from_utf8_lossy(&tail).into_owned())
    }

    /// Removes the container of this name, if it is ours and there.
    pub(super) async fn clear(&self, name: &str) -> Result<(), EngineError> {
        match self.find(name).await?.and_then(|seen| seen.id) {
            Some(id) => self.remove_confirmed(&id).await,
            None => Ok(()),
        }
    }

    async fn remove_confirmed(&self, id: &str) -> Result<(), EngineError> {
        let permit = self.end_permit().await?;
        let removed = self.client.remove(id).await;
        // That it is gone is waited for without a permit.
        drop(permit);
        match removed {
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

fn mismatch(field: &str, found: &str, wanted: &str) -> EngineError {
    EngineError::PostureMismatch { field: field.to_owned(), found: found.to_owned(), wanted: wanted.to_owned() }
}
