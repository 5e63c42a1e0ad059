//! `gantry job diff`: what a job has changed in its workspace.
//!
//! Names and lines of files are escaped before they are printed.

use clap::Args;
use protocol::{DiffOmitted, FileChange, FileChangeKind, FileChanges, JobId};

use crate::{
    client::Client,
    exit::CliError,
    ids::IdArg,
    output::{Format, Output, Paint, escape_control_chars, one_line},
};

#[derive(Debug, Args)]
pub struct DiffArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Only this file, or this directory and what is below it
    path: Option<String>,
    /// Only list the files: A added, M modified, D deleted
    #[arg(long)]
    name_status: bool,
}

pub(super) async fn diff(client: &Client, args: DiffArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    let query: Vec<_> = args.path.iter().map(|path| ("path", path.clone())).collect();
    let changes: FileChanges = client.get(&format!("/api/jobs/{id}/changes"), &query).await?;
    if changes.items.is_empty() {
        output.note("gantry: nothing has changed");
    }
    let text = |paint| {
        let one = |change: &FileChange| if args.name_status { status(paint, change) } else { unified(paint, change) };
        changes.items.iter().map(one).collect::<Vec<_>>().join("\n")
    };
    if output.format == Format::Json || !changes.items.is_empty() {
        output.either(&changes, text)?;
    }
    if changes.left_out > 0 {
        output
            .note(&format!("gantry: {} more changes are not shown; name a directory to see its own", changes.left_out));
    } else if changes.truncated {
        output.note(
            "gantry: there may be more changes than the server reports; `gantry job get ID --archive` downloads all files",
        );
    }
    Ok(())
}

fn status(paint: Paint, change: &FileChange) -> String {
    let path = one_line(&change.path);
    match change.change {
        FileChangeKind::Added => format!("{} {path}", paint.green("A")),
        FileChangeKind::Modified => format!("{} {path}", paint.yellow("M")),
        FileChangeKind::Deleted => format!("{} {path}", paint.red("D")),
    }
}

fn unified(paint: Paint, change: &FileChange) -> String {
    let Some(diff) = &change.diff else {
        let size = |bytes: Option<u64>| bytes.map_or_else(|| "nothing".to_owned(), |bytes| format!("{bytes} bytes"));
        let why = match change.diff_omitted {
            Some(DiffOmitted::Binary) => "binary",
            Some(DiffOmitted::TooLarge) => "too large for a diff",
            None => "no diff",
        };
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
