//! The methods `cron.*`.

use std::time::Duration;

use chrono::{DateTime, Utc};
use dispatch::{RoutineCaller, RoutineError};
use domain::{
    ExpectedVersion,
    routine::cron_job::{self, CronJobFacts, LastRun},
};
use protocol::{
    CronJob, CronJobs, CronPayload, CronRan, CronRuns, CronStatus, ErrorCode, Routine, RoutineId, RoutineRun,
    RoutineSaved, RunId, RunStatus, TriggerRoutine, TriggerType,
};
use serde::Deserialize;
use serde_json::{Value, json};
use store::{CronJobFilter, RoutineFilter, RunFilter, Topic};

use super::to_result;
use crate::{
    problem::ApiError,
    public::{
        PublicApi,
        request::{RpcCaller, cursor},
    },
};

const MAX_JOBS: u32 = 1_000;
const MAX_RUNS: u32 = 200;
const DEFAULT_RUNS: u32 = 50;
/// Names that are tried for a job whose name is taken.
const MAX_NAMES: u32 = 100;
/// How long a call waits until the sweep has claimed what is due; the sweep looks once a second.
const CLAIM_TIMEOUT: Duration = Duration::from_secs(3);
const SCHEDULES: [TriggerType; 3] = [TriggerType::Cron, TriggerType::Every, TriggerType::At];

#[derive(Debug, Default, Deserialize)]
#[serde(rename_all = "camelCase", deny_unknown_fields, default)]
pub(super) struct ListParams {
    include_disabled: bool,
    limit: Option<u32>,
    cursor: Option<String>,
}

