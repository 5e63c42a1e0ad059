//! The metered model call: recorded answer or permit, reservation and open row, provider, settlement.
//!
//! Guarantees that every call has its row before a provider is asked, that the row is closed with its usage before the
//! answer is used, that the ids of tool calls are unique within their job or turn, and that a call which is dropped is
//! settled as aborted. Never knows who waits for the answer, and never speaks HTTP.

mod account;
mod call_limiter;
mod model;
mod redaction;
mod single_flight;
mod wait_status;

use std::{collections::HashSet, fmt, sync::Arc, time::Duration};

use agent::DeltaSink;
use futures_util::FutureExt as _;
use protocol::{Completion, CompletionRequest, EventData, Execution, Message, ToolCall, WorkId};
use tokio::sync::{OwnedSemaphorePermit, watch};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use self::redaction::Redaction;
pub use self::{
    account::{Account, CallName},
    call_limiter::CallLimiter,
    model::MeteredModel,
    single_flight::{FlightError, SingleFlight},
};
use super::{Answer, AskError, CallContext, CallCost, CallOwner, CallPhase, Failure, Gateway, UnpricedModel, call_ids};
use base::{clock::Clock, failpoint};
use domain::budget::{CallEstimate, DayLimits, ExhaustedBudget};
use secrets::{DetectorError, LeakDetectors};
use store::{CallFailure, CallRow, CallsMade, KnownCall, NewCall, OpenedCall, Reserved, Store, StoreError};

/// Calls of any end for each that may be answered, and those that every job may make besides.
const CALLS_PER_ITERATION: u64 = 3;
const EXTRA_CALLS: u64 = 10;
/// Backoff between tries to record a call.
const MIN_BACKOFF: Duration = Duration::from_millis(200);
const MAX_BACKOFF: Duration = Duration::from_secs(10);

/// Makes model calls that are recorded, limited and charged. Clones share everything.
#[derive(Clone)]
pub struct Meter {
    /// Where calls are recorded and budgets kept.
    pub store: Store,
    /// Finds users' secrets in requests and answers.
    pub detectors: LeakDetectors,
    pub gateway: Arc<Gateway>,
    pub clock: Clock,
    /// The budget of each user for a day.
    pub day_limits: DayLimits,
    /// Owns settlements of calls that were dropped.
    pub tasks: TaskTracker,
    /// Cancelled when the process drains: a busy database is no longer waited for.
    pub drain: CancellationToken,
}

