//! The heartbeat: renews the lease and receives cancellations.
//!
//! Never reports progress: that is in the job's events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use protocol::{StatusReply, StatusReport};
use tokio::sync::watch;

use crate::{
    client::{Call, CallError, OrchestratorClient},
    session::stop::StopCause,
};

/// Sends heartbeats to the orchestrator.
pub(crate) struct Heartbeat {
    /// The client, which owns the lease and the stop switch.
    pub(crate) client: Arc<OrchestratorClient>,
    /// The agent loop's iteration.
    pub(crate) iteration: watch::Receiver<u32>,
    /// The interval between heartbeats: a third of the lease.
    pub(crate) period: Duration,
}

impl Heartbeat {
    /// Sends a heartbeat every period for as long as the session runs.
    pub(crate) async fn run(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.period).await;
            let report = StatusReport { iteration: *self.iteration.borrow(), message: None };
            let answer = match Call::post(&["status"], &report) {
                Ok(call) => self.client.ask::<StatusReply>(call).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(reply) => {
                    self.client.renew_lease();
                    if reply.cancel {
                        self.client.stop().stop(StopCause::Requested);
                    }
                }
                Err(CallError::Stopped) => {}
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a heartbeat was refused"),
            }
            if self.client.stop().cause().is_some() {
                std::future::pending::<()>().await;
            }
        }
    }
}
