//! `gantry serve`: the daemon.

use clap::Args;

use super::{
    config::ConfigFlags,
    exit::{CliError, Exit},
};
use crate::{
    app::ServeError,
    config::Environment,
    store::StoreError,
    telemetry::{error_chain, traces::Traces},
};

/// Its arguments.
#[derive(Debug, Args)]
pub(super) struct ServeArgs {
    #[command(flatten)]
    flags: ConfigFlags,
}

pub(super) async fn run(args: ServeArgs, environment: &Environment) -> Result<Exit, CliError> {
    let config = args.flags.load(environment)?;
    let traces = config.otel_endpoint.as_deref().map(Traces::new).transpose()?;
    crate::telemetry::init(&config.log, traces.as_ref())?;
    crate::failpoint::arm(environment);
    crate::failpoint::reach("serve.start");
    let served = crate::app::serve(config).await;
    if let Some(traces) = traces {
        // It blocks, and what it waits for needs no thread of ours.
        let _ = tokio::task::spawn_blocking(move || traces.shutdown()).await;
    }
    served.map_err(|error| ended(&error))?;
    Ok(Exit::Fine)
}

/// Errors that the operator can fix are reported like wrong settings.
fn ended(error: &ServeError) -> CliError {
    match error {
        ServeError::Model(_) | ServeError::Store { source: StoreError::Url(_), .. } => {
            CliError::Usage(error_chain(error))
        }
        _ => CliError::failed("the server failed", error_chain(error)),
    }
}

#[cfg(test)]
mod tests {
    use std::io;

    use super::*;
    use crate::llm::GatewayError;

    #[test]
    fn a_wrong_setting_that_shows_late_is_told_as_one() {
        let script = GatewayError::ScriptFile { path: "/s.yaml".into(), source: io::Error::other("gone") };
        let error = ended(&script.into());
        assert_eq!(error.exit(), Exit::Usage);
        assert_eq!(error.to_string(), "GANTRY_LLM_SCRIPT: /s.yaml cannot be read: gone");
        let busy = ServeError::Listen {
            address: "[::]:1".to_owned(),
            setting: "GANTRY_BIND",
            source: io::Error::other("taken"),
        };
        assert_eq!(ended(&busy).exit(), Exit::Failed);
    }

    #[tokio::test]
    async fn a_database_url_that_is_none_is_a_wrong_setting() {
        let url = "sqlite:///tmp/x?mode=upside-down";
        let source = crate::store::Store::open(url).await.map(drop).unwrap_err();
        assert_eq!(ended(&ServeError::Store { url: url.to_owned(), source }).exit(), Exit::Usage);
    }
}
