//! `gantry backup`: a copy of the database while the server works.

use std::path::PathBuf;

use clap::Args;

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
    output::Output,
};
use crate::{app::is_in_use, config::Environment, store};

/// Arguments of `backup`.
#[derive(Debug, Args)]
pub(super) struct BackupArgs {
    /// Where the copy goes
    file: PathBuf,
    /// Replace the file when it is there
    #[arg(long)]
    force: bool,
    #[command(flatten)]
    flags: ConfigFlags,
}

pub(super) async fn run(args: BackupArgs, environment: &Environment, output: &mut Output) -> Result<Exit, CliError> {
    let BackupArgs { file, force, flags } = args;
    if file.file_name().is_none() || file.is_dir() {
        return Err(CliError::Usage(format!("{} is a folder; name the file that the copy is to be", file.display())));
    }
    if file.exists() && !force {
        return Err(CliError::Usage(format!("{} is there already; --force replaces it", file.display())));
    }
    let config = flags.load(environment)?;
    if !is_in_use(&config.data_dir) {
        output.note(&format!(
            "gantry: no server runs on {}; one with another data folder (in a container, say) is backed up where it runs",
            config.data_dir.display()
        ));
    }
    output.note("copying the database; the server may go on working");
    let size_bytes = store::backup(&config.database_url, &file).await.map_err(|error| {
        let cause = std::error::Error::source(&error).map(|cause| format!(": {cause}")).unwrap_or_default();
        CliError::Failed(format!("no backup: {error}{cause}"))
    })?;
    let told = serde_json::json!({"file": file, "size_bytes": size_bytes});
    output.either(&told, |_| format!("{} ({size_bytes} bytes)", file.display()))?;
    Ok(Exit::Fine)
}
