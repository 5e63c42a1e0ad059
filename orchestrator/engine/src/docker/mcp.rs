//! Starts containers of MCP servers, with their standard input and output attached.
//!
//! Never starts a container that was not compared with its posture, and never leaves one that was not started.

use super::{Docker, client::ClientError, create::START_TIMEOUT, posture::Posture, spec, wire};
use crate::{AttachedStreams, EngineError, McpContainerSpec};

impl Docker {
    /// Creates the container, compares it with its posture, attaches to it and starts it, in this order, so that no
    /// output is lost.
    pub(super) async fn start_mcp_container(&self, spec: &McpContainerSpec) -> Result<AttachedStreams, EngineError> {
        let profile = self.profile().await?;
        let image = self.image_facts(&spec.image).await?;
        let posture = spec::mcp_posture(spec, &profile.context(self.settings.instance_id, &image))?;
        let body = wire::create_body(&posture, &spec.created_at.to_rfc3339());
        let id = self.client.create(&spec.name, body).await.map_err(|error| match error {
            ClientError::NotFound(_) => EngineError::ImageMissing(spec.image.clone()),
            error => error.into(),
        })?;
        let started = tokio::time::timeout(START_TIMEOUT, self.attach_and_start(&id, &posture)).await;
        let started = started.unwrap_or_else(|_| {
            let seconds = START_TIMEOUT.as_secs();
            Err(EngineError::Other(format!("container {} could not be started within {seconds} s", spec.name)))
        });
        if started.is_err() {
            self.discard(&id).await;
        }
        started
    }

    async fn attach_and_start(&self, id: &str, posture: &Posture) -> Result<AttachedStreams, EngineError> {
        posture.check(&wire::observed_posture(&self.client.inspect(id).await?))?;
        let streams = self.client.attach(id).await?;
        self.client.start(id).await?;
        Ok(streams)
    }
}
