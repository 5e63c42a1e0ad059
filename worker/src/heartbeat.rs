//! The heartbeat: renews the lease, and learns when the job is to stop.
//!
//! Never reports anything else; what happens in the job is in its events.

use std::{convert::Infallible, sync::Arc, time::Duration};

use protocol::{StatusReply, StatusReport};
use tokio::sync::watch;

use crate::{
    client::{Call, CallError, OrchestratorClient},
    stop::StopCause,
};

/// Sends heartbeats.
pub(crate) struct Heartbeat {
    /// Sends them, and stops the session when an answer says so.
    pub(crate) client: Arc<OrchestratorClient>,
    /// The loop's iteration.
    pub(crate) iteration: watch::Receiver<u32>,
    /// Between two of them: a third of the lease.
    pub(crate) period: Duration,
}

impl Heartbeat {
    /// Sends one each period, for as long as the session lives.
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
                        self.client.stop().stop(StopCause::Asked);
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
