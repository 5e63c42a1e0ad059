//! `gantry dashboard`: a one-time link to the dashboard, of the caller or, on the server's machine, of an admin.
//!
//! Never prints a token. The code is in the link's fragment, which browsers send to no server.

use std::process::{Command, Stdio};

use chrono::TimeDelta;
use clap::Args;
use protocol::{SessionCode, is_user_name};

use cli::{CliError, Client, Exit, Output, connection::Connection};

use crate::{config::ConfigSource, token_records};
use auth::{Role, random_secret};
use base::{Environment, clock::Clock};
use store::sessions::SessionGrant;

/// How long the session of an admin lasts at most.
const ADMIN_SESSION: TimeDelta = TimeDelta::hours(12);
/// Programs that open a link, the first that there is.
const OPENERS: [&str; 3] = ["xdg-open", "open", "wslview"];

#[derive(Debug, Args)]
pub struct DashboardArgs {
    /// Open the link in the browser
    #[arg(long)]
    open: bool,
    /// Make the link of an admin, for 12 hours (on the server's machine)
    #[arg(long)]
    admin: bool,
    /// Name of that admin
    #[arg(long, value_name = "NAME", default_value = "admin", requires = "admin")]
    user: String,
    #[command(flatten)]
    flags: ConfigSource,
}

pub(super) async fn run(args: DashboardArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let connection = Connection::from_environment(environment)?;
    let DashboardArgs { open, admin, user, flags } = args;
    let code = if admin {
        admin_code(user, flags, environment).await?
    } else {
        let client = Client::new(&connection.url, connection.token)?;
        client.post("/api/session/codes", &serde_json::json!({}), None).await?
    };
    let base = environment.get("GANTRY_DASHBOARD_URL").unwrap_or(&connection.url).trim_end_matches('/');
    let link = format!("{base}/login#code={}", code.code);
    let value = serde_json::json!({"url": link, "expires_at": code.expires_at});
    output.either(&value, |_| link.clone())?;
    output.note("gantry: the link works once, within 10 minutes");
    if open && !open_in_browser(&link) {
        return Err(CliError::Failed("no program that opens links was found; open the link by hand".to_owned()));
    }
    Ok(Exit::Success)
}

/// Records a code that opens the session of an admin.
async fn admin_code(user: String, flags: ConfigSource, environment: &Environment) -> Result<SessionCode, CliError> {
    if !is_user_name(&user) {
        return Err(CliError::Usage(format!("--user {user}: must be 1 to 64 of letters, digits and ._@-")));
    }
    let config = flags.load(environment)?;
    let now = Clock::system().now();
    let role = Role::Admin.as_str().to_owned();
    let grant = SessionGrant { user_id: user, role, origin_jti: None, expires_at: now + ADMIN_SESSION };
    token_records::create_code(&config, random_secret(), grant, now).await
}

/// Starts a browser. The link, which works once, is among its arguments, as with other command lines that open a login.
fn open_in_browser(link: &str) -> bool {
    let start = |program: &&str| {
        Command::new(program).arg(link).stdin(Stdio::null()).stdout(Stdio::null()).stderr(Stdio::null()).spawn().is_ok()
    };
    OPENERS.iter().any(start)
}
