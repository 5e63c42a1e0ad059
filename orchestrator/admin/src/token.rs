//! `gantry token`: access tokens, signed with the key in the data directory.

use chrono::{DateTime, Utc};
use clap::{Args, Subcommand};

use cli::{CliError, Column, Exit, Output, TableArgs, View, one_line, one_of, table};

use crate::{config::ConfigSource, token_records};
use app::is_in_use;
use auth::{Role, SigningKey, is_jti};
use base::{Environment, clock::Clock};
use protocol::is_user_name;
use store::tokens::{Revoked, TokenRow};

const MAX_TTL_DAYS: i64 = 3650;

#[derive(Debug, Subcommand)]
pub enum TokenCommand {
    /// Create a token and print it
    Create(CreateArgs),
    /// List the tokens created here
    List {
        #[command(flatten)]
        flags: ConfigSource,
    },
    /// Revoke a token by its id (jti), including tokens signed elsewhere with the same key
    Revoke {
        /// Token id (jti)
        jti: String,
        #[command(flatten)]
        flags: ConfigSource,
    },
}

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// User name
    #[arg(long, value_name = "NAME")]
    user: String,
    /// Role
    #[arg(long, value_parser = one_of(&[Role::Admin, Role::User, Role::Viewer]), default_value = "user")]
    role: Role,
    /// Lifetime, such as 12h or 30d
    #[arg(long, default_value = "30d", value_parser = parse_ttl)]
    ttl: humantime::Duration,
    /// Create the signing key if there is none, before the first start of the server
    #[arg(long)]
    init: bool,
    #[command(flatten)]
    flags: ConfigSource,
}

fn parse_ttl(text: &str) -> Result<humantime::Duration, String> {
    text.parse().map_err(|_| "must be a number with its unit, such as 90m, 12h or 30d".to_owned())
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
            let view = View::new(output, &TableArgs::default(), now, None);
            output.either(&serde_json::json!({"items": records}), |_| table(TOKENS, &records, &view))?;
            Ok(Exit::Success)
        }
        TokenCommand::Revoke { jti, flags } => {
            check_jti(&jti)?;
            let config = flags.load(environment)?;
            let revoked = token_records::revoke(&config, &jti, now).await?;
            let listed = revoked != Revoked::Unlisted;
            let value = serde_json::json!({"jti": jti, "revoked": true, "listed": listed});
            output.either(&value, |_| format!("{jti} {}", describe(revoked)))?;
            if !listed {
                output.note(
                    "gantry: no token with this id was created here (see `gantry token list`); it is revoked anyway",
                );
            }
            Ok(Exit::Success)
        }
    }
}

/// A token signed elsewhere can have any id; this catches values that are clearly something else.
fn check_jti(jti: &str) -> Result<(), CliError> {
    let invalid = |advice: &str| Err(CliError::Usage(format!("the token's id (jti) {advice}")));
    if jti.matches('.').count() == 2 && jti.starts_with("ey") {
        return invalid("is required, not the token itself; `gantry token list` shows the ids");
    }
    if !is_jti(jti) || jti.trim() != jti || jti.chars().any(char::is_control) {
        return invalid(
            "must be 1 to 128 bytes without control characters or surrounding spaces; `gantry token list` shows the ids",
        );
    }
    Ok(())
}

