//! Creates, compares, starts and adopts containers.
//!
//! Owns the order of the calls and what each failure means for the container. Never starts a container that was not
//! compared with its posture.

use std::time::Duration;

use super::{
    Docker,
    client::ClientError,
    posture::Posture,
    spec,
    wire::{self, Inspected},
};
use base::failpoint;

use crate::{Adoption, AdoptionSpec, ContainerRole, ContainerSpec, ContainerStatus, EngineError};

/// Timeout of a whole start. After it the start has failed, even if the engine completes it later.
pub(super) const START_TIMEOUT: Duration = Duration::from_mins(2);
/// Time between two inspections of a container whose name is taken but which is not visible yet. The engine has no
/// event for it.
const INSPECT_INTERVAL: Duration = Duration::from_millis(50);

impl Docker {
    /// Creates the container, compares it with its posture and starts it; returns its id. A container of this name that
    /// was never started is replaced unless it is identical; one that runs or has run is adopted, since the response to
    /// an earlier call may have been lost.
    pub(super) async fn create_and_start(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        let posture = self.required_posture(spec).await?;
        let started = Box::pin(async {
            loop {
                if let Some(id) = self.create_unstarted(spec, &posture).await? {
                    return self.check_and_start(&id, &posture).await;
                }
                match self.find(&spec.name).await? {
                    Some(existing) if wire::view(&existing).status == ContainerStatus::Created => {
                        match self.check_and_start(&existing.id.unwrap_or_default(), &posture).await {
                            // Created with other settings, and removed by now.
                            Err(EngineError::PostureMismatch { .. }) => {}
                            other => return other,
                        }
                    }
                    Some(existing) => return self.adopt_existing(spec, &posture, &existing).await,
                    // A name is taken shortly before its container is visible, and released shortly after.
                    None => tokio::time::sleep(INSPECT_INTERVAL).await,
                }
            }
        });
        tokio::time::timeout(START_TIMEOUT, started).await.unwrap_or_else(|_| {
            let (name, seconds) = (&spec.name, START_TIMEOUT.as_secs());
            Err(EngineError::Other(format!("container {name} could not be created or found within {seconds} s")))
        })
    }

    /// Creates the container and compares it with its posture, without starting it. Returns the posture's digest.
    pub(super) async fn create_and_check(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        let posture = self.required_posture(spec).await?;
        let id = self.create_unstarted(spec, &posture).await?;
        let id = id.ok_or_else(|| EngineError::Other(format!("the name {} is taken", spec.name)))?;
        posture.check(&wire::observed_posture(&self.client.inspect(&id).await?))?;
        posture.digest()
    }

    /// Creates the container; returns its id, or none if its name is taken.
    async fn create_unstarted(&self, spec: &ContainerSpec, posture: &Posture) -> Result<Option<String>, EngineError> {
        let body = wire::create_body(posture, &spec.created_at.to_rfc3339());
        match self.client.create(&spec.name, body).await {
            Ok(id) => {
                if spec.role == ContainerRole::Job {
                    failpoint::reach("start.after_create");
                }
                Ok(Some(id))
            }
            Err(ClientError::NotFound(_)) => Err(EngineError::ImageMissing(spec.image.clone())),
            Err(ClientError::Engine(error)) => Err(error),
            Err(ClientError::Conflict(_)) => Ok(None),
        }
    }

    /// The posture of a container, with the facts of the image that the engine has under this name.
    async fn required_posture(&self, spec: &ContainerSpec) -> Result<Posture, EngineError> {
        let profile = self.profile().await?;
        let (image, dirs) = (self.image_facts(&spec.image).await?, profile.host_dirs(spec)?);
        spec::posture(spec, &profile.context(self.settings.instance_id, &image), &dirs)
    }

    pub(super) async fn posture_digest(&self, spec: &ContainerSpec) -> Result<String, EngineError> {
        self.required_posture(spec).await?.digest()
    }

    /// Every new container passes here: it is inspected, compared, and only then started. One that fails is removed.
    async fn check_and_start(&self, id: &str, posture: &Posture) -> Result<String, EngineError> {
        let started = async {
            let inspected = self.client.inspect(id).await?;
            posture.check(&wire::observed_posture(&inspected))?;
            match self.client.start(id).await {
                Ok(()) | Err(ClientError::Conflict(_)) => Ok(id.to_owned()),
                Err(error) => Err(EngineError::from(error)),
            }
        };
        match started.await {
            Ok(started) => Ok(started),
            Err(error) => {
                self.discard(id).await;
                Err(error)
            }
        }
    }

    /// Adopts a container of this name that runs or has run. One that is not identical is removed.
    async fn adopt_existing(
        &self,
        spec: &ContainerSpec,
        posture: &Posture,
        existing: &Inspected,
    ) -> Result<String, EngineError> {
        let id = existing.id.clone().unwrap_or_default();
        let adoption = AdoptionSpec {
            name: spec.name.clone(),
            id: None,
            job_id: spec.job_id,
            attempt: spec.attempt,
            posture: posture.digest()?,
            resources: spec.resources,
        };
        match self.check_identity(&adoption, existing) {
            Ok(()) => Ok(id),
            Err(error) => {
                self.discard(&id).await;
                Err(error)
            }
        }
    }

    /// Adopts a container that an earlier call created, whatever today's settings are.
    pub(super) async fn adopt_container(&self, spec: &AdoptionSpec) -> Result<Adoption, EngineError> {
        let Some(existing) = self.find(&spec.name).await? else { return Ok(Adoption::NotFound) };
        if wire::view(&existing).status == ContainerStatus::Created {
            return Ok(Adoption::NotStarted);
        }
        self.check_identity(spec, &existing)?;
        Ok(Adoption::Adopted { id: existing.id.unwrap_or_default() })
    }

    /// Checks that a container is the one that was created, with its job's limits.
    fn check_identity(&self, spec: &AdoptionSpec, existing: &Inspected) -> Result<(), EngineError> {
        let found = existing.id.as_deref().unwrap_or_default();
        if let Some(id) = spec.id.as_deref().filter(|id| *id != found) {
            return Err(mismatch("Id", found, id));
        }
        for (name, wanted) in spec::identifying_labels(spec, self.settings.instance_id) {
            let found = wire::label(existing, name).unwrap_or("nothing");
            if found != wanted {
                return Err(mismatch(&format!("Config.Labels.{name}"), found, &wanted));
            }
        }
        // For the runtime that it was created with, which may differ from today's.
        spec::live_settings(&spec.resources, wire::runtime(existing))?.check(&wire::live_settings(existing))
    }

    /// Removes a container that must not run. A failure is logged; the dispatcher finds it in the next list.
    pub(super) async fn discard(&self, id: &str) {
        if let Err(error) = self.remove_confirmed(id).await {
            tracing::warn!(container.id = id, %error, "cannot remove a container that must not run");
        }
    }
}

fn mismatch(field: &str, found: &str, wanted: &str) -> EngineError {
    EngineError::PostureMismatch { field: field.to_owned(), found: found.to_owned(), wanted: wanted.to_owned() }
}
