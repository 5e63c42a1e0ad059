//! Lists, downloads and uploads a job's files.
//!
//! Files are streamed, never kept in memory. File names are escaped before they are printed.

use std::{
    io::IsTerminal as _,
    path::{Path, PathBuf},
};

use clap::Args;
use futures_util::{StreamExt as _, TryStreamExt as _};
use percent_encoding::{AsciiSet, NON_ALPHANUMERIC, utf8_percent_encode};
use protocol::{ErrorCode, FileEntry, FileKind, JobId, Unpacked};
use tokio::io::{AsyncBufReadExt as _, AsyncRead, AsyncWriteExt as _, BufReader};
use tokio_util::io::ReaderStream;

use super::{create::remote_path, directories};
use protocol::WorkspacePath;

use crate::{
    client::{Client, pages},
    exit::CliError,
    ids::IdArg,
    output::{Column, Output, escape_control_chars, one_line, progress::Progress},
};

/// All characters of a path except the unreserved ones of RFC 3986 and the separator.
const PATH_ESCAPED: &AsciiSet = &NON_ALPHANUMERIC.remove(b'-').remove(b'.').remove(b'_').remove(b'~').remove(b'/');
const PIECE_BYTES: usize = 64 * 1024;
/// The first bytes of a gzip file.
const GZIP: [u8; 2] = [0x1f, 0x8b];

#[derive(Debug, Args)]
pub struct FilesArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Directory in the workspace (default: the workspace itself)
    #[arg(default_value = "")]
    path: String,
    /// Find entries by a part of their name, in this directory and all below it
    #[arg(long, value_name = "TEXT")]
    q: Option<String>,
}

#[derive(Debug, Args)]
pub struct GetArgs {
    /// Job id
    id: IdArg<JobId>,
    /// File or directory in the workspace
    #[arg(required_unless_present = "archive", conflicts_with = "archive")]
    path: Option<String>,
    /// Download the whole workspace as a tar archive
    #[arg(long)]
    archive: bool,
    /// Output file or directory (default: its own name in the current directory); - is standard output
    #[arg(long, short, value_name = "FILE")]
    output: Option<PathBuf>,
}

#[derive(Debug, Args)]
pub struct PutArgs {
    /// Job id
    id: IdArg<JobId>,
    /// Local file or directory; - reads standard input
    #[arg(required_unless_present = "archive", conflicts_with = "archive")]
    local: Option<PathBuf>,
    /// Path in the workspace (default: the local path, or the file name for a path outside the current directory)
    #[arg(conflicts_with = "archive")]
    remote: Option<String>,
    /// Tar archive to extract into the workspace, optionally compressed with gzip; - reads standard input
    #[arg(long, value_name = "FILE")]
    archive: Option<PathBuf>,
}

pub(super) async fn files(client: &Client, args: FilesArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    let none = if args.q.is_some() { "no file matches" } else { "no files" };
    let mut filter = vec![("path", args.path)];
    filter.extend(args.q.map(|q| ("q", q)));
    pages::print_entries(client, (&format!("/api/jobs/{id}/files"), &filter), (FILES, none), output).await
}

/// The files of a workspace.
const FILES: &[Column<FileEntry>] = &[
    Column::text("mode", |entry, _| entry.mode.clone()),
    Column::number("size", |entry, _| entry.size_bytes.to_string()),
    Column::text("modified", |entry, view| view.time(entry.modified_at)),
    Column::text("path", |entry, _| format!("{}{}", one_line(&entry.path), mark(entry.kind))),
];

const fn mark(kind: FileKind) -> &'static str {
    match kind {
        FileKind::File => "",
        FileKind::Directory => "/",
        FileKind::Symlink => " (link)",
        FileKind::Other => " (special)",
    }
}

/// The API path of a file. Special characters in its name are escaped.
fn file_path(id: JobId, path: &str) -> Result<String, CliError> {
    WorkspacePath::parse_for_read(path).map_err(|rule| CliError::Usage(format!("{}: {rule}", one_line(path))))?;
    Ok(format!("/api/jobs/{id}/files/{}", utf8_percent_encode(path, PATH_ESCAPED)))
}

pub(super) async fn get(client: &Client, args: GetArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    if let Some(path) = args.path.as_deref().filter(|path| *path == "." || path.ends_with('/')) {
        let name = path.trim_end_matches('/').rsplit('/').next().filter(|name| *name != ".");
        let target = args.output.unwrap_or_else(|| PathBuf::from(name.map_or_else(|| id.to_string(), str::to_owned)));
        return directories::get(client, id, (path, &target), output).await;
    }
    let (path, name) = match &args.path {
        Some(path) => (file_path(id, path)?, path.rsplit('/').next().unwrap_or_default().to_owned()),
        None => (format!("/api/jobs/{id}/archive"), format!("{id}.tar")),
    };
    let to_stdout = args.output.as_deref() == Some(Path::new("-"));
    let target = args.output.clone().unwrap_or_else(|| PathBuf::from(&name));
    if args.output.is_none() && target.symlink_metadata().is_ok() {
        return Err(CliError::Usage(format!("{} already exists; choose another file with -o", one_line(&name))));
    }
    let response = match client.download(&path, &[]).await {
        Err(CliError::Refused(problem)) if problem.code == ErrorCode::NotAFile && !to_stdout => {
            let directory = args.path.as_deref().unwrap_or_default();
            return directories::get(client, id, (directory, &target), output).await.map_err(|error| match error {
                // A link, or a special file.
                CliError::Refused(other) if other.code == ErrorCode::NotFound => CliError::Refused(problem),
                other => other,
            });
        }
        other => other?,
    };
    let progress = Progress::new(response.content_length(), output.format);
    if to_stdout {
        print(client, response, output).await?;
        return Ok(());
    }
    let size = save(client, response, &target, progress).await?;
    let saved = serde_json::json!({"file": target.display().to_string(), "size_bytes": size});
    output.either(&saved, |_| format!("{} ({size} bytes)", one_line(&target.display().to_string())))
}

