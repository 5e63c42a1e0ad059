//! A job's fields from the command line.

use std::{
    collections::BTreeMap,
    io::Read,
    path::{Component, Path},
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use clap::Args;
use protocol::{CreateJob, InputFile, Job, LimitsRequest};
use serde_json::{Map, Value};

use crate::cli::{client::Client, exit::CliError};

const MAX_STDIN_BYTES: u64 = 1024 * 1024;
const MAX_FILE_BYTES: u64 = 32 * 1024 * 1024;

/// Arguments of `create` and `run`.
#[derive(Debug, Args)]
pub(in crate::cli) struct CreateArgs {
    /// The task; - reads it from standard input
    prompt: String,
    /// For people (default: the task's first line)
    #[arg(long)]
    title: Option<String>,
    /// Put a local file into the workspace, under its own or another path
    #[arg(long = "file", short = 'f', value_name = "LOCAL[:REMOTE]")]
    files: Vec<String>,
    #[arg(
        long = "limit",
        value_name = "NAME=NUMBER",
        help = "A limit, such as timeout_seconds=600, max_iterations=20"
    )]
    limits: Vec<String>,
    /// A label to find it by
    #[arg(long = "label", value_name = "KEY=VALUE")]
    labels: Vec<String>,
    /// Narrow the tools to these
    #[arg(long = "tool", value_name = "NAME")]
    tools: Vec<String>,
    /// Plan first, then work
    #[arg(long)]
    plan: bool,
    /// Wait until `gantry job start`, so that files can be put first
    #[arg(long)]
    hold: bool,
    /// A person accepts or rejects the result
    #[arg(long)]
    review: bool,
    /// From -100 to 100; higher goes first
    #[arg(long, default_value_t = 0, allow_negative_numbers = true)]
    priority: i32,
    /// One of the operator's images
    #[arg(long)]
    image: Option<String>,
    /// One of the operator's models
    #[arg(long)]
    model: Option<String>,
    /// The same key and job again gives the first job again
    #[arg(long, value_name = "KEY")]
    idempotency_key: Option<String>,
}

pub(super) async fn create(client: &Client, mut args: CreateArgs) -> Result<Job, CliError> {
    let key = args.idempotency_key.take();
    let body = request(args)?;
    client.post("/api/jobs", &body, key.as_deref()).await
}

/// The text itself, or standard input for `-`.
pub(super) fn text_or_stdin(text: String) -> Result<String, CliError> {
    if text != "-" {
        return Ok(text);
    }
    let mut read = String::new();
    let failed = |error| CliError::Usage(format!("cannot read standard input: {error}"));
    std::io::stdin().take(MAX_STDIN_BYTES + 1).read_to_string(&mut read).map_err(failed)?;
    if read.len() as u64 > MAX_STDIN_BYTES {
        return Err(CliError::Usage(format!("standard input is over {MAX_STDIN_BYTES} bytes")));
    }
    Ok(read.trim_end().to_owned())
}

pub(super) fn request(args: CreateArgs) -> Result<CreateJob, CliError> {
    Ok(CreateJob {
        prompt: text_or_stdin(args.prompt)?,
        title: args.title,
        image: args.image,
        tools: Some(args.tools).filter(|tools| !tools.is_empty()),
        files: args.files.iter().map(|file| input_file(file)).collect::<Result<_, _>>()?,
        limits: limits(&args.limits)?,
        plan: args.plan,
        review: args.review,
        hold: args.hold,
        priority: args.priority,
        labels: args.labels.iter().map(|pair| label(pair)).collect::<Result<BTreeMap<_, _>, _>>()?,
        model: args.model,
        ..CreateJob::default()
    })
}

/// With the API's own sign between them, too.
pub(super) fn label(pair: &str) -> Result<(String, String), CliError> {
    let (key, value) =
        pair.split_once(['=', ':']).ok_or_else(|| CliError::Usage(format!("--label {pair}: must be KEY=VALUE")))?;
    Ok((key.to_owned(), value.to_owned()))
}

fn limits(pairs: &[String]) -> Result<Option<LimitsRequest>, CliError> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let mut fields = Map::new();
    for pair in pairs {
        let wrong = |why: &str| CliError::Usage(format!("--limit {pair}: {why}"));
        let (name, text) = pair.split_once('=').ok_or_else(|| wrong("must be NAME=NUMBER"))?;
        let number: serde_json::Number = text.parse().map_err(|_| wrong("must be NAME=NUMBER"))?;
        fields.insert(name.to_owned(), Value::Number(number));
        // Read one by one, so that the error is told beside the limit that has it.
        serde_json::from_value::<LimitsRequest>(Value::Object(fields.clone()))
            .map_err(|error| wrong(&error.to_string()))?;
    }
    let limits = serde_json::from_value(Value::Object(fields));
    limits.map(Some).map_err(|error| CliError::Usage(format!("--limit: {error}")))
}

/// `LOCAL` keeps a path that stays in the workspace, and is cut to its name otherwise.
fn input_file(argument: &str) -> Result<InputFile, CliError> {
    let (local, remote) = match argument.rsplit_once(':') {
        Some((local, remote)) if !local.is_empty() && !remote.is_empty() => (local, remote.to_owned()),
        _ => (argument, remote_path(Path::new(argument))),
    };
    let wrong = |why: String| CliError::Usage(format!("--file {argument}: {why}"));
    let file = std::fs::File::open(local).map_err(|error| wrong(format!("cannot read {local}: {error}")))?;
    let mut bytes = Vec::new();
    file.take(MAX_FILE_BYTES + 1)
        .read_to_end(&mut bytes)
        .map_err(|error| wrong(format!("cannot read {local}: {error}")))?;
    if bytes.len() as u64 > MAX_FILE_BYTES {
        return Err(wrong(format!("over {MAX_FILE_BYTES} bytes")));
    }
    Ok(match String::from_utf8(bytes) {
        Ok(text) => InputFile { path: remote, content: Some(text), content_base64: None },
        Err(binary) => {
            let encoded = BASE64_STANDARD.encode(binary.as_bytes());
            InputFile { path: remote, content: None, content_base64: Some(encoded) }
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
