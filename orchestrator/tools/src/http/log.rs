//! Decisions about connections as events of the job that asked for them.

use agent::ToolError;
use base::clock::Clock;
use egress::EgressRecord;
use protocol::{EgressDecision, EgressPhase, EventData, JobId, ToolErrorKind};
use secrets::LeakDetectors;
use store::Store;

/// Why a response is withheld: nothing leaves without a trace.
const NOT_RECORDED: &str = "the request was made, and could not be recorded; its response is withheld";

/// Appends decisions to the events of jobs.
pub(crate) struct EgressLog {
    pub(crate) store: Store,
    pub(crate) clock: Clock,
    /// A redirect may lead to a host whose name has a secret.
    pub(crate) detectors: LeakDetectors,
}

impl EgressLog {
    /// Records decisions for a job that runs.
    pub(super) async fn append(&self, job: JobId, owner: &str, records: Vec<EgressRecord>) -> Result<(), ToolError> {
        let failed = |error: &(dyn std::error::Error + 'static)| {
            tracing::error!(job.id = %job, error, "a request of a job is not recorded");
            ToolError::new(ToolErrorKind::Failed, NOT_RECORDED)
        };
        let detector = self.detectors.of(owner).await.map_err(|error| failed(&error))?;
        let event =
            |EgressRecord { destination, allowed, rule, bytes_up, bytes_down }: EgressRecord| EventData::Egress {
                phase: EgressPhase::Agent,
                host: detector.redact(&destination.host.to_string()).0.into_owned(),
                port: destination.port,
                decision: if allowed { EgressDecision::Allowed } else { EgressDecision::Denied },
                rule,
                count: 1,
                bytes_up,
                bytes_down,
            };
        let events = records.into_iter().map(event).collect();
        self.store.append_if_running(job, self.clock.now(), events).await.map_err(|error| failed(&error))
    }
}