/// Why a call has no answer.
#[derive(Debug, Clone, thiserror::Error)]
pub enum CallError {
    /// The id is that of another request.
    #[error("the call id was used for another request")]
    IdReused,
    /// The owner may make no more calls.
    #[error("{0}")]
    LimitReached(String),
    #[error("{}", .0.message())]
    BudgetExceeded(ExhaustedBudget),
    /// A cost limit applies, and the model has no price.
    #[error(transparent)]
    Unpriced(#[from] UnpricedModel),
    /// The owner is to stop, or is over.
    #[error("the call was stopped")]
    Stopped,
    /// No provider answered.
    #[error(transparent)]
    Failed(Failure),
    /// What would be sent could not be searched for the owner's secrets.
    #[error(transparent)]
    Unsearched(#[from] DetectorError),
    /// It could not be recorded.
    #[error("the call could not be recorded")]
    Store(#[source] Arc<StoreError>),
}

impl From<StoreError> for CallError {
    fn from(error: StoreError) -> Self {
        Self::Store(Arc::new(error))
    }
}

/// The outcome of opening a call.
enum Opened {
    /// It was answered before; its answer is not paid for again.
    Recorded(Box<Completion>),
    /// A provider may be asked.
    Open(Box<OpenCall>),
}

impl Meter {
    /// Makes a call, or returns its recorded answer. `stop` returns a future that is ready once there is no caller for
    /// the owner's calls any more; the provider is then dropped at once. A recorded answer has no deltas.
    pub async fn complete<S: Future<Output = ()> + Send>(
        &self,
        account: &Account,
        name: CallName,
        request: impl FnOnce() -> CompletionRequest + Send,
        deltas: &DeltaSink,
        stop: impl Fn() -> S + Send + Sync,
    ) -> Result<Completion, CallError> {
        let caller = CallOwner { work: account.execution.work, user: &account.user };
        let has_cost_limit = account.has_cost_limit || self.day_limits.max_micro_usd > 0;
        let context = CallContext {
            caller,
            job_title: Some(&account.title),
            model: Some(&account.model),
            effort: account.effort,
            has_cost_limit,
            has_budget: self.has_budget(account),
            deltas: Some(deltas),
            detector: None,
            phase: None,
        };
        // What is refused without asking a provider reserves nothing and has no row.
        let refused = if stop().now_or_never().is_some() {
            Some(CallError::Stopped)
        } else if let Some(unpriced) = self.check_price(account, has_cost_limit) {
            Some(unpriced)
        } else {
            self.gateway.refusal(&context).map(CallError::Failed)
        };
        if let Some(refused) = refused {
            return self.recorded(account, &name).await?.ok_or(refused);
        }
        let permit = if let Some(permit) = account.limiter.try_acquire() {
            permit
        } else {
            if let Some(answer) = self.recorded(account, &name).await? {
                return Ok(answer);
            }
            tokio::select! {
                biased;
                () = stop() => return Err(CallError::Stopped),
                permit = account.limiter.acquire() => permit,
            }
        };
        let mut request = request();
        let detector = self.detectors.of(&account.user).await?;
        let redaction = Redaction::of_request(detector, &mut request).await?;
        let estimate = self.gateway.estimate(&request, &context);
        let open = match self.open(account, name, &estimate, permit).await? {
            Opened::Recorded(answer) => return Ok(*answer),
            Opened::Open(open) => open,
        };
        failpoint::reach("llm.after_open");
        request.max_tokens = Some(open.max_output_tokens());
        let (phase, shown) = watch::channel(CallPhase::Asking { attempt: 1, of: 1 });
        let context = CallContext { phase: Some(&phase), ..context };
        let asked = tokio::select! {
            biased;
            asked = redaction.ask(&self.gateway, &request, context, stop()) => asked,
            never = Box::pin(self.report_wait(account.execution, deltas, shown)) => match never {},
        };
        match asked {
            Err(AskError { failure, reached_provider: false, .. }) => {
                open.release().await?;
                Err(CallError::Failed(failure))
            }
            Err(AskError { failure, cost, .. }) => {
                let unanswered = CallFailure { kind: failure.kind(), message: failure.to_string() };
                open.settle(cost, Err(unanswered)).await?;
                Err(CallError::Failed(failure))
            }
            Ok(Answer { mut completion, cost }) => {
                self.name_calls(account.execution, &request.messages, &mut completion.tool_calls).await;
                let notice = open.settle(cost, Ok(completion.clone())).await?;
                Ok(Completion { notice, ..completion })
            }
        }
    }

    /// Whether calls of this account reserve their worst case.
    fn has_budget(&self, account: &Account) -> bool {
        account.has_budget || !self.day_limits.is_none()
    }

    /// The price may have been removed while the job waited: a cost limit that cannot be enforced ends the job.
    fn check_price(&self, account: &Account, has_cost_limit: bool) -> Option<CallError> {
        let refused = has_cost_limit.then(|| self.gateway.check_price(&account.model).err()).flatten();
        refused.map(CallError::Unpriced)
    }

    /// Opens a call: reserves its worst case in every budget that it draws on and writes its row, in one transaction.
    async fn open(
        &self,
        account: &Account,
        name: CallName,
        estimate: &CallEstimate,
        permit: OwnedSemaphorePermit,
    ) -> Result<Opened, CallError> {
        let provider = self.gateway.health().into_iter().next().map(|first| first.name).unwrap_or_default();
        let call = NewCall {
            key: account.key(&name.id),
            request_digest: name.request_digest,
            at: self.clock.now(),
            provider,
            model: account.model.clone(),
            user: account.user.clone(),
            estimate: *estimate,
            max_answers: account.max_iterations.into(),
            max_calls: max_calls(account.max_iterations.into()),
            budget: self.has_budget(account).then_some(self.day_limits),
        };
        match self.store.open_model_call(&call).await? {
            OpenedCall::Open { reserved, made } => {
                if account.has_cost_limit && estimate.prices.is_none() && made.all == 0 {
                    self.report_missing_price(account.execution, &account.model).await?;
                }
                let meter = self.clone();
                Ok(Opened::Open(Box::new(OpenCall { meter, call: Some(Box::new(call)), reserved, _permit: permit })))
            }
            OpenedCall::Known(known) => {
                let same = known.is_same_request(&call.request_digest);
                let answer = known.answer.filter(|_| same).ok_or(CallError::IdReused)?;
                Ok(Opened::Recorded(Box::new(answer)))
            }
            OpenedCall::LimitReached(made) => Err(CallError::LimitReached(limit_reached(account, made))),
            OpenedCall::BudgetExceeded(budget) => Err(CallError::BudgetExceeded(budget)),
            OpenedCall::NotLive => Err(CallError::Stopped),
        }
    }

    /// Makes the ids of an answer's calls unique within the job, the turn, or the run.
    async fn name_calls(&self, execution: Execution, conversation: &[Message], calls: &mut [ToolCall]) {
        let mut used = HashSet::new();
        if call_ids::may_repeat(calls) {
            match self.store.tool_call_ids(execution).await {
                Ok(ids) => used = ids,
                // An answer that was paid for is not lost: every call gets a new id.
                Err(_) => used.extend(calls.iter().map(|call| call.id.clone())),
            }
        }
        call_ids::make_unique(conversation, used, calls);
    }

    /// The recorded answer of a call, if it has one.
    async fn recorded(&self, account: &Account, name: &CallName) -> Result<Option<Completion>, CallError> {
        let known: Option<KnownCall> = self.store.model_call(&account.key(&name.id)).await?;
        match known {
            Some(known) if !known.is_same_request(&name.request_digest) => Err(CallError::IdReused),
            known => Ok(known.and_then(|known| known.answer)),
        }
    }

    /// Says in a job's events that its cost limit is not enforced. Threads and runs have no limit.
    async fn report_missing_price(
        &self,
        Execution { work, attempt }: Execution,
        model: &str,
    ) -> Result<(), StoreError> {
        let WorkId::Job(job) = work else { return Ok(()) };
        let message = format!("{model} has no price: limits.max_cost_usd is not enforced, only token limits are");
        let status = EventData::Status { message, iteration: 0 };
        self.store.append_if_live(job, attempt, self.clock.now(), vec![status]).await
    }
}

/// A call that has its row. It can outlive its opener: dropped without being settled, it is settled as aborted and
/// charged its prompt estimate.
struct OpenCall {
    meter: Meter,
    /// None once it is settled.
    call: Option<Box<NewCall>>,
    reserved: Reserved,
    _permit: OwnedSemaphorePermit,
}

impl OpenCall {
    /// The most that the answer may have.
    fn max_output_tokens(&self) -> u64 {
        self.reserved.amount.max_output_tokens
    }

    /// Closes the row with what the call cost. Returns a new warning for the agent about its budget, if there is one.
    async fn settle(
        mut self,
        cost: CallCost,
        answer: Result<Completion, CallFailure>,
    ) -> Result<Option<String>, StoreError> {
        failpoint::reach("llm.after_answer");
        let Some(call) = &self.call else { return Ok(None) };
        let row = CallRow {
            key: call.key.clone(),
            at: self.meter.clock.now(),
            provider: cost.provider,
            model: cost.model,
            usage: cost.usage,
            cost_micro_usd: cost.cost_micro_usd,
            duration_ms: u64::try_from(cost.duration.as_millis()).unwrap_or(u64::MAX),
            reserved: self.reserved.clone(),
            answer,
        };
        let notice = self.meter.close(&row).await;
        // After the retries a row that is still open is the next process's to close.
        self.call = None;
        notice
    }

    /// Takes the call back: no provider was asked.
    async fn release(mut self) -> Result<(), StoreError> {
        let Some(call) = self.call.take() else { return Ok(()) };
        let (store, reserved) = (&self.meter.store, &self.reserved);
        let release = || store.release_model_call(&call.key, &call.user, reserved);
        retry_write(&self.meter.drain, &call.key, release).await
    }
}

impl Meter {
    async fn close(&self, row: &CallRow) -> Result<Option<String>, StoreError> {
        retry_write(&self.drain, &row.key, || self.store.close_model_call(row)).await
    }
}

impl Drop for OpenCall {
    fn drop(&mut self) {
        let Some(call) = self.call.take() else { return };
        // Without a runtime the row stays open, and the next process closes it.
        if tokio::runtime::Handle::try_current().is_err() {
            return;
        }
        let (meter, reserved) = (self.meter.clone(), std::mem::take(&mut self.reserved));
        self.meter.tasks.spawn(async move {
            let row = CallRow::aborted(&call, reserved, meter.clock.now());
            if let Err(error) = meter.close(&row).await {
                let error = &error as &dyn std::error::Error;
                tracing::warn!(call = ?row.key, error, "an aborted call could not be settled");
            }
        });
    }
}

/// Writes the outcome of a call, retrying while the database is busy or full and the process does not drain: an answer
/// that was paid for is not lost, and nothing stays reserved.
pub async fn retry_write<T, W>(
    drain: &CancellationToken,
    caller: &(impl fmt::Debug + Sync),
    write: impl Fn() -> W + Send,
) -> Result<T, StoreError>
where
    W: Future<Output = Result<T, StoreError>>,
{
    let mut backoff = MIN_BACKOFF;
    loop {
        let error = match write().await {
            Ok(done) => return Ok(done),
            Err(error) => error,
        };
        if drain.is_cancelled() || !error.is_transient() {
            return Err(error);
        }
        tracing::warn!(?caller, error = &error as &dyn std::error::Error, "recording a call failed; retrying");
        drop(error);
        tokio::select! {
            () = tokio::time::sleep(backoff) => backoff = (backoff * 2).min(MAX_BACKOFF),
            () = drain.cancelled() => {}
        }
    }
}

const fn max_calls(max_iterations: u64) -> u64 {
    max_iterations * CALLS_PER_ITERATION + EXTRA_CALLS
}

fn limit_reached(account: &Account, made: CallsMade) -> String {
    let iterations = u64::from(account.max_iterations);
    let (owner, limit) = match account.execution.work {
        WorkId::Job(_) => ("job", "limits.max_iterations"),
        WorkId::Thread(_) => ("turn", "the limit of model calls of a turn"),
        WorkId::Run(_) => ("run", "the limit of model calls of a run"),
    };
    if made.answered < iterations && made.all >= max_calls(iterations) {
        format!("the {owner} has made {} model calls, failed ones included; it may make no more", max_calls(iterations))
    } else {
        format!("{limit} = {iterations} is reached")
    }
}
