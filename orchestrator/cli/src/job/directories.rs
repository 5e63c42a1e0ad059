//! Uploads and downloads whole directories of a job's workspace, as tar archives that are produced and read as they are
//! sent.

use std::{
    io::{self, Write},
    path::{Path, PathBuf},
};

use futures_util::TryStreamExt as _;
use protocol::{JobId, Unpacked, WorkspacePath};
use tokio::sync::mpsc;
use tokio_util::{
    bytes::Bytes,
    io::{StreamReader, SyncIoBridge},
};

use super::create::remote_path;

use crate::{
    client::Client,
    exit::CliError,
    job::archive::{ArchiveCounts, pack_directory, unpack_directory},
    output::{Output, one_line, progress::Progress},
};

/// Pieces of an archive that wait to be sent.
const MAX_WAITING_PIECES: usize = 16;
const PIECE_BYTES: usize = 64 * 1024;

/// Uploads a local directory to `remote`, or to a directory with the same name.
pub(super) async fn put(
    client: &Client,
    id: JobId,
    (local, remote): (&Path, Option<&str>),
    output: &mut Output,
) -> Result<(), CliError> {
    let prefix = match remote {
        Some(remote) => remote.to_owned(),
        // The current directory has no name: its content goes to the top of the workspace.
        None => remote_path(local),
    };
    let name = one_line(&local.display().to_string());
    WorkspacePath::parse_for_list(&prefix).map_err(|rule| CliError::Usage(format!("{}: {rule}", one_line(&prefix))))?;
    let (sender, pieces) = mpsc::channel(MAX_WAITING_PIECES);
    let (directory, prefix) = (local.to_owned(), PathBuf::from(prefix));
    let packing = tokio::task::spawn_blocking(move || {
        let writer = io::BufWriter::with_capacity(PIECE_BYTES, PieceWriter(sender.clone()));
        pack_directory(&directory, &prefix, writer).inspect_err(|error| {
            // The upload must fail, so that the server does not take a part for the whole.
            let _ = sender.blocking_send(Err(io::Error::new(error.kind(), "the directory cannot be read")));
        })
    });
    let progress = Progress::new(None, output.format);
    let pieces = futures_util::stream::unfold((pieces, progress), async |(mut pieces, mut progress)| {
        let piece = pieces.recv().await?;
        progress.add(piece.as_ref().map_or(0, Bytes::len));
        Some((piece, (pieces, progress)))
    });
    let body = reqwest::Body::wrap_stream(pieces);
    let sent = client.upload(&format!("/api/jobs/{id}/archive"), "application/x-tar", (body, None)).await;
    let packed = packing.await.map_err(|error| CliError::failed("cannot pack the directory", error))?;
    let unpacked: Unpacked = match (sent, packed) {
        // Packing also fails when the server has refused what was sent so far.
        (Err(refused @ CliError::Refused(_)), _) => return Err(refused),
        (_, Err(error)) => {
            let error = one_line(&error.to_string());
            return Err(CliError::Usage(format!("{name}: cannot read the directory: {error}")));
        }
        (sent, Ok(counts)) => {
            note_skipped(&counts, output);
            sent?
        }
    };
    output.either(&unpacked, |_| format!("{name}: {}, {} bytes", entries(unpacked.entries), unpacked.size_bytes))
}

struct PieceWriter(mpsc::Sender<io::Result<Bytes>>);

impl Write for PieceWriter {
    fn write(&mut self, bytes: &[u8]) -> io::Result<usize> {
        let piece = Bytes::copy_from_slice(bytes);
        self.0.blocking_send(Ok(piece)).map_err(|_| io::Error::from(io::ErrorKind::BrokenPipe))?;
        Ok(bytes.len())
    }

    fn flush(&mut self) -> io::Result<()> {
        Ok(())
    }
}

/// Downloads a directory of the workspace into a new or empty local directory.
pub(super) async fn get(
    client: &Client,
    id: JobId,
    (path, target): (&str, &Path),
    output: &mut Output,
) -> Result<(), CliError> {
    let name = one_line(&target.display().to_string());
    let is_empty = match std::fs::read_dir(target) {
        Ok(mut entries) => entries.next().is_none(),
        Err(error) => error.kind() == io::ErrorKind::NotFound,
    };
    if !is_empty {
        return Err(CliError::Usage(format!("{name} already exists; choose another directory with -o")));
    }
    let response = client.download(&format!("/api/jobs/{id}/archive"), &[("path", path.to_owned())]).await?;
    let progress = std::sync::Mutex::new(Progress::new(None, output.format));
    let pieces = response.bytes_stream().map_err(io::Error::other).inspect_ok(move |piece| {
        if let Ok(mut progress) = progress.lock() {
            progress.add(piece.len());
        }
    });
    let archive = SyncIoBridge::new(StreamReader::new(Box::pin(pieces)));
    let directory = target.to_owned();
    let unpacking = tokio::task::spawn_blocking(move || unpack_directory(archive, &directory));
    let unpacked = unpacking.await.map_err(|error| CliError::failed("cannot unpack the archive", error))?;
    let counts = unpacked.map_err(|error| {
        // It has names of the archive.
        let error = one_line(&error.to_string());
        CliError::failed(&format!("cannot download into {name} (-o selects another directory)"), error)
    })?;
    note_skipped(&counts, output);
    let saved = serde_json::json!({
        "directory": target.display().to_string(), "entries": counts.entries, "size_bytes": counts.size_bytes,
        "skipped": counts.skipped,
    });
    output.either(&saved, |_| format!("{name}/ ({}, {} bytes)", entries(counts.entries), counts.size_bytes))
}

fn entries(count: u64) -> String {
    if count == 1 { "1 entry".to_owned() } else { format!("{count} entries") }
}

fn note_skipped(counts: &ArchiveCounts, output: &Output) {
    if counts.skipped > 0 {
        output.note(&format!("gantry: left out {} (special files or invalid paths)", entries(counts.skipped)));
    }
}
