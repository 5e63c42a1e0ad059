//! The commands, and running one of them.

use std::{process::ExitCode, time::Duration};

use clap::{CommandFactory, FromArgMatches, Parser, Subcommand};

use base::Environment;
use cli::{CliError, Exit, Output, connection};

const AFTER_HELP: &str = "\
Exit codes:
  0    success; a followed job completed
  1    failed: the followed job or run, a check, or a step on this machine
  2    invalid usage, configuration or request
  3    the server cannot be reached or failed; a retry may succeed
  4    not found
  5    not possible in the current state; a run was skipped or missed
  6    the token is missing or invalid, or its role may not do this
  124  the job or run exceeded its time limit, or a wait its --timeout
  130  interrupted; a followed job continues
  141  standard output was closed

Environment:
  GANTRY_URL         URL of the server (default http://127.0.0.1:8080)
  GANTRY_TOKEN       access token; `gantry token create` creates one
  GANTRY_TOKEN_FILE  file that contains the access token
  GANTRY_CONTEXT     name of the context to use (see `gantry context list`)
  COLUMNS            width of the output (default: the terminal's)
  TZ                 time zone of this machine, where neither --timezone nor your settings name one
  NO_COLOR           disable colors";

/// Run AI-agent jobs in sandboxed containers.
#[derive(Debug, Parser)]
#[command(name = "gantry", version, after_help = AFTER_HELP)]
pub(crate) struct Cli {
    /// Print JSON; a list is one object, events and files are one object per line
    #[arg(long, global = true)]
    json: bool,
    /// Time zone in which times are read and shown, such as Europe/Oslo (default: that of your settings, else the machine's)
    #[arg(long, global = true, value_name = "ZONE", value_parser = cli::parse_zone_name)]
    timezone: Option<String>,
    #[command(subcommand)]
    command: Command,
}

#[derive(Debug, Subcommand)]
enum Command {
    /// Run the server
    Serve(admin::ServeArgs),
    #[command(flatten)]
    Client(cli::Command),
    /// Store values such as API keys encrypted, for use by name
    #[command(subcommand)]
    Secret(SecretCommand),
    #[command(flatten)]
    Admin(admin::Command),
    #[command(flatten)]
    Login(cli::LoginCommand),
    /// Print the effective configuration of the server, with secrets masked
    Config(admin::ConfigArgs),
    /// Print a shell completion script
    Completion(cli::CompletionArgs),
}

#[derive(Debug, Subcommand)]
enum SecretCommand {
    #[command(flatten)]
    Client(cli::SecretCommand),
    /// Replace the key that encrypts the stored secrets (on the server's machine, while the server is stopped)
    RotateKey(admin::RotateKeyArgs),
}

/// Runs the command given by the arguments.
pub fn main(environment: &Environment) -> ExitCode {
    if cli::answer_shell(environment, command) {
        return ExitCode::SUCCESS;
    }
    let (cli, environment) = match parse(environment) {
        Ok(parsed) => parsed,
        Err(error) => return report_usage_error(&error, environment),
    };
    let mut output = Output::standard(&environment, cli.json, cli.timezone.as_deref());
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
pub(crate) fn command() -> clap::Command {
    let command = crate::examples::with_examples(Cli::command());
    let command = connection::with_options_before_command(command);
    cli::server_commands().iter().fold(command, |command, name| command.mut_subcommand(name, connection::with_options))
}

/// The command, and the environment in which its options take precedence. Help is as wide as the terminal, or as
/// `COLUMNS`.
fn parse(environment: &Environment) -> Result<(Cli, Environment), clap::Error> {
    let command = match cli::width(environment) {
        Some(width) => command().term_width(width),
        None => command(),
    };
    let matches = command.try_get_matches()?;
    let mut with_values = connection::with_values(environment.clone(), &matches);
    if let Some((name, matches_of_command)) = matches.subcommand() {
        if connection::has_values(&matches) && !cli::server_commands().iter().any(|known| known == name) {
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
    Output::standard(environment, json, None).error(&error);
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

/// Time for what still computes on a blocking thread at the end: it cannot be cancelled, and nothing waits for its
/// result any more.
const BLOCKING_TASK_TIMEOUT: Duration = Duration::from_millis(250);

fn run(command: Command, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .enable_all()
        .build()
        .map_err(|error| CliError::failed("cannot start threads", error))?;
    if !matches!(command, Command::Serve(_)) {
        admin::init_log(environment)?;
    }
    let result = runtime.block_on(async {
        match command {
            Command::Serve(args) => admin::serve(args, environment).await,
            Command::Client(command) => command.run(environment, output).await,
            Command::Secret(SecretCommand::Client(command)) => cli::run_secret(command, environment, output).await,
            Command::Secret(SecretCommand::RotateKey(args)) => admin::rotate_key(args, environment, output).await,
            Command::Admin(command) => command.run(environment, output).await,
            Command::Login(command) => command.run(environment, output).await,
            Command::Config(args) => admin::run_config(args, environment, output),
            Command::Completion(args) => args.run(output),
        }
    });
    runtime.shutdown_timeout(BLOCKING_TASK_TIMEOUT);
    result
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
    fn a_time_zone_can_be_given_anywhere_and_is_known() {
        let zone = |line: &[&str]| Cli::try_parse_from(line).map(|cli| cli.timezone);
        for line in [
            &["gantry", "--timezone", "Asia/Tokyo", "job", "list"][..],
            &["gantry", "job", "list", "--timezone", "Asia/Tokyo"],
            &["gantry", "routine", "create", "r", "--timezone", "Asia/Tokyo"],
            &["gantry", "settings", "set", "--timezone", "Asia/Tokyo"],
        ] {
            assert_eq!(zone(line).unwrap().as_deref(), Some("Asia/Tokyo"), "{line:?}");
        }
        let error = zone(&["gantry", "--timezone", "Mars/Olympus", "job", "list"]).unwrap_err();
        assert!(message_of(&error).contains("must be an IANA time zone"), "{error}");
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
