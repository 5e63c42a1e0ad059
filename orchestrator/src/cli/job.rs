//! `gantry job`: creates and manages jobs.

pub(super) mod create;
mod files;
mod follow;
mod show;
mod watch;

use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{Table, presets};
use protocol::{
    CancelRequest, Event, Job, JobId, JobState, JobSummary, Page, PromptMode, PromptReceipt, PromptRequest,
    RejectRequest, RestartRequest,
};
use serde::Deserialize;

use super::{
    client::Client,
    exit::{CliError, Exit},
    input::text_or_stdin,
    output::{Format, Output, Paint},
    pages,
    render::{self, Detail},
    text::{one_line, truncate},
};
use crate::config::Environment;

const MAX_TITLE_CHARS: usize = 60;
const EVENTS_PER_PAGE: &str = "200";

/// Subcommands.
#[derive(Debug, Subcommand)]
pub(super) enum JobCommand {
    /// Create a job and follow it until it ends
    Run(RunArgs),
    /// Create a job
    Create(create::CreateArgs),
    /// List jobs, newest first
    List(ListArgs),
    /// Show a job
    Show {
        /// Job id
        id: JobId,
    },
    /// Start a job that was created with --hold
    Start {
        /// Job id
        id: JobId,
    },
    /// List a directory of a job's workspace
    Files(files::FilesArgs),
    /// Download a file or all files of a job's workspace
    Get(files::GetArgs),
    /// Upload a file or a tar archive into an unfinished job's workspace
    Put(files::PutArgs),
    /// Print a job's events
    Events(EventsArgs),
    /// Print the output of a job's ended containers
    Logs {
        /// Job id
        id: JobId,
    },
    /// Cancel a job
    Cancel {
        /// Job id
        id: JobId,
        /// Reason
        #[arg(long)]
        reason: Option<String>,
    },
    /// Accept the result of a reviewed job
    Accept {
        /// Job id
        id: JobId,
    },
    /// Reject the result of a reviewed job; the job is marked failed
    Reject {
        /// Job id
        id: JobId,
        /// Reason
        reason: String,
    },
    /// Send a prompt to an unfinished job
    Prompt(PromptArgs),
    /// Create a new job from one that failed or was cancelled
    Restart {
        /// Job id
        id: JobId,
        /// New prompt; - reads it from standard input
        #[arg(long)]
        prompt: Option<String>,
        /// Follow the new job until it ends
        #[arg(long)]
        follow: bool,
    },
}

/// Arguments of `run`.
#[derive(Debug, Args)]
pub(super) struct RunArgs {
    #[command(flatten)]
    create: create::CreateArgs,
    /// Print the job's id without following it
    #[arg(long, short)]
    detach: bool,
    /// Also show reasoning and model calls
    #[arg(long, short)]
    verbose: bool,
}

/// Arguments of `list`.
#[derive(Debug, Args)]
pub(super) struct ListArgs {
    /// Only jobs in these states, separated by commas
    #[arg(long, value_parser = parse_state, value_delimiter = ',')]
    state: Vec<JobState>,
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
    parent: Option<JobId>,
    /// Maximum number of items
    #[arg(long, default_value_t = 50, value_parser = clap::value_parser!(u32).range(1..=200))]
    limit: u32,
    /// Cursor of the next page
    #[arg(long)]
    cursor: Option<String>,
    /// Keep watching: redraw the table on a terminal; with --json print one object for each job that changed
    #[arg(long, short, conflicts_with = "cursor")]
    watch: bool,
}

/// Arguments of `events`.
#[derive(Debug, Args)]
pub(super) struct EventsArgs {
    /// Job id
    id: JobId,
    /// Follow the events until the job ends
    #[arg(long, short)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// Only events of this kind
    #[arg(long, conflicts_with = "follow")]
    kind: Option<String>,
    /// Also show reasoning and model calls
    #[arg(long, short)]
    verbose: bool,
}

