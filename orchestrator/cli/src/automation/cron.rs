//! `gantry cron`: schedules through the calls `cron.*`.

mod job;
mod show;

use clap::{Args, Subcommand};
use protocol::{CronJob, CronJobs, CronRan, CronRuns, CronStatus, RoutineId, TriggerType};
use serde_json::{Value, json};

use super::routine::{find, id_of, print_warnings};
use crate::{
    client::{Client, rpc, zones},
    exit::CliError,
    output::{Format, Output, TableArgs, View, one_line, table},
};
use base::{Zone, clock::Clock};

#[derive(Debug, Subcommand)]
pub enum CronCommand {
    /// List cron jobs
    #[command(visible_alias = "ls")]
    List(ListArgs),
    /// Add a cron job
    Add(Box<job::AddArgs>),
    /// Change a cron job
    Edit(Box<job::EditArgs>),
    /// Remove a cron job
    Rm(Named),
    /// Enable a cron job
    Enable(Named),
    /// Disable a cron job
    Disable(Named),
    /// Run a cron job if it is due
    Run {
        /// Name or id
        routine: String,
        /// Run it even if it is not due
        #[arg(long)]
        force: bool,
    },
    /// List the ended runs of a cron job, newest first
    Runs {
        /// Name or id
        #[arg(required_unless_present = "id")]
        routine: Option<String>,
        /// Name or id
        #[arg(long, conflicts_with = "routine", hide = true)]
        id: Option<String>,
        /// Maximum number of runs
        #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
        limit: u32,
    },
    /// Show whether schedules run, and when the next one does
    Status,
}

/// One cron job.
#[derive(Debug, Args)]
pub struct Named {
    /// Name or id
    routine: String,
}

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Also disabled ones
    #[arg(long)]
    all: bool,
}

pub(crate) async fn run(command: CronCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let now = Clock::system().now();
    match command {
        CronCommand::List(args) => list(client, args, output).await,
        CronCommand::Add(args) => {
            let zone = zones::named(client, output).await?;
            let mut params = args.params(zone.unwrap_or(Zone::UTC), now)?;
            job::name_zone(&mut params.schedule, zone, now);
            let added: CronJob = rpc::call(client, "cron.add", &params).await?;
            print_warnings(&added.warnings, None, output);
            output.either(&added, |_| added.id.to_string())
        }
        CronCommand::Edit(args) => {
            let zone = zones::named(client, output).await?;
            let routine = find(client, &args.routine).await?;
            let mut patch = args.patch(zone.unwrap_or(Zone::UTC), now)?;
            // Another schedule without a zone keeps the one that is stored.
            if let Some(schedule) = patch.schedule.as_mut().filter(|_| routine.trigger.kind() != TriggerType::Cron) {
                job::name_zone(schedule, zone, now);
            }
            update(client, &json!({"id": routine.id, "patch": patch}), "updated", output).await
        }
        CronCommand::Enable(job) => switch(client, &job.routine, true, output).await,
        CronCommand::Disable(job) => switch(client, &job.routine, false, output).await,
        CronCommand::Rm(job) => {
            let id = id_of(client, &job.routine).await?;
            let removed: Value = rpc::call(client, "cron.remove", &json!({"id": id})).await?;
            output.either(&removed, |_| format!("{id} removed"))
        }
        CronCommand::Run { routine, force } => {
            let id = id_of(client, &routine).await?;
            return run_now(client, id, force, output).await;
        }
        CronCommand::Runs { routine, id, limit } => {
            let id = id_of(client, &routine.or(id).unwrap_or_default()).await?;
            let runs: CronRuns = rpc::call(client, "cron.runs", &json!({"id": id, "limit": limit})).await?;
            zones::shown(client, output).await;
            let view = View::new(output, &TableArgs::default(), now, None);
            output.either(&runs, |_| table(show::RUNS, &runs.entries, &view))
        }
        CronCommand::Status => {
            let status: CronStatus = rpc::call(client, "cron.status", &json!({})).await?;
            let zone = zones::shown(client, output).await;
            output.either(&status, |paint| show::status(paint, &status, zone, now))
        }
    }
}

async fn switch(client: &Client, routine: &str, enabled: bool, output: &mut Output) -> Result<(), CliError> {
    let id = id_of(client, routine).await?;
    let verb = if enabled { "enabled" } else { "disabled" };
    update(client, &json!({"id": id, "patch": {"enabled": enabled}}), verb, output).await
}

async fn update(client: &Client, params: &Value, verb: &str, output: &mut Output) -> Result<(), CliError> {
    let updated: CronJob = rpc::call(client, "cron.update", params).await?;
    print_warnings(&updated.warnings, None, output);
    output.either(&updated, |_| format!("{} {verb}", updated.id))
}

async fn run_now(client: &Client, id: RoutineId, force: bool, output: &mut Output) -> Result<(), CliError> {
    let mode = if force { "force" } else { "due" };
    let ran: CronRan = rpc::call(client, "cron.run", &json!({"id": id, "mode": mode})).await?;
    output.either(&ran, |_| match (&ran.run_id, &ran.reason) {
        (Some(run), _) => run.to_string(),
        (None, Some(reason)) if reason == "not_due" => "not run: it is not due; --force runs it now".to_owned(),
        (None, Some(reason)) => format!("not run: {}", one_line(reason)),
        (None, None) => "not run".to_owned(),
    })
}

async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<(), CliError> {
    let mut all = CronJobs::default();
    let mut cursor: Option<String> = None;
    loop {
        let mut params = json!({"includeDisabled": args.all});
        if let Some(cursor) = cursor {
            params["cursor"] = json!(cursor);
        }
        let page: CronJobs = rpc::call(client, "cron.list", &params).await?;
        all.jobs.extend(page.jobs);
        cursor = page.next_cursor;
        if cursor.is_none() {
            break;
        }
    }
    if output.format == Format::Json {
        return output.json(&all);
    }
    if all.jobs.is_empty() {
        output.note("gantry: no cron jobs");
        return Ok(());
    }
    zones::shown(client, output).await;
    let view = View::new(output, &TableArgs::default(), Clock::system().now(), None);
    let text = table(show::JOBS, &all.jobs, &view);
    output.line(&text)
}
