//! The quick checks of a probe: whether the engine answers, its version, its runtimes and the job image.
//!
//! Creates nothing: the probe does.

use std::collections::BTreeSet;

use chrono::{DateTime, Utc};

use super::{Docker, spec::ImageFacts};
use crate::{EngineError, EngineFacts};

/// The result of the quick checks.
pub(super) struct Survey {
    /// All facts except the posture's digest.
    pub(super) facts: EngineFacts,
    pub(super) image: ImageFacts,
    pub(super) now: DateTime<Utc>,
}

impl Docker {
    /// Checks ping, version, runtime and image, in this order. The first failure is the error.
    pub(super) async fn survey(&self) -> Result<Survey, EngineError> {
        self.client.ping().await?;
        let version = self.client.version().await?;
        let info = self.client.info().await?;
        let profile = self.update_profile(info.default_runtime.unwrap_or_default()).await?;
        let runtimes = info.runtimes.unwrap_or_default();
        if !runtimes.contains_key(&profile.runtime) {
            return Err(EngineError::RuntimeMissing(profile.runtime.clone()));
        }
        let image = self.image_facts(&self.settings.image).await?;
        let now = info.system_time.unwrap_or_default();
        let now = DateTime::parse_from_rfc3339(&now)
            .map_err(|error| EngineError::Other(format!("cannot parse the engine's time {now:?}: {error}")))?;
        let facts = EngineFacts {
            engine: "docker".to_owned(),
            version: version.version.unwrap_or_default(),
            api_version: version.api_version.unwrap_or_default(),
            node: info.name.unwrap_or_default(),
            runtime: profile.runtime.clone(),
            runtimes: runtimes.into_keys().collect::<BTreeSet<_>>().into_iter().collect(),
            cgroup_version: info.cgroup_version.map(|version| version.to_string()).unwrap_or_default(),
            image_id: image.id.clone(),
            posture: String::new(),
        };
        Ok(Survey { facts, image, now: now.to_utc() })
    }
}
