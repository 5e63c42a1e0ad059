//! `gantry job remove`: deletes finished jobs.

use clap::Args;
use protocol::JobId;
use serde_json::json;

use crate::{
    client::Client,
    exit::{CliError, Exit},
    ids::IdArg,
    output::Output,
};

#[derive(Debug, Args)]
pub struct RemoveArgs {
    /// Job ids
    #[arg(required = true, value_name = "ID")]
    ids: Vec<IdArg<JobId>>,
}

/// Deletes one job after the other. A job that cannot be deleted is reported, and the exit code is that of the first
/// one.
pub(super) async fn remove(client: &Client, args: RemoveArgs, output: &mut Output) -> Result<Exit, CliError> {
    // All of them first: `latest` changes with each deletion, and a wrong id deletes nothing.
    let mut ids = Vec::new();
    for id in args.ids {
        let id = id.resolve(client).await?;
        if !ids.contains(&id) {
            ids.push(id);
        }
    }
    let mut exit = Exit::Success;
    for id in ids {
        if let Err(error) = client.delete_if_version(&format!("/api/jobs/{id}"), &[], None).await {
            if !matches!(error, CliError::Refused(_)) {
                return Err(error);
            }
            output.error_about(&id, &error);
            if exit == Exit::Success {
                exit = error.exit();
            }
            continue;
        }
        output.either(&json!({"id": id, "removed": true}), |_| format!("{id} removed"))?;
    }
    Ok(exit)
}
