//! `gantry routine`: work that starts by itself.

mod action_fields;
mod apply;
mod change;
mod definition;
mod deliveries;
pub(crate) mod describe;
mod editor;
mod fields;
mod list;
mod run;
mod show;
#[cfg(test)]
mod tests;
mod trigger_fields;

use clap::Subcommand;
use protocol::{Page, Routine, RoutineId, RoutineWarning, RunReason};

use super::runs;
use crate::{
    client::{Client, PageArgs},
    exit::{CliError, Exit},
    ids::IdArg,
    input::one_of,
    output::{Output, one_line},
};
use base::{Environment, clock::Clock};

pub(crate) use trigger_fields::time;

const PATH: &str = "/api/routines";

#[derive(Debug, Subcommand)]
pub enum RoutineCommand {
    /// List routines: what fires them, and when next
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// Show a routine
    Show {
        /// Name or id
        routine: String,
    },
    /// Create a routine
    Create(Box<change::CreateArgs>),
    /// Change a routine, with flags or in an editor
    Edit(Box<change::EditArgs>),
    /// Delete routines; their runs are kept
    #[command(visible_alias = "rm")]
    Delete(Names),
    /// Enable routines
    Enable(Names),
    /// Disable routines
    Disable(Names),
    /// Run a routine now, whatever its trigger
    Run(run::RunArgs),
    /// List the runs of a routine, newest first
    Runs(RunsArgs),
    /// List the deliveries to the webhook of a routine, newest first
    Deliveries(deliveries::DeliveriesArgs),
    /// Show when a routine fires next, or all routines
    Upcoming(list::UpcomingArgs),
    /// Make your routines match a file
    Apply(apply::ApplyArgs),
}

/// One or more routines.
#[derive(Debug, clap::Args)]
pub struct Names {
    /// Names or ids
    #[arg(required = true, value_name = "ROUTINE")]
    routines: Vec<String>,
}

#[derive(Debug, clap::Args)]
pub struct RunsArgs {
    /// Name or id
    routine: String,
    /// Only runs with these statuses, separated by commas
    #[arg(long, value_name = "STATUS")]
    status: Option<String>,
    /// Only runs that failed, were skipped or were missed for this reason, such as `cooldown`
    #[arg(long, value_parser = one_of(RunReason::ALL), hide_possible_values = true)]
    reason: Option<RunReason>,
    /// Only runs since this time: RFC 3339, a local time, or a duration ago such as 24h
    #[arg(long, value_name = "TIME")]
    since: Option<String>,
    /// Only runs before this time
    #[arg(long, value_name = "TIME")]
    until: Option<String>,
    #[command(flatten)]
    page: PageArgs,
}

pub(crate) async fn run(
    command: RoutineCommand,
    client: &Client,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let now = Clock::system().now();
    match command {
        RoutineCommand::List(args) => list::list(client, args, now, output).await?,
        RoutineCommand::Show { routine } => show::show(client, &routine, now, output).await?,
        RoutineCommand::Create(args) => change::create(client, *args, now, output).await?,
        RoutineCommand::Edit(args) => change::edit(client, *args, environment, now, output).await?,
        RoutineCommand::Delete(names) => delete(client, names, output).await?,
        RoutineCommand::Enable(names) => switch(client, names, "enable", output).await?,
        RoutineCommand::Disable(names) => switch(client, names, "disable", output).await?,
        RoutineCommand::Run(args) => return run::run(client, args, output).await,
        RoutineCommand::Runs(args) => {
            let id = id_of(client, &args.routine).await?;
            let optional = [
                ("status", args.status),
                ("reason", args.reason.map(|reason| reason.to_string())),
                ("since", runs::time_ago(client, args.since.as_deref(), now, output).await?),
                ("until", runs::time_ago(client, args.until.as_deref(), now, output).await?),
            ];
            let query: Vec<_> = optional.into_iter().filter_map(|(name, value)| Some((name, value?))).collect();
            runs::RUNS.print(client, (&format!("{PATH}/{id}/runs"), &query), &args.page, output).await?;
        }
        RoutineCommand::Deliveries(args) => deliveries::list(client, args, output).await?,
        RoutineCommand::Upcoming(args) => list::upcoming(client, args, now, output).await?,
        RoutineCommand::Apply(args) => return apply::apply(client, args, now, output).await,
    }
    Ok(Exit::Success)
}

async fn delete(client: &Client, names: Names, output: &mut Output) -> Result<(), CliError> {
    for name in names.routines {
        let id = id_of(client, &name).await?;
        client.delete_if_version(&format!("{PATH}/{id}"), &[], None).await?;
        output.either(&serde_json::json!({"id": id, "deleted": true}), |_| format!("{} deleted", one_line(&name)))?;
    }
    Ok(())
}

async fn switch(client: &Client, names: Names, verb: &str, output: &mut Output) -> Result<(), CliError> {
    for name in names.routines {
        let id = id_of(client, &name).await?;
        let routine: Routine = client
            .post(&format!("{PATH}/{id}/{verb}"), &serde_json::Map::<String, serde_json::Value>::new(), None)
            .await?;
        output.either(&routine, |_| format!("{} {verb}d", one_line(&routine.name)))?;
    }
    Ok(())
}

/// The id of a routine that is given by its name, its id or a part of its id. A name takes precedence over a part.
pub(crate) async fn id_of(client: &Client, routine: &str) -> Result<RoutineId, CliError> {
    if let Ok(id) = routine.parse() {
        return Ok(id);
    }
    match (by_name(client, routine).await, routine.parse::<IdArg<RoutineId>>()) {
        (Ok(routine), _) => Ok(routine.id),
        (Err(CliError::NotFound(_)), Ok(part)) => part.resolve(client).await,
        (Err(error), _) => Err(error),
    }
}

/// A routine that is given by its name, its id or a part of its id.
pub(crate) async fn find(client: &Client, routine: &str) -> Result<Routine, CliError> {
    let id = id_of(client, routine).await?;
    client.get(&format!("{PATH}/{id}"), &[]).await
}

/// The caller's own routine with a name: an admin names routines of other users by their ids.
async fn by_name(client: &Client, name: &str) -> Result<Routine, CliError> {
    let mut query = vec![("name", name.to_owned()), ("limit", "1".to_owned())];
    query.extend(client.user().map(|user| ("user", user)));
    let page: Page<Routine> = client.get(PATH, &query).await?;
    page.items.into_iter().next().ok_or_else(|| {
        CliError::NotFound(format!(
            "you have no routine named {}; `gantry routine list` shows your routines",
            one_line(name)
        ))
    })
}

/// Prints what will not work unattended on standard error, after the name of its routine. With `--json` the answer has it.
pub(crate) fn print_warnings(warnings: &[RoutineWarning], name: Option<&str>, output: &Output) {
    if output.format == crate::output::Format::Json {
        return;
    }
    let name = name.map(|name| format!("{}: ", one_line(name))).unwrap_or_default();
    for warning in warnings {
        output.note(&format!("warning: {name}{}: {}", one_line(&warning.field), one_line(&warning.detail)));
    }
}