/// Prints the content unchanged, or escaped on a terminal.
async fn print(client: &Client, mut response: reqwest::Response, output: &mut Output) -> Result<(), CliError> {
    let seen = std::io::stdout().is_terminal();
    while let Some(piece) = response.chunk().await.map_err(|error| client.unreachable(&error))? {
        if seen {
            output.raw(escape_control_chars(&String::from_utf8_lossy(&piece)).as_bytes())?;
        } else {
            output.raw(&piece)?;
        }
    }
    Ok(())
}

async fn save(
    client: &Client,
    mut response: reqwest::Response,
    target: &Path,
    mut progress: Progress,
) -> Result<u64, CliError> {
    let failed = |error| {
        let name = one_line(&target.display().to_string());
        CliError::failed(
            &format!("cannot write {name} (use -o FILE for another file, -o - for standard output)"),
            error,
        )
    };
    let mut file = tokio::fs::File::create(target).await.map_err(failed)?;
    let mut size = 0;
    while let Some(piece) = response.chunk().await.map_err(|error| client.unreachable(&error))? {
        file.write_all(&piece).await.map_err(failed)?;
        size += piece.len() as u64;
        progress.add(piece.len());
    }
    file.flush().await.map_err(failed)?;
    Ok(size)
}

pub(super) async fn put(client: &Client, args: PutArgs, output: &mut Output) -> Result<(), CliError> {
    let id = args.id.resolve(client).await?;
    if let Some(archive) = &args.archive {
        let (mut sent, length) = open(archive).await?;
        let prefix = sent.fill_buf().await.map_err(|error| CliError::failed("cannot read the archive", error))?;
        let kind = if prefix.starts_with(&GZIP) { "application/gzip" } else { "application/x-tar" };
        let body = body(sent, Progress::new(length, output.format));
        let unpacked: Unpacked = client.upload(&format!("/api/jobs/{id}/archive"), kind, (body, length)).await?;
        let what = if unpacked.entries == 1 { "entry" } else { "entries" };
        output.either(&unpacked, |_| format!("{} {what}, {} bytes", unpacked.entries, unpacked.size_bytes))?;
        return Ok(());
    }
    let local = args.local.unwrap_or_default();
    if local.is_dir() {
        return directories::put(client, id, (&local, args.remote.as_deref()), output).await;
    }
    let remote = match args.remote {
        Some(remote) => remote,
        None if local == Path::new("-") => {
            return Err(CliError::Usage(
                "reading standard input requires a path in the workspace: put ID - PATH".to_owned(),
            ));
        }
        None => remote_path(&local),
    };
    let path = file_path(id, &remote)?;
    let (sent, length) = open(&local).await?;
    let body = body(sent, Progress::new(length, output.format));
    let entry: FileEntry = client.upload(&path, "application/octet-stream", (body, length)).await?;
    output.either(&entry, |_| format!("{} ({} bytes)", one_line(&entry.path), entry.size_bytes))
}

type Sent = BufReader<Box<dyn AsyncRead + Send + Unpin>>;

/// Opens the file to send and returns its length, if known.
async fn open(local: &Path) -> Result<(Sent, Option<u64>), CliError> {
    if local == Path::new("-") {
        return Ok((BufReader::new(Box::new(tokio::io::stdin())), None));
    }
    let usage_error = |why: String| CliError::Usage(format!("{}: {why}", one_line(&local.display().to_string())));
    let file =
        tokio::fs::File::open(local).await.map_err(|error| usage_error(format!("cannot read the file: {error}")))?;
    let metadata = file.metadata().await.map_err(|error| usage_error(format!("cannot read the file: {error}")))?;
    let length = metadata.is_file().then_some(metadata.len());
    Ok((BufReader::new(Box::new(file)), length))
}

fn body(sent: Sent, mut progress: Progress) -> reqwest::Body {
    let pieces = ReaderStream::with_capacity(sent, PIECE_BYTES);
    reqwest::Body::wrap_stream(pieces.inspect_ok(move |piece| progress.add(piece.len())).boxed())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::output::table::{View, table};

    #[test]
    fn file_names_are_escaped_in_urls() {
        let id = JobId::generate();
        let path = |path: &str| file_path(id, path).map(|full| full.replace(&format!("/api/jobs/{id}/files/"), ""));
        assert_eq!(path("a/b c.txt").unwrap(), "a/b%20c.txt");
        assert_eq!(path("100%/?#ü").unwrap(), "100%25/%3F%23%C3%BC");
        for none in ["", "..", "a/../b", "/etc", "a//b"] {
            assert!(matches!(path(none), Err(CliError::Usage(_))), "{none}");
        }
    }

    #[test]
    fn control_characters_in_file_names_are_escaped() {
        let entry = FileEntry {
            path: "a\u{1b}[2Jb".to_owned(),
            path_bytes: None,
            kind: FileKind::Symlink,
            size_bytes: 7,
            modified_at: chrono::DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            mode: "0777".to_owned(),
        };
        let text = table(FILES, &[entry], &View::unlimited());
        assert!(text.ends_with("\n0777     7  2023-11-14 22:13:20 UTC  a\u{241b}[2Jb (link)"), "{text}");
    }
}