/// Arguments of `prompt`.
#[derive(Debug, Args)]
pub(super) struct PromptArgs {
    /// Job id
    id: JobId,
    /// Prompt; - reads it from standard input
    content: String,
    /// When the agent sees the prompt
    #[arg(long, value_enum, default_value = "steer")]
    mode: ModeArg,
    /// Close the prompt queue
    #[arg(long)]
    done: bool,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum ModeArg {
    /// Before the next model call
    Steer,
    /// When the agent would otherwise finish
    Queue,
}

#[derive(Deserialize)]
struct EventPage {
    items: Vec<serde_json::Value>,
    next_after: Option<i64>,
}

fn parse_state(text: &str) -> Result<JobState, String> {
    JobState::parse(text).ok_or_else(|| {
        let all = JobState::ALL.iter().map(|state| state.as_str()).collect::<Vec<_>>().join(", ");
        format!("must be one of {all}")
    })
}

const fn detail(verbose: bool) -> Detail {
    if verbose { Detail::Verbose } else { Detail::Usual }
}

pub(super) async fn run(command: JobCommand, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let client = Client::from_environment(environment)?;
    match command {
        JobCommand::Run(args) => run_job(&client, args, output).await,
        JobCommand::Create(args) => {
            let job = create::create(&client, args).await?;
            output.either(&job, |_| job.id.to_string())?;
            Ok(Exit::Success)
        }
        JobCommand::List(args) => list(&client, args, output).await,
        JobCommand::Show { id } => show::show(&client, id, output).await,
        JobCommand::Start { id } => {
            let job: Job = client.post(&format!("/api/jobs/{id}/start"), &serde_json::json!({}), None).await?;
            output.either(&job, |_| format!("{id} started"))?;
            Ok(Exit::Success)
        }
        JobCommand::Files(args) => files::files(&client, args, output).await,
        JobCommand::Get(args) => files::get(&client, args, output).await,
        JobCommand::Put(args) => files::put(&client, args, output).await,
        JobCommand::Events(args) => events(&client, args, output).await,
        JobCommand::Logs { id } => logs(&client, id, output).await,
        JobCommand::Cancel { id, reason } => {
            let job: Job = client.post(&format!("/api/jobs/{id}/cancel"), &CancelRequest { reason }, None).await?;
            let state = if job.state == JobState::Cancelled { "cancelled" } else { "stopping" };
            output.either(&job, |_| format!("{id} {state}"))?;
            Ok(Exit::Success)
        }
        JobCommand::Accept { id } => {
            let job: Job = client.post(&format!("/api/jobs/{id}/accept"), &(), None).await?;
            output.either(&job, |_| format!("{id} {}", job.state))?;
            Ok(Exit::Success)
        }
        JobCommand::Reject { id, reason } => {
            let job: Job = client.post(&format!("/api/jobs/{id}/reject"), &RejectRequest { reason }, None).await?;
            output.either(&job, |_| format!("{id} rejected"))?;
            Ok(Exit::Success)
        }
        JobCommand::Prompt(args) => prompt(&client, args, output).await,
        JobCommand::Restart { id, prompt, follow } => {
            let prompt = prompt.map(text_or_stdin).transpose()?;
            let job: Job = client.post(&format!("/api/jobs/{id}/restart"), &RestartRequest { prompt }, None).await?;
            if let Some(message) = &job.message {
                output.note(&format!("gantry: {}", one_line(message)));
            }
            if follow {
                return follow::to_the_end(&client, job.id, 0, Detail::Usual, output).await;
            }
            output.either(&job, |_| job.id.to_string())?;
            Ok(Exit::Success)
        }
    }
}

async fn run_job(client: &Client, args: RunArgs, output: &mut Output) -> Result<Exit, CliError> {
    let job = create::create(client, args.create).await?;
    if args.detach {
        output.either(&job, |_| job.id.to_string())?;
        return Ok(Exit::Success);
    }
    if output.format == Format::Text {
        let line = format!("{} job {}", output.paint.dim("●"), output.paint.bold(&job.id.to_string()));
        output.line(&line)?;
    }
    follow::to_the_end(client, job.id, 0, detail(args.verbose), output).await
}

async fn list(client: &Client, args: ListArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mut query = vec![("limit", args.limit.to_string())];
    if !args.state.is_empty() {
        let states: Vec<&str> = args.state.iter().map(|state| state.as_str()).collect();
        query.push(("state", states.join(",")));
    }
    for pair in &args.label {
        let (key, value) = create::label(pair)?;
        query.push(("label", format!("{key}:{value}")));
    }
    let parent = args.parent.map(|id| id.to_string());
    let optional = [("user", args.user), ("q", args.q), ("id", args.id), ("parent", parent), ("cursor", args.cursor)];
    query.extend(optional.into_iter().filter_map(|(name, value)| Some((name, value?))));
    if args.watch {
        return watch::watch(client, &query, watch::EVERY, output).await;
    }
    let page: Page<JobSummary> = client.get("/api/jobs", &query).await?;
    output.either(&page, |paint| table(&page, paint))?;
    Ok(Exit::Success)
}

fn table(page: &Page<JobSummary>, paint: Paint) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["id", "state", "created", "title"]);
    for job in &page.items {
        let reason = job.reason.map(|reason| format!(" ({reason})")).unwrap_or_default();
        table.add_row([
            job.id.to_string(),
            format!("{}{reason}", job.state),
            job.created_at.format("%F %T").to_string(),
            truncate(&one_line(&job.title), MAX_TITLE_CHARS),
        ]);
    }
    let more = pages::next_page(page, paint);
    format!("{}{more}", table.trim_fmt())
}