/// Parameters of `cron.status`: none.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct NoParams {}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct UpdateParams {
    id: RoutineId,
    patch: Value,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct IdParams {
    id: RoutineId,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunParams {
    id: RoutineId,
    #[serde(default)]
    mode: RunMode,
}

#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
enum RunMode {
    #[default]
    Due,
    Force,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct RunsParams {
    id: RoutineId,
    limit: Option<u32>,
}

fn limit(asked: Option<u32>, default: u32, max: u32) -> Result<u32, ApiError> {
    match asked.unwrap_or(default) {
        limit if (1..=max).contains(&limit) => Ok(limit),
        _ => Err(ApiError::field("limit", format!("must be 1 to {max}"))),
    }
}

/// The caller's own jobs, newest first.
pub(super) async fn list(api: &PublicApi, caller: &RpcCaller, params: ListParams) -> Result<Value, ApiError> {
    let filter = CronJobFilter {
        user: caller.who.user.clone(),
        includes_disabled: params.include_disabled,
        before: params.cursor.as_deref().map(cursor::read::<RoutineId>).transpose()?,
        limit: limit(params.limit, MAX_JOBS, MAX_JOBS)?,
    };
    let _permit = api.read_permit(&caller.who).await?;
    let (jobs, next) = api.store.cron_jobs(&filter).await?;
    let jobs = jobs.into_iter().filter_map(cron_job::shown).collect();
    to_result(&CronJobs { jobs, next_cursor: next.map(|id| cursor::write(&id.to_string())) })
}

pub(super) async fn status(api: &PublicApi, caller: &RpcCaller, NoParams {}: NoParams) -> Result<Value, ApiError> {
    let filter =
        RoutineFilter { user: Some(caller.who.user.clone()), triggers: SCHEDULES.to_vec(), ..RoutineFilter::default() };
    let automation = api.store.automation().await?;
    let (jobs, next) = api.store.count_routines(&filter).await?;
    let enabled = automation.cron_enabled && api.routines.cron_enabled;
    to_result(&CronStatus { enabled, jobs, next_wake_at_ms: next.map(|at| at.timestamp_millis()) })
}

pub(super) async fn add(api: &PublicApi, caller: RoutineCaller, params: Value) -> Result<Value, ApiError> {
    let (job, ignored) = cron_job::added(params)?;
    let name = job.name.clone();
    for number in 1..=MAX_NAMES {
        let id = RoutineId::generate();
        let mut job = job.clone();
        if number > 1 {
            job.name = cron_job::numbered_name(&name, number);
        }
        let routine = cron_job::to_routine(id, job, api.routines.limits.max_tool_rounds)?;
        match api.routines.create_with_id(id, &caller, routine, None).await {
            Ok(mut saved) => {
                saved.warnings.extend(ignored);
                add_warning(api, &mut saved);
                return saved_job(saved, None);
            }
            Err(RoutineError::NameTaken) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(RoutineError::NameTaken.into())
}

pub(super) async fn update(api: &PublicApi, caller: RoutineCaller, params: UpdateParams) -> Result<Value, ApiError> {
    let (patch, ignored) = cron_job::patch(params.patch)?;
    let routine = scheduled(api, &caller, params.id).await?;
    let name = patch.name.clone().unwrap_or_default();
    let changes_turn = matches!(patch.payload, Some(CronPayload::AgentTurn { .. }));
    for number in 1..=MAX_NAMES {
        let mut patch = patch.clone();
        if number > 1 {
            patch.name = Some(cron_job::numbered_name(&name, number));
        }
        let changes = cron_job::to_patch(&routine, patch, api.routines.limits.max_tool_rounds)?;
        match api.routines.patch(&caller, routine.id, changes, Some(ExpectedVersion::OneOf(vec![routine.rev]))).await {
            Ok(mut saved) => {
                saved.warnings.extend(ignored);
                if changes_turn {
                    add_warning(api, &mut saved);
                }
                let last = api.store.last_ended_run(routine.id).await?;
                return saved_job(saved, last);
            }
            Err(RoutineError::NameTaken) => {}
            Err(error) => return Err(error.into()),
        }
    }
    Err(RoutineError::NameTaken.into())
}

pub(super) async fn remove(api: &PublicApi, caller: RoutineCaller, params: IdParams) -> Result<Value, ApiError> {
    let routine = scheduled(api, &caller, params.id).await?;
    api.routines.delete(&caller, routine.id).await?;
    Ok(json!({"ok": true, "removed": true}))
}

pub(super) async fn run(api: &PublicApi, caller: RoutineCaller, params: RunParams) -> Result<Value, ApiError> {
    let routine = scheduled(api, &caller, params.id).await?;
    if params.mode == RunMode::Due {
        return to_result(&run_due(api, &routine).await?);
    }
    match api.routines.trigger(&caller, routine.id, TriggerRoutine::default(), None).await {
        Ok(triggered) => to_result(&ran(triggered.run.id)),
        Err(RoutineError::Skipped { run, reason }) => {
            to_result(&CronRan { ok: true, ran: false, run_id: Some(run), reason: Some(reason.to_string()) })
        }
        Err(RoutineError::Disabled) => to_result(&not_run(ErrorCode::RoutineDisabled.as_str())),
        Err(error) => Err(error.into()),
    }
}

const fn ran(run: RunId) -> CronRan {
    CronRan { ok: true, ran: true, run_id: Some(run), reason: None }
}

fn not_run(reason: &str) -> CronRan {
    CronRan { ok: true, ran: false, run_id: None, reason: Some(reason.to_owned()) }
}

/// Leaves the claim to the sweep, so that a time has one run however many ask for it, and waits for what it records.
async fn run_due(api: &PublicApi, routine: &Routine) -> Result<CronRan, ApiError> {
    if !routine.enabled {
        return Ok(not_run(ErrorCode::RoutineDisabled.as_str()));
    }
    let automation = api.store.automation().await?;
    if !automation.cron_enabled || !api.routines.cron_enabled {
        return Ok(not_run(ErrorCode::AutomationDisabled.as_str()));
    }
    let now = api.clock.now();
    let Some(due_at) = routine.next_fire_at.filter(|at| *at <= now) else { return Ok(not_run("not_due")) };
    let mut changes = api.store.event_notifier().subscribe(Topic::User(routine.user_id.clone()));
    let until = api.clock.monotonic() + CLAIM_TIMEOUT;
    api.routines.waker.wake_scheduler();
    loop {
        if let Some(claimed) = claimed(api, routine.id, due_at).await? {
            return Ok(claimed);
        }
        tokio::select! {
            () = changes.changed() => {}
            () = api.clock.sleep_until(until) => return Ok(not_run("not_claimed")),
        }
    }
}

/// What the sweep has recorded for a time that was due.
async fn claimed(api: &PublicApi, routine: RoutineId, due_at: DateTime<Utc>) -> Result<Option<CronRan>, ApiError> {
    let filter = RunFilter { routine: Some(routine), limit: 5, ..RunFilter::default() };
    let (runs, _) = api.store.runs(&filter).await?;
    // A time that was missed by a wide margin is recorded as missed, and the newest one runs instead.
    // Several times that were skipped within a minute are one entry.
    let last_of = |run: &RoutineRun| run.due_at.map(|due| run.last_skipped_at.map_or(due, |last| last.max(due)));
    let of_time = runs.iter().filter(|run| last_of(run).is_some_and(|due| due >= due_at));
    let Some(run) = of_time.min_by_key(|run| matches!(run.status, RunStatus::Skipped | RunStatus::Missed)) else {
        return Ok(None);
    };
    Ok(Some(match run.status {
        RunStatus::Skipped | RunStatus::Missed => {
            let reason = run.reason.map_or_else(|| run.status.to_string(), |reason| reason.to_string());
            CronRan { run_id: Some(run.id), ..not_run(&reason) }
        }
        _ => ran(run.id),
    }))
}

pub(super) async fn runs(api: &PublicApi, caller: &RpcCaller, params: RunsParams) -> Result<Value, ApiError> {
    let routine = scheduled(api, &caller.reader(), params.id).await?;
    let statuses = RunStatus::ALL.iter().copied().filter(|status| status.is_finished()).collect();
    let filter = RunFilter {
        routine: Some(routine.id),
        statuses,
        limit: limit(params.limit, DEFAULT_RUNS, MAX_RUNS)?,
        ..RunFilter::default()
    };
    let (mut runs, _) = api.store.runs(&filter).await?;
    api.store.add_results(&mut runs).await?;
    to_result(&CronRuns { entries: runs.into_iter().filter_map(cron_job::run_entry).collect() })
}

/// A routine with a schedule that the caller may see; others are no cron jobs.
async fn scheduled(api: &PublicApi, caller: &RoutineCaller, id: RoutineId) -> Result<Routine, ApiError> {
    let routine = api.routines.get(caller, id).await?;
    if routine.trigger.kind().is_schedule() { Ok(routine) } else { Err(not_scheduled()) }
}

fn not_scheduled() -> ApiError {
    ApiError::new(ErrorCode::NotFound, "there is no cron job with this id, or it belongs to another user")
}

fn add_warning(api: &PublicApi, saved: &mut RoutineSaved) {
    saved.warnings.extend(cron_job::lowered_rounds(&saved.routine.action, api.routines.limits.max_tool_rounds));
}

fn saved_job(mut saved: RoutineSaved, last: Option<LastRun>) -> Result<Value, ApiError> {
    for warning in &mut saved.warnings {
        warning.field = cron_job::job_field(&warning.field).to_owned();
    }
    let shown = cron_job::shown(CronJobFacts::new(saved.routine, last)).ok_or_else(not_scheduled)?;
    to_result(&CronJob { warnings: saved.warnings, ..shown })
}
