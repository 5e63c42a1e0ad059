//! The commands, and running one of them.

use std::process::ExitCode;

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use super::{
    admin, audit, backup, chat, completion, config as config_command, connection, cron, doctor, emit, events, examples,
    exit::{CliError, Exit},
    gate, job, llm, login, memory, notification,
    output::{self, Output},
    routine, runs, secret, serve, settings, summary, token, tool, usage, wake,
};
use base::Environment;

const AFTER_HELP: &str = "\
Exit codes:
  0    success; a followed job completed
  1    failed: the followed job or run, a check, or a step on this machine
  2    invalid usage, configuration or request
  3    the server cannot be reached or failed; a retry may succeed
  4    not found
  5    not possible in the current state; a run was skipped or missed
  6    the token is missing or invalid, or its role may not do this
  124  the job or run exceeded its time limit
  130  interrupted; a followed job continues
  141  standard output was closed

Environment:
  GANTRY_URL         URL of the server (default http://127.0.0.1:8080)
  GANTRY_TOKEN       access token; `gantry token create` creates one
  GANTRY_TOKEN_FILE  file that contains the access token
  GANTRY_CONTEXT     name of the context to use (see `gantry context list`)
  COLUMNS            width of the output (default: the terminal's)
  TZ                 time zone of the output (default: the machine's)
  NO_COLOR           disable colors";

/// Commands that talk to a server, which have the options that select it.
const CLIENT_COMMANDS: [&str; 21] = [
    "job",
    "chat",
    "routine",
    "runs",
    "cron",
    "wake",
    "message",
    "system-event",
    "events",
    "memory",
    "tool",
    "admin",
    "audit",
    "summary",
    "usage",
    "gate",
    "notification",
    "settings",
    "secret",
    "context",
    "doctor",
];

/// Run AI-agent jobs in sandboxed containers.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, after_help = AFTER_HELP)]
pub(super) struct Cli {
    /// Print JSON; lists are one object per page, events and files one object per line
    #[arg(long, global = true)]
    json: bool,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(serve::ServeArgs),
    /// Create and manage jobs
    #[command(subcommand)]
    Job(job::JobCommand),
    /// Talk to the agent: each line of standard input is a message
    Chat(chat::ChatArgs),
    /// Manage routines: work that starts by itself
    #[command(subcommand)]
    Routine(routine::RoutineCommand),
    /// List, show, cancel and export the runs of routines
    #[command(subcommand)]
    Runs(runs::RunsCommand),
    /// Manage schedules through the calls cron.*
    #[command(subcommand)]
    Cron(cron::CronCommand),
    /// Put a line into your main session
    #[command(name = "wake")]
    WakeSession(wake::WakeArgs),
    /// Send a message, which fires your routines with a matching trigger of type event
    Message(emit::MessageArgs),
    /// Send a system event, which fires your routines with a matching trigger
    SystemEvent(emit::SystemEventArgs),
    /// Print the events of your jobs, chats and gates, and your notifications
    Events(events::EventsArgs),
    /// Read, write and search the documents of your memory
    #[command(subcommand)]
    Memory(memory::MemoryCommand),
    /// List tools and set your permissions
    #[command(subcommand)]
    Tool(tool::ToolCommand),
    /// Manage the installation (admins only)
    #[command(subcommand)]
    Admin(admin::AdminCommand),
    /// List the audit entries of the installation, newest first (admins only)
    Audit(audit::AuditArgs),
    /// Show the numbers of jobs by state, and usage today
    Summary,
    /// Show token, cost and call totals
    Usage(usage::UsageArgs),
    /// List tool calls that wait for your approval, approve and deny them
    #[command(subcommand)]
    Gate(gate::GateCommand),
    /// List your notifications and mark them as read
    #[command(subcommand)]
    Notification(notification::NotificationCommand),
    /// Show and change your settings
    #[command(subcommand)]
    Settings(settings::SettingsCommand),
    /// Store values such as API keys encrypted, for use by name
    #[command(subcommand)]
    Secret(secret::SecretCommand),
    /// Create, list and revoke access tokens (on the server's machine)
    #[command(subcommand)]
    Token(token::TokenCommand),
    /// Back up the database while the server runs (on the server's machine)
    Backup(backup::BackupArgs),
    /// Serve a scripted model over HTTP
    #[command(subcommand)]
    Llm(llm::LlmCommand),
    /// Check the installation and show how to fix problems
    Doctor(doctor::DoctorArgs),
    /// Save the URL of a server and an access token as a context
    Login(login::LoginArgs),
    /// Remove the context in use and its token from this machine
    Logout,
    /// List, select and remove contexts: servers with access tokens
    #[command(subcommand)]
    Context(login::ContextCommand),
    /// Print the effective configuration of the server, with secrets masked
    Config(config_command::ConfigArgs),
    /// Print a shell completion script
    Completion(completion::CompletionArgs),
}

/// Runs the command given by the arguments.
pub fn main(environment: &Environment) -> ExitCode {
    if completion::answer_shell(environment) {
        return ExitCode::SUCCESS;
    }
    let (cli, environment) = match parse(environment) {
        Ok(parsed) => parsed,
        Err(error) => return report_usage_error(&error, environment),
    };
    let mut output = Output::standard(&environment, cli.json);
    let result = run(cli.command, &environment, &mut output);
    let exit = match result {
        Ok(exit) => exit,
        Err(error) if error.is_closed_output() => Exit::ClosedOutput,
        Err(error) => {
            output.error(&error);
            error.exit()
        }
    };
    ExitCode::from(exit.code())
}

/// All commands with their options.
pub(super) fn command() -> clap::Command {
    let command = examples::with_examples(Cli::command());
    let command = connection::with_options_before_command(command);
    CLIENT_COMMANDS.iter().fold(command, |command, name| command.mut_subcommand(name, connection::with_options))
}

/// The command, and the environment in which its options take precedence. Help is as wide as the terminal, or as
/// `COLUMNS`.
fn parse(environment: &Environment) -> Result<(Cli, Environment), clap::Error> {
    let command = match output::width(environment) {
        Some(width) => command().term_width(width),
        None => command(),
    };
    let matches = command.try_get_matches()?;
    let mut with_values = connection::with_values(environment.clone(), &matches);
    if let Some((name, matches_of_command)) = matches.subcommand() {
        if connection::has_values(&matches) && !CLIENT_COMMANDS.contains(&name) {
            let message = format!("--url, --token-file and --context before `{name}` have no effect\n");
            return Err(self::command().error(clap::error::ErrorKind::ArgumentConflict, message));
        }
        with_values = connection::with_values(with_values, matches_of_command);
    }
    Ok((Cli::from_arg_matches(&matches)?, with_values))
}

/// Help and version are not errors; a usage error is printed in the requested format.
fn report_usage_error(error: &clap::Error, environment: &Environment) -> ExitCode {
    let json = std::env::args_os().take_while(|argument| argument != "--").any(|argument| argument == "--json");
    if !json || !error.use_stderr() {
        error.exit();
    }
    let error = CliError::Usage(message_of(error));
    Output::standard(environment, json).error(&error);
    ExitCode::from(error.exit().code())
}

/// The error and its tips, without the usage text.
fn message_of(error: &clap::Error) -> String {
    let text = error.render().to_string();
    let message = text.split("\n\nUsage:").next().unwrap_or_default().trim_start_matches("error: ");
    let parts = message.split("\n\n").filter(|part| !part.starts_with("For more information"));
    let parts: Vec<_> = parts.map(|part| part.split_whitespace().collect::<Vec<_>>().join(" ")).collect();
    parts.join("; ")
}

fn run(command: Command, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed("cannot start threads", error))?;
    if !matches!(command, Command::Serve(_)) {
        telemetry::init(&config::log_for_commands(environment)?, None)?;
    }
    runtime.block_on(async {
        match command {
            Command::Serve(args) => serve::run(args, environment).await,
            Command::Job(command) => job::run(command, environment, output).await,
            Command::Chat(args) => chat::run(args, environment, output).await,
            Command::Routine(command) => routine::run(command, environment, output).await,
            Command::Runs(command) => runs::run(command, environment, output).await,
            Command::Cron(command) => cron::run(command, environment, output).await,
            Command::WakeSession(args) => wake::run(args, environment, output).await,
            Command::Message(args) => emit::message(args, environment, output).await,
            Command::SystemEvent(args) => emit::system_event(args, environment, output).await,
            Command::Events(args) => events::run(args, environment, output).await,
            Command::Memory(command) => memory::run(command, environment, output).await,
            Command::Tool(command) => tool::run(command, environment, output).await,
            Command::Admin(command) => admin::run(command, environment, output).await,
            Command::Audit(args) => audit::run(args, environment, output).await,
            Command::Summary => summary::run(environment, output).await,
            Command::Usage(args) => usage::run(args, environment, output).await,
            Command::Gate(command) => gate::run(command, environment, output).await,
            Command::Notification(command) => notification::run(command, environment, output).await,
            Command::Settings(command) => settings::run(command, environment, output).await,
            Command::Secret(command) => secret::run(command, environment, output).await,
            Command::Token(command) => token::run(command, environment, output).await,
            Command::Backup(args) => backup::run(args, environment, output).await,
            Command::Llm(command) => llm::run(command, output).await,
            Command::Doctor(args) => doctor::run(args, environment, output).await,
            Command::Login(args) => login::login(args, environment, output).await,
            Command::Logout => login::logout(environment, output),
            Command::Context(command) => login::run(command, environment, output),
            Command::Config(args) => config_command::run(args, environment, output),
            Command::Completion(args) => completion::run(args, output),
        }
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn help_is_also_a_command() {
        for line in [&["gantry", "help"][..], &["gantry", "help", "job", "run"], &["gantry", "job", "help"]] {
            let answer = Cli::try_parse_from(line).unwrap_err();
            assert_eq!(answer.kind(), clap::error::ErrorKind::DisplayHelp, "{line:?}: {answer}");
        }
    }

    #[test]
    fn the_commands_are_well_formed() {
        command().debug_assert();
    }

    #[test]
    fn usage_errors_are_one_line() {
        let message = |arguments: &[&str]| message_of(&Cli::try_parse_from(arguments).unwrap_err());
        assert_eq!(message(&["gantry", "--json", "jbo"]), "unrecognized subcommand 'jbo'");
        let missing = message(&["gantry", "--json", "token", "create"]);
        assert_eq!(missing, "the following required arguments were not provided: --user <NAME>");
    }

    #[test]
    fn the_options_that_select_a_server_can_precede_the_command() {
        let selects = |line: &[&str]| connection::has_values(&command().try_get_matches_from(line).unwrap());
        assert!(selects(&["gantry", "--url", "http://u", "job", "list"]));
        assert!(selects(&["gantry", "--context", "a", "--json", "summary"]));
        assert!(selects(&["gantry", "--url", "http://u", "config"]));
        assert!(!selects(&["gantry", "config"]));
        assert!(!selects(&["gantry", "login", "--url", "http://u"]));
    }

    /// Commands without these options. `login` has separate ones.
    const OTHER_COMMANDS: [&str; 8] = ["serve", "llm", "config", "completion", "backup", "token", "login", "logout"];

    #[test]
    fn every_command_that_talks_to_a_server_has_the_options_that_select_it() {
        let mut all = command();
        all.build();
        for command in all.get_subcommands().filter(|command| command.get_name() != "help") {
            let has_options = command.get_arguments().any(|argument| argument.get_id() == connection::OPTIONS[0]);
            let name = command.get_name();
            assert_eq!(has_options, !OTHER_COMMANDS.contains(&name), "{name}");
        }
    }
}
