//! `gantry job list`, `ps` and `top`: the caller's jobs as a table.

use clap::Args;
use protocol::{JobId, JobReason, JobState, JobSummary, Source};

use super::{super::ids::IdArg, create, watch};
use crate::{
    automation::{routine::id_of, runs::time_ago},
    client::{Client, List, Nothing, PageArgs, pages::DEFAULT_LIMIT},
    exit::{CliError, Exit},
    input::one_of,
    output::{Column, Output, TableArgs, cost, duration, one_line},
};
use base::clock::Clock;

pub(super) const PATH: &str = "/api/jobs";

#[derive(Debug, Args)]
pub struct ListArgs {
    /// Only jobs in these states, separated by commas
    #[arg(long, value_parser = one_of(JobState::ALL), value_delimiter = ',', hide_possible_values = true)]
    state: Vec<JobState>,
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    page: PageArgs,
    /// Keep watching: redraw the table on a terminal; with --json print one object for each job that changed
    #[arg(long, short, conflicts_with = "cursor")]
    watch: bool,
}

/// Which jobs.
#[derive(Debug, Args)]
pub(crate) struct Filter {
    /// Only jobs with this label; can be repeated
    #[arg(long, value_name = "KEY=VALUE")]
    label: Vec<String>,
    /// Only jobs of this user (admins only)
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only jobs with this text in the title or prompt
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
    /// Only jobs whose id starts or ends with this; at least 4 characters
    #[arg(long, value_name = "PART")]
    id: Option<String>,
    /// Only the children of this job
    #[arg(long, value_name = "ID")]
    parent: Option<IdArg<JobId>>,
    /// Only jobs that runs of this routine created: its name or id
    #[arg(long, value_name = "ROUTINE")]
    routine: Option<String>,
    /// Only jobs that are failed, stuck or cancelled for this reason, such as `cost_budget`
    #[arg(long, value_parser = one_of(JobReason::ALL), hide_possible_values = true)]
    reason: Option<JobReason>,
    /// Only jobs with this creator
    #[arg(long, value_parser = one_of(Source::ALL))]
    source: Option<Source>,
    /// Only jobs with this model
    #[arg(long, value_name = "NAME")]
    model: Option<String>,
    /// Only jobs created since this time: RFC 3339, a local time, or a duration ago such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only jobs created before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
}

#[derive(Debug, Args)]
pub struct PsArgs {
    #[command(flatten)]
    filter: Filter,
    #[command(flatten)]
    page: PageArgs,
}

#[derive(Debug, Args)]
pub struct TopArgs {
    #[command(flatten)]
    filter: Filter,
    /// Maximum number of jobs
    #[arg(long, default_value_t = DEFAULT_LIMIT, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Show more columns
    #[arg(long)]
    wide: bool,
    /// Show whole ids and texts
    #[arg(long)]
    no_trunc: bool,
}

pub(super) const JOBS: List<JobSummary> = List {
    columns: &[
        Column::text("id", |job, view| view.id(&job.id)),
        Column::text("state", |job, _| job.state.to_string()),
        Column::<JobSummary>::text("reason", |job, _| job.reason.map(|reason| reason.to_string()).unwrap_or_default())
            .wide(),
        Column::number("age", |job, view| view.age(job.created_at)),
        Column::number("took", |job, view| {
            let took = job.started_at.map(|from| job.work_ended_at().unwrap_or(view.now) - from);
            took.map(duration).unwrap_or_default()
        }),
        Column::number("cost", |job, _| cost(job.usage.cost_usd)),
        Column::<JobSummary>::number("tokens", |job, _| (job.usage.input_tokens + job.usage.output_tokens).to_string())
            .wide(),
        Column::<JobSummary>::text("model", |job, _| one_line(&job.model)).wide(),
        Column::<JobSummary>::number("priority", |job, _| job.priority.to_string()).wide(),
        Column::user(|job, _| one_line(&job.user_id)),
        Column::<JobSummary>::text("created", |job, view| view.time(job.created_at)).wide(),
        Column::<JobSummary>::flexible("labels", |job, _| {
            job.labels.iter().map(|(key, value)| one_line(&format!("{key}={value}"))).collect::<Vec<_>>().join(" ")
        })
        .wide(),
        Column::flexible("title", |job, _| one_line(&job.title)),
    ],
    id: |job| job.id.to_string(),
    none: Nothing { yet: "no jobs yet; start one with `gantry job run \"PROMPT\"`", matches: "no job matches" },
};

pub(super) async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut query = args.filter.query(client, &args.state, output).await?;
    if args.watch {
        query.push(("limit", args.page.limit.to_string()));
        return watch::watch(client, &query, &args.page.table, output).await;
    }
    JOBS.print(client, (PATH, &query), &args.page, output).await?;
    Ok(Exit::Success)
}

/// Lists the jobs that have not finished.
pub(super) async fn ps(client: &Client, args: PsArgs, output: &mut Output) -> Result<(), CliError> {
    let query = args.filter.query(client, &unfinished(), output).await?;
    let is_filtered = query.iter().any(|(name, _)| *name != "state");
    let matches = if is_filtered { JOBS.none.matches } else { "no job runs or waits; `gantry job list` shows all" };
    let jobs = List { none: Nothing { matches, ..JOBS.none }, ..JOBS };
    jobs.print(client, (PATH, &query), &args.page, output).await
}

/// Watches the jobs that have not finished.
pub(super) async fn top(client: &Client, args: TopArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut query = args.filter.query(client, &unfinished(), output).await?;
    query.push(("limit", args.limit.to_string()));
    let table = TableArgs { wide: args.wide, no_trunc: args.no_trunc, quiet: false };
    watch::watch(client, &query, &table, output).await
}

fn unfinished() -> Vec<JobState> {
    JobState::ALL.iter().copied().filter(|state| !state.is_finished()).collect()
}

impl Filter {
    /// The query parameters.
    async fn query(
        self,
        client: &Client,
        states: &[JobState],
        output: &mut Output,
    ) -> Result<Vec<(&'static str, String)>, CliError> {
        let mut query = Vec::new();
        if !states.is_empty() {
            query.push(("state", states.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(",")));
        }
        for pair in &self.label {
            let (key, value) = create::label(pair)?;
            query.push(("label", format!("{key}:{value}")));
        }
        let parent = match self.parent {
            Some(parent) => Some(parent.resolve(client).await?.to_string()),
            None => None,
        };
        let routine = match self.routine {
            Some(routine) => Some(id_of(client, &routine).await?.to_string()),
            None => None,
        };
        let now = Clock::system().now();
        let optional = [
            ("user", self.user),
            ("q", self.q),
            ("id", self.id),
            ("parent", parent),
            ("routine_id", routine),
            ("reason", self.reason.map(|reason| reason.to_string())),
            ("source", self.source.map(|source| source.to_string())),
            ("model", self.model),
            ("since", time_ago(client, self.since.as_deref(), now, output).await?),
            ("until", time_ago(client, self.until.as_deref(), now, output).await?),
        ];
        query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
        Ok(query)
    }
}
