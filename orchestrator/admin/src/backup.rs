//! `gantry backup`: copies the database while the server runs.

use std::path::PathBuf;

use clap::Args;

use cli::{CliError, Exit, Output};

use crate::config::ConfigSource;
use app::is_in_use;
use base::Environment;
use secrets::key_path;

#[derive(Debug, Args)]
pub struct BackupArgs {
    /// File to write the backup to
    file: PathBuf,
    /// Replace an existing file
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    flags: ConfigSource,
}

pub(super) async fn run(args: BackupArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let BackupArgs { file, force, flags } = args;
    if file.file_name().is_none() || file.is_dir() {
        return Err(CliError::Usage(format!("{} is a directory; name a file", file.display())));
    }
    if file.exists() && !force {
        return Err(CliError::Usage(format!("{} already exists; use --force to replace it", file.display())));
    }
    let config = flags.load(environment)?;
    if !is_in_use(&config.data_dir) {
        output.note(&format!(
            "gantry: no server uses {}; to back up a server in a container, run this command in the container",
            config.data_dir.display()
        ));
    }
    output.note("copying the database; the server can keep running");
    let size_bytes = store::backup(&config.database_url, &file).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        CliError::Failed(format!("backup failed: {error}{cause}"))
    })?;
    let key = if config.master_key.is_some() {
        "GANTRY_MASTER_KEY".to_owned()
    } else {
        key_path(&config.data_dir).display().to_string()
    };
    output.note(&format!(
        "gantry: the backup does not contain the master key ({key}), without which its secrets cannot be read; keep a copy of the \
         key in another place"
    ));
    let value = serde_json::json!({"file": file, "size_bytes": size_bytes});
    output.either(&value, |_| format!("{} ({size_bytes} bytes)", file.display()))?;
    Ok(Exit::Success)
}
