//! `gantry secret rotate-key`: replaces the master key and encrypts the stored secrets with the new one.

use std::path::{Path, PathBuf};

use app::{is_in_use, rotate_master_key};
use base::{Environment, clock::Clock, error_chain};
use clap::Args;
use secrecy::zeroize::Zeroizing;
use secrets::{MasterKey, Rotated, UnreadableSecrets};

use cli::{CliError, Exit, Output};

use crate::config::ConfigSource;

#[derive(Debug, Args)]
pub struct RotateKeyArgs {
    #[arg(
        long,
        value_name = "FILE",
        help = "File with the new key, 32 bytes in base64 (default: generate one); required if GANTRY_MASTER_KEY is set"
    )]
    new_key_file: Option<PathBuf>,
    /// Delete the secrets that the present key does not open, instead of failing
    #[arg(long)]
    discard_unreadable: bool,
    #[command(flatten)]
    flags: ConfigSource,
}

pub async fn run(args: RotateKeyArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    base::failpoint::arm(environment);
    let config = args.flags.load(environment)?;
    let data_dir = config.data_dir.display();
    if !config.data_dir.exists() {
        return Err(CliError::Failed(format!("no server has used {data_dir}, so it has no secrets")));
    }
    if is_in_use(&config.data_dir) {
        let detail =
            format!("a server uses {data_dir}; stop it first (its jobs keep running), and start it afterwards");
        return Err(CliError::Failed(detail));
    }
    let new_key = args.new_key_file.as_deref().map(read_key).transpose()?;
    let unreadable = if args.discard_unreadable { UnreadableSecrets::Discard } else { UnreadableSecrets::Refuse };
    let rotated = rotate_master_key(&config, new_key, unreadable, Clock::system().now())
        .await
        .map_err(|error| CliError::failed("the master key was not rotated", error_chain(&error)))?;
    let Rotated { key_id, counts, is_configured } = rotated;
    let value = serde_json::json!({"key_id": key_id, "resealed": counts.resealed, "deleted": counts.deleted});
    output.either(&value, |_| {
        let deleted = if counts.deleted > 0 { format!(", {} deleted", counts.deleted) } else { String::new() };
        format!("{} secrets encrypted with the new key (id {key_id}){deleted}", counts.resealed)
    })?;
    if is_configured {
        output.note("gantry: set GANTRY_MASTER_KEY to the new key before the server starts");
    }
    output.note("gantry: keep the old key as long as you keep backups that were made before");
    Ok(Exit::Success)
}

fn read_key(path: &Path) -> Result<MasterKey, CliError> {
    let usage = |detail: String| CliError::Usage(format!("--new-key-file {}: {detail}", path.display()));
    let text = std::fs::read_to_string(path).map_err(|error| usage(format!("cannot read the file: {error}")))?;
    let text = Zeroizing::new(text);
    MasterKey::from_base64(text.trim())
        .ok_or_else(|| usage("must be 32 bytes in base64 (try: openssl rand -base64 32)".to_owned()))
}
