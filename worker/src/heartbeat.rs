//! The heartbeat: keeps the lease, and hears when the job is to stop.
//!
//! Never reports anything else; what happens in the job is told by its events.

use std::{
    convert::Infallible,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use protocol::{StatusReply, StatusReport};

use crate::{
    client::{Call, CallError, OrchestratorClient},
    stop::{StopCause, StopSwitch},
};

/// Beats each third of the lease.
pub(crate) struct Heartbeat {
    /// The way out.
    pub(crate) client: Arc<OrchestratorClient>,
    /// Thrown when the answer says so.
    pub(crate) stop: StopSwitch,
    /// How far the loop is.
    pub(crate) iteration: Arc<AtomicU32>,
    /// A third of the lease.
    pub(crate) period: Duration,
}

impl Heartbeat {
    /// For as long as the session lives.
    pub(crate) async fn beat(&self) -> Infallible {
        loop {
            tokio::time::sleep(self.period).await;
            let report = StatusReport { iteration: self.iteration.load(Ordering::Relaxed), message: None };
            let answer = match Call::post(&["status"], &report) {
                Ok(call) => self.client.ask::<StatusReply>(call).await,
                Err(error) => Err(error),
            };
            match answer {
                Ok(reply) => {
                    self.client.lease_renewed();
                    if reply.cancel {
                        self.stop.stop(StopCause::Asked);
                    }
                }
                Err(CallError::Over) => self.stop.stop(StopCause::AttemptOver),
                Err(CallError::Lost) => self.stop.stop(StopCause::OrchestratorLost),
                Err(error) => tracing::warn!(error = &error as &dyn std::error::Error, "a heartbeat was refused"),
            }
            if self.stop.cause().is_some() {
                std::future::pending::<()>().await;
            }
        }
    }
}
