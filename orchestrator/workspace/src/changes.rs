//! What has changed in a workspace since its job first started: which files, and their texts line by line.
//!
//! Reads the workspace as every other operation does: from a directory handle, following no link, and bounded whatever
//! the job does meanwhile. Never changes anything.

use std::{
    collections::BTreeMap,
    os::unix::ffi::OsStrExt as _,
    path::{Path, PathBuf},
    time::{Duration, Instant},
};

use protocol::{DiffOmitted, FileChange, FileChangeKind, FileChanges, JobId};
use similar::TextDiff;
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, FileError, Workspaces,
    baseline::{
        Baseline, BaselineEntry, Content, MAX_DIGESTED_BYTES, MAX_DIGESTED_TOTAL_BYTES, MAX_TEXT_BYTES, is_compared,
        read,
    },
    dir::{Dir, Metadata, walk::Walk},
    files::displayed,
};
use base::digest::sha256_hex;

/// Maximum number of entries of a workspace that are compared.
const MAX_ENTRIES: u64 = 200_000;
/// Changes in an answer.
const MAX_ITEMS: usize = 1_000;
/// Size of one diff.
const MAX_DIFF_BYTES: usize = 256 * 1024;
/// Size of all diffs of an answer.
const MAX_DIFFS_BYTES: usize = 1024 * 1024;
/// Time for one diff, after which it is no longer the shortest one.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the comparison; what is not compared by then is left out.
const TIMEOUT: Duration = Duration::from_secs(10);

/// A file or link of the workspace as it is now.
struct Present {
    path: PathBuf,
    metadata: Metadata,
}

/// A change whose diff is not made yet.
struct Change<'a> {
    path: String,
    before: Option<&'a BaselineEntry>,
    now: Option<Present>,
}

impl Workspaces {
    /// What has changed in a job's workspace since the job first started, by path.
    pub fn changes(&self, job: JobId, cancelled: &CancellationToken) -> Result<FileChanges, FileError> {
        let baseline = self.baseline(job)?;
        let cutoff = Cutoff::after(TIMEOUT, cancelled);
        let top = match self.open(job) {
            Err(FileError::NotFound) => return Ok(FileChanges { items: Vec::new(), truncated: false }),
            other => other?,
        };
        let (present, is_whole) = present(top.reopen()?, &cutoff)?;
        let mut truncated = !is_whole || !baseline.is_complete;
        let mut changes = changed(&top, &baseline, present, is_whole, &cutoff)?;
        if changes.len() > MAX_ITEMS {
            changes.truncate(MAX_ITEMS);
            truncated = true;
        }
        let mut diffs = Diffs { left: MAX_DIFFS_BYTES, cutoff };
        let items = changes.into_iter().map(|change| diffs.item(&top, change)).collect::<Result<_, FileError>>()?;
        Ok(FileChanges { items, truncated })
    }
}

/// The files and links of a workspace, and whether these are all.
fn present(top: Dir, cutoff: &Cutoff) -> Result<(BTreeMap<String, Present>, bool), FileError> {
    let mut found = BTreeMap::new();
    let mut walk = Walk::new(top, MAX_ENTRIES).with_cutoff(cutoff.clone());
    loop {
        match walk.next_entry() {
            Ok(Some(entry)) if is_compared(&entry.metadata) => {
                let path = walk.current_path().join(&entry.name);
                let metadata = entry.metadata;
                found.insert(path.to_string_lossy().into_owned(), Present { path, metadata });
            }
            Ok(Some(_)) => {}
            Ok(None) => return Ok((found, true)),
            Err(FileError::TooLarge(_) | FileError::TimedOut) => return Ok((found, false)),
            Err(error) => return Err(error),
        }
    }
}

/// The changes, by path. What is missing counts as deleted only if the whole workspace was read.
fn changed<'a>(
    top: &Dir,
    baseline: &'a Baseline,
    mut present: BTreeMap<String, Present>,
    is_whole: bool,
    cutoff: &Cutoff,
) -> Result<Vec<Change<'a>>, FileError> {
    let mut changes = Vec::new();
    let mut left = MAX_DIGESTED_TOTAL_BYTES;
    for (path, before) in &baseline.entries {
        let now = present.remove(path);
        let is_changed = match &now {
            None => is_whole,
            Some(now) => is_modified(top, before, now, &mut left, cutoff)?,
        };
        if is_changed {
            changes.push(Change { path: path.clone(), before: Some(before), now });
        }
    }
    changes.extend(present.into_iter().map(|(path, now)| Change { path, before: None, now: Some(now) }));
    changes.sort_by(|one, other| one.path.cmp(&other.path));
    Ok(changes)
}

