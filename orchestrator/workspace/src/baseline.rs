//! What a workspace had when its job first started, for the comparison with what it has later.
//!
//! Owns the file beside the workspace that has it, which the container cannot see; an empty workspace has none. It is
//! bounded in entries, paths, content and time: what does not fit is left out, and the baseline then says that it is not
//! complete.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    fs,
    io::{self, Read as _},
    path::{Path, PathBuf},
    time::Duration,
};

use base64::{Engine as _, prelude::BASE64_STANDARD};
use chrono::{DateTime, Utc};
use flate2::{Compression, read::GzDecoder, write::GzEncoder};
use protocol::{FileKind, JobId};
use serde::{Deserialize, Serialize};
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, FileError, Workspaces,
    dir::{Dir, Metadata, walk::Walk},
};
use base::digest::sha256_hex;

/// Suffix of the file's name.
const SUFFIX: &str = ".baseline";
/// Entries of a workspace that are recorded.
const MAX_ENTRIES: u64 = 20_000;
/// Size of all paths: 200 bytes for each entry. A job can make single paths of 32 KiB.
pub(super) const MAX_PATHS_BYTES: u64 = 4 * 1024 * 1024;
/// Size up to which a text is kept, so that a later one can be compared with it line by line.
pub(super) const MAX_TEXT_BYTES: u64 = 256 * 1024;
/// Size of all texts that are kept.
const MAX_TEXTS_BYTES: u64 = 8 * 1024 * 1024;
/// Size up to which a file is read to recognize its content; a larger one is recognized by its size and time.
pub(super) const MAX_DIGESTED_BYTES: u64 = 1024 * 1024;
/// Size of all files that are read.
pub(super) const MAX_DIGESTED_TOTAL_BYTES: u64 = 64 * 1024 * 1024;
/// The start of a job waits no longer than this.
const RECORD_TIMEOUT: Duration = Duration::from_secs(2);
/// Largest size of an escaped byte in JSON, that of a control character (`\u0001`).
const MAX_ESCAPED_BYTES: u64 = 6;
/// Size in JSON of an entry without its path and text, and of what is around the entries.
const MAX_FIELDS_BYTES: u64 = 512;
/// Size of the JSON that is read back. What is recorded is never larger.
const MAX_JSON_BYTES: u64 =
    MAX_ESCAPED_BYTES * (MAX_PATHS_BYTES + MAX_TEXTS_BYTES) + MAX_FIELDS_BYTES * (MAX_ENTRIES + 1);

/// The files and links of a workspace at a time.
#[derive(Debug, Default, Serialize, Deserialize)]
pub(super) struct Baseline {
    pub(super) entries: BTreeMap<EntryPath, BaselineEntry>,
    /// Whether all entries are recorded.
    pub(super) is_complete: bool,
}

/// The bytes of an entry's path. In JSON it is a text; if it is not UTF-8, a NUL, which no path contains, and base64.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(into = "String", try_from = "String")]
pub(super) struct EntryPath(pub(super) Vec<u8>);

impl EntryPath {
    /// The path of the entry that a walk returned last.
    pub(super) fn of(walk: &Walk, name: &OsStr) -> Self {
        Self(walk.current_path().join(name).into_os_string().into_encoded_bytes())
    }
}

impl From<EntryPath> for String {
    fn from(path: EntryPath) -> Self {
        Self::from_utf8(path.0).unwrap_or_else(|error| format!("\0{}", BASE64_STANDARD.encode(error.as_bytes())))
    }
}

impl TryFrom<String> for EntryPath {
    type Error = base64::DecodeError;

    fn try_from(text: String) -> Result<Self, Self::Error> {
        match text.strip_prefix('\0') {
            Some(encoded) => BASE64_STANDARD.decode(encoded).map(Self),
            None => Ok(Self(text.into_bytes())),
        }
    }
}

/// A file or a link.
#[derive(Debug, Serialize, Deserialize)]
pub(super) struct BaselineEntry {
    /// None in a baseline that an earlier version recorded.
    #[serde(default)]
    pub(super) kind: Option<FileKind>,
    pub(super) size_bytes: u64,
    pub(super) modified_at: DateTime<Utc>,
    /// None for a large file.
    pub(super) digest: Option<String>,
    pub(super) content: Content,
}

/// What is known of a content.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(super) enum Content {
    /// Lines of text; the target of a link.
    Text(String),
    Binary,
    /// Too large to be kept.
    TooLarge,
}

impl Content {
    /// Reads the content of a file or link that may be read.
    pub(super) fn of(bytes: Vec<u8>) -> Self {
        if bytes.len() as u64 > MAX_TEXT_BYTES {
            return Self::TooLarge;
        }
        match String::from_utf8(bytes) {
            Ok(text) if !text.contains('\0') => Self::Text(text),
            _ => Self::Binary,
        }
    }
}

