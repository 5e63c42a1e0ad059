//! `gantry llm`: serves a scripted model over HTTP, for tests and demos.

use std::path::PathBuf;

use clap::Subcommand;
use llm::Script;
use tokio::net::TcpListener;
use tokio_util::sync::CancellationToken;

use cli::{CliError, Exit, Output};

/// Commands of `gantry llm`.
#[derive(Debug, Subcommand)]
pub enum LlmCommand {
    /// Serve a scripted model over HTTP in the OpenAI, Anthropic and Ollama formats
    Serve {
        /// Script file (YAML)
        #[arg(long, value_name = "FILE")]
        script: PathBuf,
        /// Listen address; port 0 picks a free port
        #[arg(long, value_name = "ADDR", default_value = "127.0.0.1:8089")]
        bind: std::net::SocketAddr,
    },
}

pub(super) async fn run(command: LlmCommand, output: &mut Output) -> Result<Exit, CliError> {
    let LlmCommand::Serve { script, bind } = command;
    let text = std::fs::read_to_string(&script)
        .map_err(|error| CliError::Usage(format!("--script {}: {error}", script.display())))?;
    let parsed =
        Script::parse(&text).map_err(|error| CliError::Usage(format!("--script {}: {error}", script.display())))?;
    let listener =
        TcpListener::bind(bind).await.map_err(|error| CliError::failed(&format!("cannot listen on {bind}"), error))?;
    let address = listener.local_addr().map_err(|error| CliError::failed("cannot listen", error))?;
    let listening = serde_json::json!({"url": format!("http://{address}")});
    let shutdown = CancellationToken::new();
    let serving = serve(listener, parsed, shutdown.clone());
    output.either(&listening, |_| format!("listening on http://{address} (OpenAI: http://{address}/v1)"))?;
    tokio::pin!(serving);
    tokio::select! {
        ended = &mut serving => ended?,
        stopped = stop_signal() => {
            stopped?;
            shutdown.cancel();
            serving.await?;
        }
    }
    Ok(Exit::Success)
}

async fn stop_signal() -> Result<(), CliError> {
    let failed = |error| CliError::failed("cannot listen for signals", error);
    let mut term = tokio::signal::unix::signal(tokio::signal::unix::SignalKind::terminate()).map_err(failed)?;
    tokio::select! {
        pressed = tokio::signal::ctrl_c() => pressed.map_err(failed),
        _ = term.recv() => Ok(()),
    }
}

async fn serve(listener: TcpListener, script: Script, shutdown: CancellationToken) -> Result<(), CliError> {
    llm::serve(listener, script, shutdown).await.map_err(|error| CliError::failed("the server ended", error))
}