const fn describe(revoked: Revoked) -> &'static str {
    match revoked {
        Revoked::Listed | Revoked::Unlisted => "revoked",
        Revoked::Already => "was already revoked",
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
    let key_file = SigningKey::file(&config.data_dir);
    let is_new = config.jwt_secret.is_none() && !key_file.exists();
    if is_new && !args.init {
        return Err(CliError::Failed(format!(
            "there is no signing key in {}: no server has been started with this data directory; start it with `gantry serve`, use \
             `docker/gantry token create` for the Compose stack, or create the key with --init",
            config.data_dir.display()
        )));
    }
    make_data_dir(&config.data_dir)?;
    let key = SigningKey::load(config.jwt_secret.as_ref(), &config.data_dir)
        .map_err(|error| CliError::Failed(error.to_string()))?;
    let issued = key.issue(&args.user, args.role, now, ttl).map_err(|error| CliError::Failed(error.to_string()))?;
    let record = TokenRow {
        jti: issued.jti.clone(),
        user_id: args.user,
        role: args.role.as_str().to_owned(),
        created_at: now,
        expires_at: issued.expires_at,
        revoked_at: None,
    };
    token_records::insert(&config, &record).await?;
    if is_new {
        output.note(&format!(
            "gantry: created a new signing key, {}; a server with another data directory (for example in a container) does not \
             accept this token: create its tokens where it runs",
            key_file.display()
        ));
    } else if !is_in_use(&config.data_dir) {
        output.note(&format!(
            "gantry: no server uses {}; a server with another data directory (for example in a container) does not accept this \
             token: create its tokens where it runs",
            config.data_dir.display()
        ));
    }
    let value = serde_json::json!({
        "token": issued.token, "jti": issued.jti, "user": record.user_id, "role": args.role, "expires_at": issued.expires_at,
    });
    // Prints only the token, so that scripts can capture it.
    output.either(&value, |_| issued.token.clone())?;
    Ok(Exit::Success)
}

/// Creates the data directory, accessible to its owner only; an existing one is not changed.
fn make_data_dir(path: &std::path::Path) -> Result<(), CliError> {
    use std::os::unix::fs::DirBuilderExt;
    let made = std::fs::DirBuilder::new().recursive(true).mode(0o700).create(path);
    made.map_err(|error| CliError::failed(&format!("cannot create the data directory {}", path.display()), error))
}

const TOKENS: &[Column<TokenRow>] = &[
    Column::text("jti", |token, _| one_line(&token.jti)),
    Column::text("user", |token, _| one_line(&token.user_id)),
    Column::<TokenRow>::text("role", |token, _| one_line(&token.role)).optional(),
    Column::<TokenRow>::text("issued", |token, view| view.time(token.created_at)).optional(),
    Column::text("expires", |token, view| view.time(token.expires_at)),
    Column::text("state", |token, view| {
        match token.revoked_at {
            Some(_) => "revoked",
            None if token.expires_at <= view.now => "expired",
            None => "valid",
        }
        .to_owned()
    }),
];

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    fn revoke(jti: &str) -> TokenCommand {
        TokenCommand::Revoke { jti: jti.to_owned(), flags: ConfigSource::default() }
    }

    #[rstest]
    #[case("")]
    #[case(" j1")]
    #[case("j\n1")]
    #[case("eyJhbGciOiJIUzI1NiJ9.e30.c2ln")]
    #[case(&"x".repeat(129))]
    #[tokio::test]
    async fn an_invalid_token_id_is_a_usage_error(#[case] jti: &str) {
        let (mut output, _) = Output::captured(cli::Format::Text);
        let error = run(revoke(jti), &Environment::from_pairs([]), &mut output).await.unwrap_err();
        assert_eq!(error.exit(), Exit::Usage);
        assert!(error.to_string().contains("(jti)"), "{error}");
    }

    #[tokio::test]
    async fn without_a_data_directory_token_commands_fail_and_create_nothing() {
        let directory = tempfile::tempdir().unwrap();
        let data = directory.path().join("data");
        let environment = Environment::from_pairs([("GANTRY_DATA_DIR", data.to_str().unwrap())]);
        for command in [revoke("j1"), TokenCommand::List { flags: ConfigSource::default() }] {
            let (mut output, _) = Output::captured(cli::Format::Text);
            let error = run(command, &environment, &mut output).await.unwrap_err();
            assert_eq!(error.exit(), Exit::Failed);
            assert!(error.to_string().contains(data.to_str().unwrap()), "{error}");
        }
        assert!(!data.exists());
    }

    #[tokio::test]
    async fn an_unlisted_token_can_be_revoked() {
        let directory = tempfile::tempdir().unwrap();
        let environment = Environment::from_pairs([("GANTRY_DATA_DIR", directory.path().to_str().unwrap())]);
        for wanted in ["j1 revoked\n", "j1 was already revoked\n"] {
            let (mut output, printed) = Output::captured(cli::Format::Text);
            assert_eq!(run(revoke("j1"), &environment, &mut output).await.unwrap(), Exit::Success);
            let printed = String::from_utf8(printed.lock().unwrap().clone()).unwrap();
            assert_eq!(printed, wanted);
        }
    }
}
