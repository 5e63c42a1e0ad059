//! `gantry job`: creates and manages jobs.

mod activity;
pub(crate) mod archive;
pub(super) mod calls;
pub(super) mod create;
mod diff;
mod directories;
mod egress;
mod files;
mod follow;
mod list;
mod several;
mod show;
mod wait;
mod watch;

use clap::{Args, Subcommand};
use protocol::{Event, Job, JobId, PromptMode, PromptReceipt, PromptRequest, RejectRequest, RestartRequest};
use serde_json::Value;

use super::{
    client::{Client, pages},
    exit::{CliError, Exit},
    ids::{IdArg, short_id},
    input::{one_of_explained, text_or_stdin},
    output::{
        Format, Output, one_line,
        render::{self, Detail},
    },
};

#[derive(Debug, Subcommand)]
pub enum JobCommand {
    /// Create a job and follow it until it ends
    Run(RunArgs),
    /// Create a job
    Create(create::CreateArgs),
    /// List jobs, newest first
    #[command(visible_alias = "ls")]
    List(list::ListArgs),
    /// List jobs that have not finished
    Ps(list::PsArgs),
    /// Watch jobs that have not finished
    Top(list::TopArgs),
    /// Wait until jobs have finished
    Wait(wait::WaitArgs),
    /// Show a job
    #[command(visible_alias = "inspect")]
    Show {
        /// Job id
        id: IdArg<JobId>,
    },
    /// Start a job that was created with --hold
    Start {
        /// Job id
        id: IdArg<JobId>,
    },
    /// List a directory of a job's workspace
    Files(files::FilesArgs),
    /// Download a file, a directory or all files of a job's workspace
    Get(files::GetArgs),
    /// Upload a file, a directory or a tar archive into an unfinished job's workspace
    Put(files::PutArgs),
    /// Show what a job has changed in its workspace since it started
    Diff(diff::DiffArgs),
    /// Print a job's events
    Events(EventsArgs),
    /// List a job's tool calls
    Actions(calls::CallsArgs),
    /// List a job's model calls
    LlmCalls(calls::CallsArgs),
    /// Print the hosts that a job may reach, and what it asked for
    Egress {
        /// Job id
        id: IdArg<JobId>,
    },
    /// Print the log of the worker in a job's ended containers (`events` prints the output of commands)
    Logs {
        /// Job id
        id: IdArg<JobId>,
    },
    /// Cancel jobs
    #[command(visible_alias = "stop")]
    Cancel(several::CancelArgs),
    /// Accept the result of a reviewed job
    Accept {
        /// Job id
        id: IdArg<JobId>,
    },
    /// Reject the result of a reviewed job; the job is marked failed
    Reject {
        /// Job id
        id: IdArg<JobId>,
        /// Reason
        reason: String,
    },
    /// Send a prompt to an unfinished job
    Prompt(PromptArgs),
    /// List the prompts of a job and when the agent read them
    Prompts(calls::CallsArgs),
    /// Delete finished jobs with their events and files
    #[command(visible_alias = "rm")]
    Remove(several::RemoveArgs),
    /// Create a new job from one that failed or was cancelled
    Restart {
        /// Job id
        id: IdArg<JobId>,
        /// New prompt; - reads it from standard input
        #[arg(long)]
        prompt: Option<String>,
        /// Follow the new job until it ends
        #[arg(long)]
        follow: bool,
    },
}

#[derive(Debug, Args)]
pub struct RunArgs {
    #[command(flatten)]
    create: create::CreateArgs,
    /// Print the job's id without following it
    #[arg(long, short)]
    detach: bool,
    /// Also show reasoning, model calls and whole outputs
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub struct EventsArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Follow the events until the job ends
    #[arg(long, short)]
    follow: bool,
    /// Only events after this number
    #[arg(long, value_name = "SEQ", default_value_t = 0)]
    after: i64,
    /// Only events of this kind
    #[arg(long, conflicts_with = "follow")]
    kind: Option<String>,
    /// Also show reasoning, model calls and whole outputs
    #[arg(long, short)]
    verbose: bool,
}

#[derive(Debug, Args)]
pub struct PromptArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Prompt; - reads it from standard input
    content: String,
    /// When the agent sees the prompt
    #[arg(long, value_parser = one_of_explained(MODES), default_value = "steer")]
    mode: PromptMode,
    /// Close the prompt queue
    #[arg(long)]
    done: bool,
}

const MODES: &[(PromptMode, &str)] =
    &[(PromptMode::Steer, "Before the next model call"), (PromptMode::Queue, "When the agent would otherwise finish")];

const fn detail(verbose: bool) -> Detail {
    if verbose { Detail::Verbose } else { Detail::Usual }
}