async fn logs(client: &Client, id: JobId, output: &mut Output) -> Result<Exit, CliError> {
    let text = client.text(&format!("/api/jobs/{id}/logs")).await?;
    if text.is_empty() {
        output.note("gantry: no output yet: output is saved when a container has ended (see `gantry job events`)");
        if output.format == Format::Text {
            return Ok(Exit::Success);
        }
    }
    let value = serde_json::json!({"job_id": id, "text": text});
    output.either(&value, |_| super::text::escape_control_chars(text.trim_end()))?;
    Ok(Exit::Success)
}

async fn events(client: &Client, args: EventsArgs, output: &mut Output) -> Result<Exit, CliError> {
    if args.follow {
        return follow::to_the_end(client, args.id, args.after, detail(args.verbose), output).await;
    }
    let mut renderer = render::Renderer::new(output.paint, detail(args.verbose));
    let mut after = args.after;
    loop {
        let mut query = vec![("after", after.to_string()), ("limit", EVENTS_PER_PAGE.to_owned())];
        query.extend(args.kind.clone().map(|kind| ("kind", kind)));
        let page: EventPage = client.get(&format!("/api/jobs/{}/events", args.id), &query).await?;
        for raw in &page.items {
            match output.format {
                Format::Json => output.json(raw)?,
                Format::Text => {
                    let event: Option<Event> = serde_json::from_value(raw.clone()).ok();
                    if let Some(text) = event.and_then(|event| renderer.event(&event)) {
                        output.line(&text)?;
                    }
                }
            }
        }
        match page.next_after {
            Some(next) if next > after && !page.items.is_empty() => after = next,
            _ => return Ok(Exit::Success),
        }
    }
}

async fn prompt(client: &Client, args: PromptArgs, output: &mut Output) -> Result<Exit, CliError> {
    let mode = match args.mode {
        ModeArg::Steer => PromptMode::Steer,
        ModeArg::Queue => PromptMode::Queue,
    };
    let body = PromptRequest { content: text_or_stdin(args.content)?, mode, done: args.done };
    let receipt: PromptReceipt = client.post(&format!("/api/jobs/{}/prompt", args.id), &body, None).await?;
    output.either(&receipt, |_| format!("prompt {} accepted", receipt.prompt_id))?;
    Ok(Exit::Success)
}

#[cfg(test)]
mod tests;
