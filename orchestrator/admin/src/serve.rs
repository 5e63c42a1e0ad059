//! `gantry serve`: the daemon.

use clap::Args;

use cli::{CliError, Exit};

use crate::{config::ConfigFlags, configuration};
use app::{DatabaseError, ServeError};
use base::{Environment, error_chain};
use store::StoreError;
use telemetry::traces::Traces;

#[derive(Debug, Args)]
pub struct ServeArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub async fn run(args: ServeArgs, environment: &Environment) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    let traces = config.otel_endpoint.as_deref().map(Traces::new).transpose().map_err(configuration)?;
    telemetry::init(&config.log, traces.as_ref()).map_err(configuration)?;
    base::failpoint::arm(environment);
    base::failpoint::reach("serve.start");
    let served = app::serve(config).await;
    if let Some(traces) = traces {
        // Shutting down blocks, so it runs on a blocking thread.
        let _ = tokio::task::spawn_blocking(move || traces.shutdown()).await;
    }
    served.map_err(|error| to_cli_error(&error))?;
    Ok(Exit::Success)
}

/// Errors that the operator can fix are reported like wrong settings.
pub(super) fn to_cli_error(error: &ServeError) -> CliError {
    match error {
        ServeError::Model(_)
        | ServeError::Mcp(_)
        | ServeError::Hook(_)
        | ServeError::HostPattern { .. }
        | ServeError::Database(DatabaseError { source: StoreError::Url(_), .. }) => CliError::Usage(error_chain(error)),
        _ => CliError::failed("the server failed", error_chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use llm::GatewayError;

    #[test]
    fn a_setting_that_fails_late_is_a_usage_error() {
        let script = GatewayError::ScriptFile { path: "/s.yaml".into(), source: io::Error::other("gone") };
        let error = to_cli_error(&script.into());
        assert_eq!(error.exit(), Exit::Usage);
        assert_eq!(error.to_string(), "GANTRY_LLM_SCRIPT: /s.yaml cannot be read: gone");
        let busy = ServeError::Listen {
            address: "[::]:1".to_owned(),
            setting: "GANTRY_BIND",
            source: io::Error::other("taken"),
        };
        assert_eq!(to_cli_error(&busy).exit(), Exit::Failed);
    }

    #[tokio::test]
    async fn an_invalid_database_url_is_a_usage_error() {
        let url = "sqlite:///tmp/x?mode=upside-down";
        let source = store::Store::open(url).await.map(drop).unwrap_err();
        assert_eq!(to_cli_error(&DatabaseError { url: url.to_owned(), source }.into()).exit(), Exit::Usage);
    }
}