pub(super) async fn run(command: JobCommand, client: &Client, output: &mut Output) -> Result<Exit, CliError> {
    match command {
        JobCommand::Run(args) => return run_job(client, args, output).await,
        JobCommand::Create(args) => {
            let job = create::create(client, args).await?;
            output.either(&job, |_| job.id.to_string())?;
        }
        JobCommand::List(args) => return list::list(client, args, output).await,
        JobCommand::Ps(args) => list::ps(client, args, output).await?,
        JobCommand::Top(args) => return list::top(client, args, output).await,
        JobCommand::Wait(args) => return wait::wait(client, args, output).await,
        JobCommand::Show { id } => show::show(client, id.resolve(client).await?, output).await?,
        JobCommand::Start { id } => {
            let id = id.resolve(client).await?;
            let job: Job = client.post(&format!("/api/jobs/{id}/start"), &serde_json::json!({}), None).await?;
            output.either(&job, |_| format!("{id} started"))?;
        }
        JobCommand::Files(args) => files::files(client, args, output).await?,
        JobCommand::Get(args) => files::get(client, args, output).await?,
        JobCommand::Put(args) => files::put(client, args, output).await?,
        JobCommand::Diff(args) => diff::diff(client, args, output).await?,
        JobCommand::Remove(args) => return several::remove(client, args, output).await,
        JobCommand::Events(args) => return events(client, args, output).await,
        JobCommand::Actions(args) => calls::actions(client, args, output).await?,
        JobCommand::LlmCalls(args) => calls::llm_calls(client, args, output).await?,
        JobCommand::Egress { id } => egress::egress(client, id.resolve(client).await?, output).await?,
        JobCommand::Logs { id } => logs(client, id.resolve(client).await?, output).await?,
        JobCommand::Cancel(args) => return several::cancel(client, args, output).await,
        JobCommand::Accept { id } => {
            let id = id.resolve(client).await?;
            let job: Job = client.post(&format!("/api/jobs/{id}/accept"), &(), None).await?;
            output.either(&job, |_| format!("{id} {}", job.state))?;
        }
        JobCommand::Reject { id, reason } => {
            let id = id.resolve(client).await?;
            let job: Job = client.post(&format!("/api/jobs/{id}/reject"), &RejectRequest { reason }, None).await?;
            output.either(&job, |_| format!("{id} rejected"))?;
        }
        JobCommand::Prompt(args) => prompt(client, args, output).await?,
        JobCommand::Prompts(args) => calls::prompts(client, args, output).await?,
        JobCommand::Restart { id, prompt, follow } => {
            let id = id.resolve(client).await?;
            let prompt = prompt.map(text_or_stdin).transpose()?;
            let job: Job = client.post(&format!("/api/jobs/{id}/restart"), &RestartRequest { prompt }, None).await?;
            if let Some(message) = &job.message {
                output.note(&format!("gantry: {}", one_line(message)));
            }
            if follow {
                return follow::to_the_end(client, job.id, 0, Detail::Usual, output).await;
            }
            output.either(&job, |_| job.id.to_string())?;
        }
    }
    Ok(Exit::Success)
}

async fn run_job(client: &Client, args: RunArgs, output: &mut Output) -> Result<Exit, CliError> {
    let is_held = args.create.hold;
    let job = create::create(client, args.create).await?;
    if is_held {
        output.note(&format!(
            "the job waits; upload files with `gantry job put`, then start it with: gantry job start {}",
            short_id(&job.id.to_string())
        ));
    }
    if args.detach || is_held {
        output.either(&job, |_| job.id.to_string())?;
        return Ok(Exit::Success);
    }
    if output.format == Format::Text {
        let line = format!("{} job {}", output.paint.dim("●"), output.paint.bold(&job.id.to_string()));
        output.line(&line)?;
    }
    follow::to_the_end(client, job.id, 0, detail(args.verbose), output).await
}

async fn logs(client: &Client, id: JobId, output: &mut Output) -> Result<(), CliError> {
    let text = client.text(&format!("/api/jobs/{id}/logs")).await?;
    if text.is_empty() {
        output.note("gantry: no output yet: output is saved when a container has ended (see `gantry job events`)");
        if output.format == Format::Text {
            return Ok(());
        }
    }
    let value = serde_json::json!({"job_id": id, "text": text});
    output.either(&value, |_| super::output::text::escape_control_chars(text.trim_end()))
}

async fn events(client: &Client, args: EventsArgs, output: &mut Output) -> Result<Exit, CliError> {
    let id = args.id.resolve(client).await?;
    if args.follow {
        return follow::to_the_end(client, id, args.after, detail(args.verbose), output).await;
    }
    let mut renderer = render::Renderer::new(output.paint, detail(args.verbose)).with_width(output.width);
    let query: Vec<_> = args.kind.map(|kind| ("kind", kind)).into_iter().collect();
    let print = |raw: Value| match output.format {
        Format::Json => output.json(&raw),
        Format::Text => {
            let event: Option<Event> = serde_json::from_value(raw).ok();
            event.and_then(|event| renderer.event(&event)).map_or(Ok(()), |text| output.line(&text))
        }
    };
    pages::for_each_event(client, (&format!("/api/jobs/{id}/events"), &query), args.after, print).await?;
    Ok(Exit::Success)
}

async fn prompt(client: &Client, args: PromptArgs, output: &mut Output) -> Result<(), CliError> {
    let body = PromptRequest { content: text_or_stdin(args.content)?, mode: args.mode, done: args.done };
    let id = args.id.resolve(client).await?;
    let receipt: PromptReceipt = client.post(&format!("/api/jobs/{id}/prompt"), &body, None).await?;
    output.either(&receipt, |_| format!("prompt {} accepted", receipt.prompt_id))
}

#[cfg(test)]
mod tests;
