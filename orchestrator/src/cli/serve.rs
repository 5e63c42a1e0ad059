//! `gantry serve`: the daemon.

use clap::Args;
use tracing::{info, warn};

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
};
use crate::config::{Config, Environment};

/// Its arguments.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub(super) async fn run(args: ServeArgs, environment: &Environment) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    crate::telemetry::init(&config.log)?;
    for warning in &config.warnings {
        warn!("{warning}");
    }
    if config.llm.is_demo {
        info!(
            "no model is set: the built-in demo script answers; set GANTRY_LLM_PROVIDER (openai, anthropic or ollama), \
             GANTRY_LLM_MODEL and GANTRY_LLM_API_KEY to use a real one"
        );
    }
    start(config).await?;
    Ok(Exit::Fine)
}

/// The one line that hands over to the application.
async fn start(config: Config) -> Result<(), CliError> {
    std::future::ready(Err(CliError::Failed(format!("this build cannot serve {}", config.bind)))).await
}