/// Whether a file has another content. Times are compared only where the content is too large to be read.
fn is_modified(
    top: &Dir,
    before: &BaselineEntry,
    now: &Present,
    left: &mut u64,
    cutoff: &Cutoff,
) -> Result<bool, FileError> {
    if before.size_bytes != now.metadata.size_bytes {
        return Ok(true);
    }
    let may_read = now.metadata.size_bytes <= MAX_DIGESTED_BYTES.min(*left) && cutoff.check().is_ok();
    let digest = before.digest.as_ref().filter(|_| may_read);
    let Some(digest) = digest else { return Ok(before.modified_at != now.metadata.modified_at) };
    let Some(bytes) = content_of(top, now)? else { return Ok(false) };
    *left -= now.metadata.size_bytes;
    Ok(sha256_hex(&bytes) != *digest)
}

fn content_of(top: &Dir, present: &Present) -> Result<Option<Vec<u8>>, FileError> {
    let Some(name) = present.path.file_name() else { return Ok(None) };
    let parent = present.path.parent().unwrap_or(Path::new(""));
    match top.open_descendant(parent.iter()) {
        Ok(dir) => read(&dir, name, &present.metadata),
        // Removed or replaced since it was listed.
        Err(_) => Ok(None),
    }
}

/// Makes diffs as long as they fit.
struct Diffs {
    left: usize,
    cutoff: Cutoff,
}

impl Diffs {
    fn item(&mut self, top: &Dir, change: Change<'_>) -> Result<FileChange, FileError> {
        let Change { path, before, now } = change;
        let kind = match (before, &now) {
            (None, _) => FileChangeKind::Added,
            (Some(_), None) => FileChangeKind::Deleted,
            (Some(_), Some(_)) => FileChangeKind::Modified,
        };
        let empty = Content::Text(String::new());
        let old = before.map_or(&empty, |before| &before.content);
        let new = match &now {
            None => empty.clone(),
            Some(now) if now.metadata.size_bytes > MAX_TEXT_BYTES => Content::TooLarge,
            Some(now) => content_of(top, now)?.map_or(Content::TooLarge, Content::of),
        };
        let made = match (old, &new) {
            (Content::Binary, _) | (_, Content::Binary) => Err(DiffOmitted::Binary),
            (Content::TooLarge, _) | (_, Content::TooLarge) => Err(DiffOmitted::TooLarge),
            (Content::Text(old), Content::Text(new)) => self.diff(&path, kind, old, new),
        };
        let (diff, diff_omitted) = made.map_or_else(|omitted| (None, Some(omitted)), |diff| (Some(diff), None));
        let path_bytes = now.as_ref().and_then(|now| displayed(now.path.as_os_str().as_bytes()).1);
        Ok(FileChange {
            path,
            path_bytes,
            change: kind,
            size_bytes: now.map(|now| now.metadata.size_bytes),
            previous_size_bytes: before.map(|before| before.size_bytes),
            diff,
            diff_omitted,
        })
    }

    fn diff(&mut self, path: &str, kind: FileChangeKind, old: &str, new: &str) -> Result<String, DiffOmitted> {
        if self.left == 0 || self.cutoff.check().is_err() {
            return Err(DiffOmitted::TooLarge);
        }
        // A line break in a name does not begin another line.
        let path = path.replace(|c: char| c.is_control(), "\u{fffd}");
        let [from, to] = match kind {
            FileChangeKind::Added => ["/dev/null".to_owned(), format!("b/{path}")],
            FileChangeKind::Deleted => [format!("a/{path}"), "/dev/null".to_owned()],
            FileChangeKind::Modified => [format!("a/{path}"), format!("b/{path}")],
        };
        let lines = TextDiff::configure().deadline(Instant::now() + DIFF_TIMEOUT).diff_lines(old, new);
        let diff = lines.unified_diff().header(&from, &to).to_string();
        if diff.len() > MAX_DIFF_BYTES.min(self.left) {
            return Err(DiffOmitted::TooLarge);
        }
        self.left -= diff.len();
        Ok(diff)
    }
}

#[cfg(test)]
mod tests;
