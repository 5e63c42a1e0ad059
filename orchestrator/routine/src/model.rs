//! The model of a lightweight run: the metered call, with what its refusals mean for a run.
//!
//! A wait that a provider asks for ends the attempt, so that it occupies no place of the runs in progress; the run is tried again
//! after it.

use std::{
    sync::{Mutex, PoisonError},
    time::Duration,
};

use agent::{DeltaSink, Model, ModelError};
use protocol::{Completion, CompletionRequestRef};

use super::journal::RunJournal;
use llm::{
    ErrorKind, Failure,
    metering::{CallError, LoopCallError, MeteredModel},
};

/// The longest wait for a place at a provider that an attempt goes through by itself.
const MAX_LOCAL_WAIT: Duration = Duration::from_secs(10);

/// Why a provider was not asked again in this attempt.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Refusal {
    Wait(Option<Duration>),
    /// It refuses the key, or the account is empty.
    Account,
}

/// The model of one attempt.
pub(super) struct RunModel<S> {
    pub(super) metered: MeteredModel<S>,
    pub(super) journal: RunJournal,
    pub(super) refusal: Mutex<Option<Refusal>>,
}

impl<S> RunModel<S> {
    /// Why a provider was not asked again, if that has ended the loop.
    pub(super) fn take_refusal(&self) -> Option<Refusal> {
        self.refusal.lock().unwrap_or_else(PoisonError::into_inner).take()
    }
}

impl<S, F> Model for RunModel<S>
where
    S: Fn() -> F + Send + Sync,
    F: Future<Output = ()> + Send,
{
    async fn complete(&self, request: &CompletionRequestRef<'_>, deltas: &DeltaSink) -> Result<Completion, ModelError> {
        // Every call of the reply has run; there is no answer to ask for.
        if self.journal.has_nothing_to_report() {
            return Err(ModelError::Stopped);
        }
        let error = match self.metered.ask(request, deltas).await {
            Ok(completion) => return Ok(completion),
            Err(error) => error,
        };
        let refusal = match &error {
            LoopCallError::Call(CallError::Failed(failure)) => refusal(failure),
            LoopCallError::Call(_) | LoopCallError::Request(_) => None,
        };
        if refusal.is_none() {
            return Err(error.for_loop());
        }
        *self.refusal.lock().unwrap_or_else(PoisonError::into_inner) = refusal;
        Err(ModelError::Failed { message: error.to_string() })
    }

    fn context_tokens(&self) -> u64 {
        self.metered.context_tokens()
    }
}

/// What a failure means for the attempt, if it is to end.
fn refusal(failure: &Failure) -> Option<Refusal> {
    match failure {
        Failure::Failed { kind: ErrorKind::Auth | ErrorKind::Quota, .. } => Some(Refusal::Account),
        Failure::RateLimited { kind: ErrorKind::RateLimited, retry_after, .. } => Some(Refusal::Wait(*retry_after)),
        Failure::RateLimited {
            kind: ErrorKind::CircuitOpen | ErrorKind::QueueTimeout,
            retry_after: Some(wait),
            ..
        } if *wait > MAX_LOCAL_WAIT => Some(Refusal::Wait(Some(*wait))),
        Failure::RateLimited { .. } | Failure::Failed { .. } => None,
    }
}

#[cfg(test)]
mod tests {
    use protocol::RateLimitOrigin;
    use rstest::rstest;

    use super::*;

    fn waits(kind: ErrorKind, seconds: Option<u64>) -> Failure {
        let retry_after = seconds.map(Duration::from_secs);
        Failure::RateLimited { kind, origin: RateLimitOrigin::Provider, retry_after, message: "m".to_owned() }
    }

    fn fails(kind: ErrorKind) -> Failure {
        Failure::Failed { kind, message: "m".to_owned() }
    }

    #[rstest]
    #[case::key(fails(ErrorKind::Auth), Some(Refusal::Account))]
    #[case::account(fails(ErrorKind::Quota), Some(Refusal::Account))]
    #[case::told(waits(ErrorKind::RateLimited, Some(7)), Some(Refusal::Wait(Some(Duration::from_secs(7)))))]
    #[case::not_told(waits(ErrorKind::RateLimited, None), Some(Refusal::Wait(None)))]
    #[case::circuit(waits(ErrorKind::CircuitOpen, Some(30)), Some(Refusal::Wait(Some(Duration::from_secs(30)))))]
    #[case::circuit_soon(waits(ErrorKind::CircuitOpen, Some(10)), None)]
    #[case::queue(waits(ErrorKind::QueueTimeout, None), None)]
    #[case::outage(waits(ErrorKind::Server, Some(60)), None)]
    #[case::refused(fails(ErrorKind::BadRequest), None)]
    #[case::aborted(fails(ErrorKind::Aborted), None)]
    fn failures_end_the_attempt_or_are_the_loops(#[case] failure: Failure, #[case] expected: Option<Refusal>) {
        assert_eq!(refusal(&failure), expected);
    }
}
