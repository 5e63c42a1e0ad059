//! `gantry audit`: the audit log of the installation.

use clap::Args;
use protocol::{AuditRecord, JobId};

use crate::{
    automation::runs::time_ago,
    client::{Client, List, Nothing, PageArgs},
    exit::CliError,
    ids::IdArg,
    output::{Column, Output, one_line},
};
use base::clock::Clock;

const PATH: &str = "/api/audit";

#[derive(Debug, Args)]
pub struct AuditArgs {
    /// Only entries of this user
    #[arg(long, value_name = "NAME")]
    user: Option<String>,
    /// Only entries with this action, such as job.cancel
    #[arg(long)]
    action: Option<String>,
    /// Only entries about this job
    #[arg(long, value_name = "ID")]
    job: Option<IdArg<JobId>>,
    /// Only entries since this time: RFC 3339, a local time, or a duration ago such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only entries before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

const ENTRIES: List<AuditRecord> = List {
    columns: &[
        Column::text("time", |entry, view| view.time(entry.at)),
        Column::text("user", |entry, _| one_line(&entry.user)),
        Column::<AuditRecord>::text("role", |entry, _| entry.role.to_string()).wide(),
        Column::text("action", |entry, _| one_line(&entry.action)),
        Column::text("outcome", |entry, _| entry.outcome.to_string()),
        Column::text("code", |entry, _| entry.code.as_deref().map(one_line).unwrap_or_default()),
        Column::text("job", |entry, view| entry.job_id.map(|id| view.id(&id)).unwrap_or_default()),
        Column::<AuditRecord>::text("token", |entry, _| entry.jti.as_deref().map(one_line).unwrap_or_default()).wide(),
        Column::<AuditRecord>::text("request", |entry, _| {
            entry.request_id.as_deref().map(one_line).unwrap_or_default()
        })
        .wide(),
        Column::text("source", |entry, _| entry.source.as_deref().map(one_line).unwrap_or_default()),
    ],
    id: |entry| entry.request_id.clone().unwrap_or_default(),
    none: Nothing { yet: "no audit entries yet", matches: "no audit entry matches" },
};

pub(crate) async fn run(args: AuditArgs, client: &Client, output: &mut Output) -> Result<(), CliError> {
    let job = match args.job {
        Some(job) => Some(job.resolve(client).await?.to_string()),
        None => None,
    };
    let now = Clock::system().now();
    let since = time_ago(client, args.since.as_deref(), now, output).await?;
    let until = time_ago(client, args.until.as_deref(), now, output).await?;
    let query: Vec<_> =
        [("user", args.user), ("action", args.action), ("job", job), ("since", since), ("until", until)]
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)))
            .collect();
    ENTRIES.print(client, (PATH, &query), &args.page, output).await
}
