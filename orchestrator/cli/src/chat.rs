//! `gantry chat`: a conversation with the agent in the terminal, and the record of its tool calls.

mod event;
pub(crate) mod gate;
mod lines;
mod render;
mod screen;
mod session;
mod threads;

use clap::{Args, Subcommand};

use self::{event::ChatEvent, lines::Lines, session::Session};
use super::{
    client::{Client, EventFollower, StreamRequest},
    exit::{CliError, Exit},
    ids,
    output::Output,
    unix,
};
use protocol::MAIN_THREAD;

#[derive(Debug, Args)]
#[command(args_conflicts_with_subcommands = true)]
pub struct ChatArgs {
    #[command(subcommand)]
    command: Option<ChatCommand>,
    /// The thread: its id or key; the message /new begins another one
    #[arg(long, value_name = "THREAD", default_value = MAIN_THREAD)]
    thread: String,
}

/// Subcommands. Without one the program talks to the agent.
#[derive(Debug, Subcommand)]
pub(super) enum ChatCommand {
    /// List the tool calls of a thread, oldest first, also of one that was deleted
    Actions(threads::CallsArgs),
    /// List the model calls of a thread, oldest first, also of one that was deleted
    LlmCalls(threads::CallsArgs),
    /// List your threads, newest first
    Threads(threads::ListArgs),
    /// Stop the turn in progress of a thread
    Stop(threads::ThreadArgs),
    /// Delete a thread with its messages
    #[command(visible_alias = "rm")]
    Delete(threads::ThreadArgs),
}

pub(super) async fn run(args: ChatArgs, client: &Client, output: &mut Output) -> Result<Exit, CliError> {
    match args.command {
        Some(ChatCommand::Actions(args)) => threads::actions(client, args, output).await?,
        Some(ChatCommand::LlmCalls(args)) => threads::llm_calls(client, args, output).await?,
        Some(ChatCommand::Threads(args)) => threads::list(client, args, output).await?,
        Some(ChatCommand::Stop(args)) => threads::stop(client, args, output).await?,
        Some(ChatCommand::Delete(args)) => threads::delete(client, args, output).await?,
        None => {
            let thread = ids::thread(client, args.thread).await?;
            return converse(client, thread, output).await;
        }
    }
    Ok(Exit::Success)
}

/// Sends the lines of standard input, each after the turn before it, and prints what happens in the thread.
async fn converse(client: &Client, thread: String, output: &mut Output) -> Result<Exit, CliError> {
    let mut interrupts = unix::interrupts()?;
    // Of all threads: `main` may not exist yet, and `/new` changes it.
    let request = StreamRequest { path: "/api/chat/events".to_owned(), query: vec![], after: None };
    let mut stream = EventFollower::<ChatEvent>::new(client, request);
    // Before the first message, so that nothing of its turn is missed.
    stream.open().await?;
    let mut lines = Lines::of_standard_input();
    let mut session = Session::open(client, thread, output).await?;
    loop {
        session.ask_for_line()?;
        tokio::select! {
            item = stream.next() => session.receive(item?)?,
            line = lines.next(), if session.wants_line() => match line {
                Some(line) => session.take_line(line).await?,
                None => return session.end(),
            },
            _ = interrupts.recv() => {
                let goes_on = tokio::select! {
                    goes_on = session.interrupt() => goes_on?,
                    // The person does not wait for the server's answer.
                    _ = interrupts.recv() => false,
                };
                if !goes_on {
                    return session.leave();
                }
            }
        }
        session.update().await?;
    }
}
