//! The fields of a new job from the command line.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Component, Path},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use protocol::limits::MAX_FILES_BYTES;
use protocol::{CreateJob, Effort, Egress, InputFile, Job, LimitsRequest};
use serde_json::{Map, Value};

use crate::{
    client::Client,
    exit::CliError,
    input::{one_of, text_or_stdin},
};

#[derive(Debug, Args)]
pub struct CreateArgs {
    /// Prompt; - reads it from standard input
    prompt: String,
    /// Display title (default: first line of the prompt)
    #[arg(long)]
    title: Option<String>,
    /// Copy a local file into the workspace, optionally to another path
    #[arg(long = "file", short = 'f', value_name = "LOCAL[:REMOTE]")]
    files: Vec<String>,
    #[arg(
        long = "limit",
        value_name = "NAME=NUMBER",
        help = "Limit, such as timeout_seconds=600 or max_iterations=20; can be repeated"
    )]
    limits: Vec<String>,
    /// Label; can be repeated
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    #[arg(
        long = "tool",
        value_name = "NAME",
        help = "Allow only this tool; SERVER__* is all tools of an MCP server, +NAME the built-in tools and this one; can be repeated"
    )]
    tools: Vec<String>,
    /// Let this tool run although it always requires approval (can be repeated)
    #[arg(long = "approve", value_name = "TOOL")]
    approve: Vec<String>,
    /// Host that the job may reach, or preset:NAME; can be repeated
    #[arg(long = "egress", value_name = "HOST[:PORT]")]
    egress: Vec<String>,
    /// Make a plan before working
    #[arg(long, value_name = "BOOL", num_args = 0..=1, require_equals = true, default_missing_value = "true")]
    plan: Option<bool>,
    /// Wait for `gantry job start`, so that files can be uploaded first
    #[arg(long)]
    pub(super) hold: bool,
    /// Wait for the result to be accepted or rejected
    #[arg(long)]
    review: bool,
    /// Priority from -100 to 100; higher starts first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// Job image
    #[arg(long)]
    image: Option<String>,
    /// Model
    #[arg(long)]
    model: Option<String>,
    /// How much the model thinks
    #[arg(long, value_name = "LEVEL", value_parser = one_of(Effort::ALL))]
    effort: Option<Effort>,
    /// Idempotency key: a repeated request returns the first job
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn create(client: &Client, mut args: CreateArgs) -> Result<Job, CliError> {
    let key = args.idempotency_key.take();
    let body = request(args)?;
    client.post("/api/jobs", &body, key.as_deref()).await
}

pub(super) fn request(args: CreateArgs) -> Result<CreateJob, CliError> {
    Ok(CreateJob {
        prompt: text_or_stdin(args.prompt)?,
        title: args.title,
        image: args.image,
        tools: Some(args.tools).filter(|tools| !tools.is_empty()),
        approve: args.approve,
        egress: (!args.egress.is_empty()).then(|| Egress { allow: args.egress, ..Egress::default() }),
        files: args.files.iter().map(|file| input_file(file)).collect::<Result<_, _>>()?,
        limits: limits(&args.limits)?,
        plan: args.plan,
        review: args.review,
        hold: args.hold,
        priority: args.priority,
        labels: args.labels.iter().map(|pair| label(pair)).collect::<Result<BTreeMap<_, _>, _>>()?,
        model: args.model,
        effort: args.effort,
        ..CreateJob::default()
    })
}

/// Parses `KEY=VALUE` or, as in the API, `KEY:VALUE`.
pub(crate) fn label(pair: &str) -> Result<(String, String), CliError> {
    let (key, value) =
        pair.split_once(['=', ':']).ok_or_else(|| CliError::Usage(format!("--label {pair}: must be KEY=VALUE")))?;
    Ok((key.to_owned(), value.to_owned()))
}

pub(crate) fn limits(pairs: &[String]) -> Result<Option<LimitsRequest>, CliError> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let mut fields = Map::new();
    for pair in pairs {
        let usage_error = |why: &str| CliError::Usage(format!("--limit {pair}: {why}"));
        let (name, text) = pair.split_once('=').ok_or_else(|| usage_error("must be NAME=NUMBER"))?;
        let number: serde_json::Number = text.parse().map_err(|_| usage_error("must be NAME=NUMBER"))?;
        fields.insert(name.to_owned(), Value::Number(number));
        // Limits are parsed one by one, so that the error names the limit.
        serde_json::from_value::<LimitsRequest>(Value::Object(fields.clone()))
            .map_err(|error| usage_error(&error.to_string()))?;
    }
    let limits = serde_json::from_value(Value::Object(fields));
    limits.map(Some).map_err(|error| CliError::Usage(format!("--limit: {error}")))
}

/// The remote path: `LOCAL` itself if it is inside the current directory, otherwise its file name.
fn input_file(argument: &str) -> Result<InputFile, CliError> {
    let (local, remote) = match argument.rsplit_once(':') {
        Some((local, remote)) if !local.is_empty() && !remote.is_empty() => (local, remote.to_owned()),
        _ => (argument, remote_path(Path::new(argument))),
    };
    let usage_error = |why: String| CliError::Usage(format!("--file {argument}: {why}"));
    let file = std::fs::File::open(local).map_err(|error| usage_error(format!("cannot read {local}: {error}")))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILES_BYTES as u64 + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| usage_error(format!("cannot read {local}: {error}")))?;
    if bytes.len() > MAX_FILES_BYTES {
        let limit = MAX_FILES_BYTES >> 20;
        return Err(usage_error(format!(
            "larger than {limit} MiB; create the job with --hold and use `gantry job put`"
        )));
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => InputFile { path: remote, content: Some(text), content_base64: None, mode: None },
        Err(binary) => {
            let encoded = BASE64_STANDARD.encode(binary.as_bytes());
            InputFile { path: remote, content: None, content_base64: Some(encoded), mode: None }
        }
    })
}

pub(super) fn remote_path(local: &Path) -> String {
    let mut plain = local.components().filter(|part| *part != Component::CurDir).peekable();
    let stays =
        plain.peek().is_some() && local.components().all(|c| matches!(c, Component::Normal(_) | Component::CurDir));
    if stays {
        return plain.map(|part| part.as_os_str().to_string_lossy()).collect::<Vec<_>>().join("/");
    }
    local.file_name().map_or_else(String::new, |name| name.to_string_lossy().into_owned())
}
