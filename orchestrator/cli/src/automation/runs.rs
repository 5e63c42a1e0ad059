//! `gantry runs`: the outcomes of the firings of routines.

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};
use protocol::{RoutineRun, RunId, RunMessage, RunReason, RunStatus};
use serde_json::Value;

use super::routine::{id_of, time};
use crate::{
    client::{Client, List, Nothing, PageArgs, pages, zones},
    exit::CliError,
    ids::{IdArg, short_id},
    input::one_of,
    job::calls::{LLM_CALLS, TOOL_CALLS},
    output::{
        Column, Output, Paint, cost, duration, escape_control_chars, local_time, one_line,
        render::{Detail, Renderer},
    },
};
use base::{Zone, clock::Clock};

const PATH: &str = "/api/runs";

#[derive(Debug, Subcommand)]
pub enum RunsCommand {
    /// List runs, newest first
    #[command(visible_alias = "ls")]
    List {
        #[command(flatten)]
        filter: Filter,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Show a run
    Show {
        /// Run id
        id: IdArg<RunId>,
        /// Also show its conversation: what the model read, thought, called and answered
        #[arg(long)]
        transcript: bool,
    },
    /// List the model calls of a lightweight run, oldest first
    LlmCalls {
        /// Run id
        id: IdArg<RunId>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// List the tool calls of a lightweight run, oldest first
    Actions {
        /// Run id
        id: IdArg<RunId>,
        #[command(flatten)]
        page: PageArgs,
    },
    /// Cancel a run that has not ended
    Cancel {
        /// Run id
        id: IdArg<RunId>,
    },
    /// Print all runs, newest first, one JSON object per line
    Export {
        #[command(flatten)]
        filter: Filter,
    },
}

/// Which runs.
#[derive(Debug, Args)]
pub struct Filter {
    /// Only runs of this routine: its name or id
    #[arg(long, value_name = "ROUTINE")]
    routine: Option<String>,
    /// Only runs with these statuses, separated by commas: queued, running, ok, attention, failed, skipped, missed
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only runs with these triggers, separated by commas
    #[arg(long, value_name = "TRIGGER")]
    trigger: Option<String>,
    /// Only runs that failed, were skipped or were missed for this reason, such as `cooldown`
    #[arg(long, value_parser = one_of(RunReason::ALL), hide_possible_values = true)]
    reason: Option<RunReason>,
    /// Only runs since this time: RFC 3339, a local time, or a duration ago such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    /// Only runs whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Only runs of this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
}

impl Filter {
    async fn query(
        self,
        client: &Client,
        now: DateTime<Utc>,
        output: &mut Output,
    ) -> Result<Vec<(&'static str, String)>, CliError> {
        let routine = match self.routine {
            Some(routine) => Some(id_of(client, &routine).await?.to_string()),
            None => None,
        };
        let since = time_ago(client, self.since.as_deref(), now, output).await?;
        let until = time_ago(client, self.until.as_deref(), now, output).await?;
        let optional = [
            ("routine_id", routine),
            ("status", self.status),
            ("trigger", self.trigger),
            ("reason", self.reason.map(|reason| reason.to_string())),
            ("since", since),
            ("until", until),
            ("id", self.id),
            ("user", self.user),
        ];
        Ok(optional.into_iter().filter_map(|(name, value)| Some((name, value?))).collect())
    }
}

/// A time as the API takes it; a duration is counted back from `now`.
pub(crate) async fn time_ago(
    client: &Client,
    text: Option<&str>,
    now: DateTime<Utc>,
    output: &mut Output,
) -> Result<Option<String>, CliError> {
    let Some(text) = text else { return Ok(None) };
    let zone = zones::named(client, output).await?.unwrap_or(Zone::UTC);
    let at = time(text, zone, now)?;
    let at = if text.parse::<humantime::Duration>().is_ok() { now - (at - now) } else { at };
    Ok(Some(at.to_rfc3339()))
}

pub(crate) async fn run(command: RunsCommand, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let now = Clock::system().now();
    match command {
        RunsCommand::List { filter, page } => {
            let query = filter.query(client, now, output).await?;
            RUNS.print(client, (PATH, &query), &page, output).await
        }
        RunsCommand::Show { id, transcript } => {
            let id = id.resolve(client).await?;
            let run: RoutineRun = client.get(&format!("{PATH}/{id}"), &[]).await?;
            let zone = zones::shown(client, output).await;
            output.either(&run, |paint| describe(paint, &run, zone))?;
            if transcript { print_transcript(client, &run, output).await } else { Ok(()) }
        }
        RunsCommand::LlmCalls { id, page } => {
            let id = id.resolve(client).await?;
            LLM_CALLS.print(client, (&format!("{PATH}/{id}/llm-calls"), &[]), &page, output).await?;
            name_job(client, id, "llm-calls", output).await
        }
        RunsCommand::Actions { id, page } => {
            let id = id.resolve(client).await?;
            TOOL_CALLS.print(client, (&format!("{PATH}/{id}/actions"), &[]), &page, output).await?;
            name_job(client, id, "actions", output).await
        }
        RunsCommand::Cancel { id } => {
            let id = id.resolve(client).await?;
            let body = serde_json::Map::<String, Value>::new();
            let run: RoutineRun = client.post(&format!("{PATH}/{id}/cancel"), &body, None).await?;
            output.either(&run, |_| format!("{id} {}", with_reason(&run)))
        }
        RunsCommand::Export { filter } => {
            let query = filter.query(client, now, output).await?;
            // As the server sends them: fields that this program does not know are kept.
            let print = |runs: Vec<Value>| runs.iter().try_for_each(|run| output.json(run));
            pages::for_each(client, (PATH, &query), print).await.map(|_| ())
        }
    }
}

/// Says where the calls of a run with a job are.
async fn name_job(client: &Client, id: RunId, command: &str, output: &mut Output) -> Result<(), CliError> {
    let run: RoutineRun = client.get(&format!("{PATH}/{id}"), &[]).await?;
    if let Some(job) = run.job_id {
        let job = short_id(&job.to_string());
        output.note(&format!("the calls of this run are those of its job: gantry job {command} {job}"));
    }
    Ok(())
}

/// Prints the conversation of a run; with `--json` one object for each message.
async fn print_transcript(client: &Client, run: &RoutineRun, output: &mut Output) -> Result<(), CliError> {
    if let Some(job) = run.job_id {
        let job = short_id(&job.to_string());
        output.note(&format!(
            "the conversation of this run is in the events of its job: gantry job events {job} --verbose"
        ));
        return Ok(());
    }
    let mut messages: Vec<RunMessage> = Vec::new();
    let collect = |page: Vec<RunMessage>| {
        messages.extend(page);
        Ok(())
    };
    pages::for_each(client, (&format!("{PATH}/{}/messages", run.id), &[]), collect).await?;
    if messages.is_empty() {
        output.note("no conversation is kept: the run has not ended or did not begin, the server ended in between, or your storage is full");
    }
    let mut text_of: Option<Renderer> = None;
    for message in &messages {
        output.either(message, |paint| {
            let renderer = text_of.get_or_insert_with(|| Renderer::new(paint, Detail::Verbose));
            renderer.data(&message.data).unwrap_or_default()
        })?;
    }
    Ok(())
}

/// The runs as a table.
pub(crate) const RUNS: List<RoutineRun> = List {
    columns: &[
        Column::text("id", |run, view| view.id(&run.id)),
        Column::text("routine", |run, _| one_line(&run.routine_name)),
        Column::number("age", |run, view| view.age(run.created_at)),
        Column::<RoutineRun>::text("recorded", |run, view| view.time(run.created_at)).wide(),
        Column::text("trigger", |run, _| run.trigger_type.to_string()),
        Column::text("status", |run, _| with_reason(run)),
        Column::number("took", |run, _| took(run).unwrap_or_default()),
        Column::<RoutineRun>::number("tokens", |run, _| run.tokens_used.to_string()).wide(),
        Column::<RoutineRun>::number("cost", |run, _| cost(run.cost_usd)).wide(),
        Column::user(|run, _| one_line(&run.user_id)),
        Column::flexible("result", |run, _| {
            run.result_summary.as_ref().or(run.message.as_ref()).map(|text| one_line(text.trim())).unwrap_or_default()
        }),
    ],
    id: |run| run.id.to_string(),
    none: Nothing { yet: "no runs yet; `gantry routine run NAME` starts one", matches: "no run matches" },
};

fn with_reason(run: &RoutineRun) -> String {
    let reason = run.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
    let count = run.missed_count.or(run.skipped_count).filter(|count| *count > 1);
    let times = count.map(|count| format!(" ×{count}")).unwrap_or_default();
    format!("{}{reason}{times}", run.status)
}

fn took(run: &RoutineRun) -> Option<String> {
    let taken = run.completed_at? - run.started_at?;
    let is_short = taken.num_seconds() < 10;
    Some(if is_short { format!("{} ms", taken.num_milliseconds()) } else { duration(taken) })
}

/// All that is known of a run.
pub(crate) fn describe(paint: Paint, run: &RoutineRun, zone: Zone) -> String {
    let status = match run.status {
        RunStatus::Ok => paint.green("ok"),
        RunStatus::Failed => paint.red("failed"),
        RunStatus::Attention => paint.yellow("attention"),
        RunStatus::Queued | RunStatus::Running => paint.cyan(run.status.as_str()),
        RunStatus::Skipped | RunStatus::Missed => paint.dim(run.status.as_str()),
    };
    let time = |at: DateTime<Utc>| local_time(at, zone);
    let missed = run.missed_count.map(|count| {
        let range = run.missed_from.zip(run.missed_to).map(|(from, to)| format!(", {} to {}", time(from), time(to)));
        format!("{count} times{}", range.unwrap_or_default())
    });
    let skipped = run.skipped_count.zip(run.last_skipped_at).filter(|(count, _)| *count > 1).map(|(count, last)| {
        let detail = run.last_skipped_detail.as_ref().map(|detail| one_line(&detail.to_string())).unwrap_or_default();
        format!("{count} firings, the last at {}: {detail}", time(last))
    });
    let rows = [
        ("id", Some(run.id.to_string())),
        ("routine", Some(format!("{} ({})", one_line(&run.routine_name), run.routine_id))),
        ("user", Some(one_line(&run.user_id))),
        ("status", Some(status)),
        ("reason", run.reason.map(|reason| reason.to_string())),
        ("message", run.message.as_deref().map(one_line)),
        ("trigger", Some(format!("{} {}", run.trigger_type, one_line(&run.trigger_detail.to_string())))),
        ("due", run.due_at.map(time)),
        ("recorded", Some(time(run.created_at))),
        ("not before", run.not_before.filter(|_| !run.status.is_finished()).map(time)),
        ("started", run.started_at.map(time)),
        ("completed", run.completed_at.map(time)),
        ("took", took(run)),
        ("missed", missed),
        ("skipped", skipped),
        ("attempt", (run.attempt > 1).then(|| run.attempt.to_string())),
        ("tokens", Some(run.tokens_used.to_string())),
        ("cost", Some(cost(run.cost_usd))),
        ("job", run.job_id.map(|id| id.to_string())),
    ];
    let mut lines: Vec<String> =
        rows.into_iter().filter_map(|(name, value)| Some(format!("{name:<15} {}", value?))).collect();
    if let Some(result) = run.result.as_ref().or(run.result_summary.as_ref()).filter(|result| !result.is_empty()) {
        lines.push(format!("\n{}", escape_control_chars(result.trim_end())));
    }
    lines.join("\n")
}
