//! `gantry serve`: the daemon.

use clap::Args;

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
};
use crate::config::Environment;

/// Its arguments.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub(super) async fn run(args: ServeArgs, environment: &Environment) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    crate::telemetry::init(&config.log)?;
    crate::app::serve(config).await.map_err(|error| CliError::failed("the server ended", error))?;
    Ok(Exit::Fine)
}
