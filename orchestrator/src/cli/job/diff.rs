//! `gantry job diff`: what a job has changed in its workspace.
//!
//! Names and lines of files are escaped before they are printed.

use clap::Args;
use protocol::JobId;
use serde::{Deserialize, Serialize};

use crate::cli::{
    client::Client,
    exit::{CliError, Exit},
    ids::IdArg,
    output::{Output, Paint},
    text::{escape_control_chars, one_line},
};

/// Arguments of `diff`.
#[derive(Debug, Args)]
pub(in crate::cli) struct DiffArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Only list the files: A added, M modified, D deleted
    #[arg(long)]
    name_status: bool,
}

/// The response of the API.
#[derive(Debug, Serialize, Deserialize)]
struct Changes {
    items: Vec<Change>,
    truncated: bool,
}

#[derive(Debug, Serialize, Deserialize)]
struct Change {
    path: String,
    #[serde(rename = "change")]
    kind: Kind,
    size_bytes: Option<u64>,
    previous_size_bytes: Option<u64>,
    diff: Option<String>,
    diff_omitted: Option<String>,
}

#[derive(Debug, Clone, Copy, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
enum Kind {
    Added,
    Modified,
    Deleted,
}

pub(super) async fn diff(client: &Client, args: DiffArgs, output: &mut Output) -> Result<Exit, CliError> {
    let id = args.id.resolve(client).await?;
    let changes: Changes = client.get(&format!("/api/jobs/{id}/changes"), &[]).await?;
    if changes.items.is_empty() {
        output.note("gantry: nothing has changed");
    }
    let text = |paint| {
        let one = |change: &Change| if args.name_status { status(paint, change) } else { unified(paint, change) };
        changes.items.iter().map(one).collect::<Vec<_>>().join("\n")
    };
    if output.format == crate::cli::output::Format::Json || !changes.items.is_empty() {
        output.either(&changes, text)?;
    }
    if changes.truncated {
        output.note(
            "gantry: there are more changes than the server reports; `gantry job get ID --archive` downloads all files",
        );
    }
    Ok(Exit::Success)
}

fn status(paint: Paint, change: &Change) -> String {
    let path = one_line(&change.path);
    match change.kind {
        Kind::Added => format!("{} {path}", paint.green("A")),
        Kind::Modified => format!("{} {path}", paint.yellow("M")),
        Kind::Deleted => format!("{} {path}", paint.red("D")),
    }
}

fn unified(paint: Paint, change: &Change) -> String {
    let Some(diff) = &change.diff else {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "nothing".to_owned(), |bytes| format!("{bytes} bytes"));
        let why = change.diff_omitted.as_deref().map(one_line).unwrap_or_default().replace('_', " ");
        let sizes = format!("{} → {}", size(change.previous_size_bytes), size(change.size_bytes));
        return format!("{}  ({why}: {sizes})", status(paint, change));
    };
    let line = |line: &str| {
        let line = escape_control_chars(line);
        match line.as_bytes() {
            [b'+', b'+', b'+', ..] | [b'-', b'-', b'-', ..] => paint.bold(&line),
            [b'+', ..] => paint.green(&line),
            [b'-', ..] => paint.red(&line),
            [b'@', ..] => paint.cyan(&line),
            _ => line,
        }
    };
    diff.trim_end_matches('\n').split('\n').map(line).collect::<Vec<_>>().join("\n")
}
