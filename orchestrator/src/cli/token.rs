//! `gantry token`: access tokens, made with the data folder's key.

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand, ValueEnum};
use comfy_table::{Table, presets};

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
    output::Output,
    token_records,
};
use crate::{
    auth::{Role, SigningKey, is_user_name},
    clock::Clock,
    config::Environment,
    store::tokens::TokenRow,
};

const MAX_TTL_DAYS: i64 = 3650;

/// Its commands.
#[derive(Debug, Subcommand)]
pub(super) enum TokenCommand {
    /// Make a token and print it
    Create(CreateArgs),
    /// List the tokens made here
    List {
        #[command(flatten)]
        flags: ConfigFlags,
    },
    /// Void a token by its id (jti)
    Revoke {
        /// The token's id
        jti: String,
        #[command(flatten)]
        flags: ConfigFlags,
    },
}

/// Arguments of `create`.
#[derive(Debug, Args)]
pub(super) struct CreateArgs {
    /// For whom
    #[arg(long, value_name = "NAME")]
    user: String,
    /// What they may do
    #[arg(long, value_enum, default_value = "user")]
    role: RoleArg,
    /// How long it is good, such as 12h or 30d
    #[arg(long, default_value = "30d")]
    ttl: humantime::Duration,
    #[command(flatten)]
    flags: ConfigFlags,
}

#[derive(Debug, Clone, Copy, ValueEnum)]
enum RoleArg {
    Admin,
    User,
    Viewer,
}

impl From<RoleArg> for Role {
    fn from(role: RoleArg) -> Self {
        match role {
            RoleArg::Admin => Self::Admin,
            RoleArg::User => Self::User,
            RoleArg::Viewer => Self::Viewer,
        }
    }
}

pub(super) async fn run(
    command: TokenCommand,
    environment: &Environment,
    output: &mut Output,
) -> Result<Exit, CliError> {
    let now = Clock::system().now();
    match command {
        TokenCommand::Create(args) => create(args, environment, output, now).await,
        TokenCommand::List { flags } => {
            let config = flags.load(environment)?;
            let records = token_records::list(&config).await?;
            output.either(&serde_json::json!({"items": records}), |_| table(&records, now))?;
            Ok(Exit::Fine)
        }
        TokenCommand::Revoke { jti, flags } => {
            let config = flags.load(environment)?;
            let newly = token_records::revoke(&config, &jti, now).await?;
            let told = if newly { "revoked" } else { "was revoked already" };
            output.either(&serde_json::json!({"jti": jti, "revoked": true}), |_| format!("{jti} {told}"))?;
            Ok(Exit::Fine)
        }
    }
}

async fn create(
    args: CreateArgs,
    environment: &Environment,
    output: &mut Output,
    now: DateTime<Utc>,
) -> Result<Exit, CliError> {
    if !is_user_name(&args.user) {
        return Err(CliError::Usage(format!("--user {}: must be 1 to 64 of letters, digits and ._@-", args.user)));
    }
    let ttl = chrono::Duration::from_std(*args.ttl)
        .ok()
        .filter(|ttl| (chrono::Duration::seconds(1)..=chrono::Duration::days(MAX_TTL_DAYS)).contains(ttl));
    let ttl = ttl.ok_or_else(|| CliError::Usage(format!("--ttl {}: must be from 1s to {MAX_TTL_DAYS}d", args.ttl)))?;
    let config = args.flags.load(environment)?;
    make_data_dir(&config.data_dir)?;
    let key = SigningKey::load(config.jwt_secret.as_ref(), &config.data_dir)
        .map_err(|error| CliError::Failed(error.to_string()))?;
    let role = Role::from(args.role);
    let issued = key.issue(&args.user, role, now, ttl).map_err(|error| CliError::Failed(error.to_string()))?;
    let record = TokenRow {
        jti: issued.jti.clone(),
        user_id: args.user,
        role: role.as_str().to_owned(),
        created_at: now,
        expires_at: issued.expires_at,
        revoked_at: None,
    };
    token_records::insert(&config, &record).await?;
    let value = serde_json::json!({
        "token": issued.token, "jti": issued.jti, "user": record.user_id, "role": role, "expires_at": issued.expires_at,
    });
    // The bare token, so that a script can take it as it is.
    output.either(&value, |_| issued.token.clone())?;
    Ok(Exit::Fine)
}

/// The data folder, for its owner alone; what is there already stays as it is.
fn make_data_dir(path: &std::path::Path) -> Result<(), CliError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| CliError::failed(&format!("cannot make the data folder {}", path.display()), error))
}

fn table(records: &[TokenRow], now: DateTime<Utc>) -> String {
    let mut table = Table::new();
    table.load_style(presets::NOTHING).set_header(["jti", "user", "role", "issued", "expires", "state"]);
    for record in records {
        let state = match record.revoked_at {
            Some(_) => "revoked",
            None if record.expires_at <= now => "expired",
            None => "good",
        };
        table.add_row([
            record.jti.as_str(),
            &record.user_id,
            &record.role,
            &record.created_at.format("%F %R").to_string(),
            &record.expires_at.format("%F %R").to_string(),
            state,
        ]);
    }
    table.trim_fmt()
}