impl Workspaces {
    /// Records what a job's workspace has. An error is one of the baseline's alone: the job can start.
    pub fn record_baseline(&self, job: JobId) -> Result<(), FileError> {
        let top = match self.open(job) {
            Err(FileError::NotFound) => return Ok(()),
            other => other?,
        };
        let baseline = record(top, &Cutoff::after(RECORD_TIMEOUT, &CancellationToken::new()))?;
        if baseline.entries.is_empty() && baseline.is_complete {
            return Ok(());
        }
        if !baseline.is_complete {
            tracing::info!(job.id = %job, entries = baseline.entries.len(), "the baseline of a workspace is not complete");
        }
        let path = self.baseline_path(job);
        let partial = partial(&path);
        let mut file = io::BufWriter::new(GzEncoder::new(fs::File::create(&partial)?, Compression::fast()));
        serde_json::to_writer(&mut file, &baseline).map_err(io::Error::from)?;
        file.into_inner().map_err(io::IntoInnerError::into_error)?.finish()?;
        Ok(fs::rename(&partial, &path)?)
    }

    /// What a job's workspace had when the job first started.
    pub(super) fn baseline(&self, job: JobId) -> Result<Baseline, FileError> {
        let file = match fs::File::open(self.baseline_path(job)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {
                return Ok(Baseline { entries: BTreeMap::new(), is_complete: true });
            }
            other => other?,
        };
        let json = GzDecoder::new(file).take(MAX_JSON_BYTES);
        Ok(serde_json::from_reader(io::BufReader::new(json)).map_err(io::Error::from)?)
    }

    /// Removes the baseline of a job's workspace, if there is one.
    pub(super) fn remove_baseline(&self, job: JobId) -> io::Result<()> {
        let path = self.baseline_path(job);
        // The second is left behind by a process that died while it wrote the baseline.
        for file in [&path, &partial(&path)] {
            match fs::remove_file(file) {
                Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
                _ => {}
            }
        }
        Ok(())
    }

    fn baseline_path(&self, job: JobId) -> PathBuf {
        self.root().join(format!("{job}{SUFFIX}"))
    }
}

/// The name of a baseline that is being written.
fn partial(path: &Path) -> PathBuf {
    path.with_extension("partial")
}

fn record(top: Dir, cutoff: &Cutoff) -> Result<Baseline, FileError> {
    let mut baseline = Baseline { entries: BTreeMap::new(), is_complete: true };
    let mut paths_left = MAX_PATHS_BYTES;
    let (mut texts_left, mut digested_left) = (MAX_TEXTS_BYTES, MAX_DIGESTED_TOTAL_BYTES);
    let mut walk = Walk::new(top, MAX_ENTRIES).with_cutoff(cutoff.clone());
    loop {
        let entry = match walk.next_entry() {
            Ok(Some(entry)) => entry,
            Ok(None) => break,
            Err(FileError::TooLarge(_) | FileError::TimedOut) => {
                baseline.is_complete = false;
                break;
            }
            Err(error) => return Err(error),
        };
        let Some(dir) = walk.current_dir().filter(|_| is_compared(&entry.metadata)) else { continue };
        let Some(left) = paths_left.checked_sub(walk.path_bytes(&entry.name)) else {
            baseline.is_complete = false;
            break;
        };
        paths_left = left;
        let mut digest = None;
        let mut content = Content::TooLarge;
        if entry.metadata.size_bytes <= MAX_DIGESTED_BYTES.min(digested_left)
            && let Some(bytes) = read(dir, &entry.name, &entry.metadata)?
        {
            // It may have grown since its size was read.
            digested_left = digested_left.saturating_sub(bytes.len() as u64);
            digest = Some(sha256_hex(&bytes));
            content = Content::of(bytes);
        }
        if let Content::Text(text) = &content {
            match texts_left.checked_sub(text.len() as u64) {
                Some(left) => texts_left = left,
                None => content = Content::TooLarge,
            }
        }
        let Metadata { kind, size_bytes, modified_at, .. } = entry.metadata;
        let recorded = BaselineEntry { kind: Some(kind), size_bytes, modified_at, digest, content };
        baseline.entries.insert(EntryPath::of(&walk, &entry.name), recorded);
        if cutoff.check().is_err() {
            baseline.is_complete = false;
            break;
        }
    }
    Ok(baseline)
}

/// Files and links are compared; directories and special files are not.
pub(super) const fn is_compared(metadata: &Metadata) -> bool {
    matches!(metadata.kind, FileKind::File | FileKind::Symlink)
}

/// The content of a file, or the target of a link; none if it is gone, or is something else now. At most
/// [`MAX_DIGESTED_BYTES`] and a byte.
pub(super) fn read(dir: &Dir, name: &OsStr, metadata: &Metadata) -> Result<Option<Vec<u8>>, FileError> {
    if metadata.kind == FileKind::Symlink {
        return Ok(dir.read_link(name).ok().map(std::ffi::OsString::into_encoded_bytes));
    }
    let file = match dir.open_file(name) {
        Ok((file, _)) => file,
        Err(FileError::NotFound | FileError::NotAFile(_) | FileError::PermissionDenied) => return Ok(None),
        Err(error) => return Err(error),
    };
    let mut bytes = Vec::new();
    file.take(MAX_DIGESTED_BYTES + 1).read_to_end(&mut bytes)?;
    Ok(Some(bytes))
}

#[cfg(test)]
mod tests;
