//! The commands of a client, and running one of them.

use base::Environment;
use clap::Subcommand;

use super::{
    account::{login, memory, notification, settings, tool},
    admin::{self, audit},
    automation::{cron, emit, routine, runs, wake},
    chat::{self, gate},
    client::Client,
    events,
    exit::{CliError, Exit},
    job,
    output::Output,
    usage,
};

/// Commands outside of [`Command`] that talk to a server, too.
const OTHERS: [&str; 4] = ["secret", "context", "doctor", "dashboard"];

/// The names of commands that talk to a server, which have the options that select it.
pub fn server_commands() -> Vec<String> {
    let commands = Command::augment_subcommands(clap::Command::new("gantry"));
    let names = commands.get_subcommands().map(clap::Command::get_name);
    names.chain(OTHERS).map(str::to_owned).collect()
}

#[derive(Debug, Subcommand)]
pub enum Command {
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
    /// Show which user and role the server knows you as
    Whoami,
    /// Show token, cost and call totals
    Usage(usage::UsageArgs),
    /// Show how much you store, by kind
    Storage(usage::StorageArgs),
    /// List tool calls that wait for your approval, approve and deny them
    #[command(subcommand)]
    Gate(gate::GateCommand),
    /// List your notifications and mark them as read
    #[command(subcommand)]
    Notification(notification::NotificationCommand),
    /// Show and change your settings
    #[command(subcommand)]
    Settings(settings::SettingsCommand),
}

/// Which server the commands use.
#[derive(Debug, Subcommand)]
pub enum LoginCommand {
    /// Save the URL of a server and an access token as a context
    Login(login::LoginArgs),
    /// Remove the context in use and its token from this machine
    Logout,
    /// List, select and remove contexts: servers with access tokens
    #[command(subcommand)]
    Context(login::ContextCommand),
}

impl Command {
    pub async fn run(self, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
        let client = &Client::from_environment(environment)?;
        match self {
            Self::Job(command) => return job::run(command, client, output).await,
            Self::Chat(args) => return chat::run(args, client, output).await,
            Self::Routine(command) => return routine::run(command, client, environment, output).await,
            Self::Runs(command) => runs::run(command, client, output).await?,
            Self::Cron(command) => cron::run(command, client, output).await?,
            Self::WakeSession(args) => wake::run(args, client, output).await?,
            Self::Message(args) => emit::message(args, client, output).await?,
            Self::SystemEvent(args) => emit::system_event(args, client, output).await?,
            Self::Events(args) => return events::run(args, client, output).await,
            Self::Memory(command) => memory::run(command, client, output).await?,
            Self::Tool(command) => tool::run(command, client, output).await?,
            Self::Admin(command) => admin::run(command, client, output).await?,
            Self::Audit(args) => audit::run(args, client, output).await?,
            Self::Summary => usage::summary(client, output).await?,
            Self::Whoami => login::whoami(client, output).await?,
            Self::Usage(args) => usage::run(args, client, output).await?,
            Self::Storage(args) => usage::storage(args, client, output).await?,
            Self::Gate(command) => gate::run(command, client, output).await?,
            Self::Notification(command) => notification::run(command, client, output).await?,
            Self::Settings(command) => settings::run(command, client, output).await?,
        }
        Ok(Exit::Success)
    }
}

impl LoginCommand {
    pub async fn run(self, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
        match self {
            Self::Login(args) => login::login(args, environment, output).await?,
            Self::Logout => login::logout(environment, output)?,
            Self::Context(command) => login::run(command, environment, output)?,
        }
        Ok(Exit::Success)
    }
}
