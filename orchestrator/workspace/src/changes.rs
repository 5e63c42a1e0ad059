//! What has changed in a workspace since its job first started: which files, and their texts line by line.
//!
//! Reads the workspace as every other operation does: from a directory handle, following no link, and bounded whatever
//! the job does meanwhile. Never changes anything.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::ffi::OsStrExt as _,
    path::Path,
    time::{Duration, Instant},
};

use protocol::{DiffOmitted, FileChange, FileChangeKind, FileChanges, FileKind, JobId, WorkspacePath};
use similar::TextDiff;
use tokio_util::sync::CancellationToken;

use super::{
    Cutoff, FileError, Workspaces,
    baseline::{
        Baseline, BaselineEntry, Content, EntryPath, MAX_DIGESTED_BYTES, MAX_DIGESTED_TOTAL_BYTES, MAX_TEXT_BYTES,
        is_compared, read,
    },
    dir::{Dir, Metadata, walk::Walk},
    files::{displayed, open_descendant},
};
use base::digest::sha256_hex;

/// Maximum number of entries of a workspace that are compared.
const MAX_ENTRIES: u64 = 200_000;
/// Size of all their paths: 100 bytes for each entry. A job can make single paths of 32 KiB.
const MAX_PATHS_BYTES: u64 = 20 * 1024 * 1024;
/// Changes in an answer.
const MAX_ITEMS: usize = 1_000;
/// Size of all paths of an answer.
const MAX_ITEM_PATHS_BYTES: usize = 1024 * 1024;
/// Size of one diff.
const MAX_DIFF_BYTES: usize = 256 * 1024;
/// Size of all diffs of an answer.
const MAX_DIFFS_BYTES: usize = 1024 * 1024;
/// Time for one diff, after which it is no longer the shortest one.
const DIFF_TIMEOUT: Duration = Duration::from_millis(200);
/// Time for the comparison; what is not compared by then is left out.
const TIMEOUT: Duration = Duration::from_secs(10);

/// The files and links of a workspace as it is now.
type Present = BTreeMap<EntryPath, Metadata>;

/// A change whose diff is not made yet.
struct Change<'a> {
    path: &'a EntryPath,
    before: Option<&'a BaselineEntry>,
    now: Option<&'a Metadata>,
}

impl Change<'_> {
    /// Whether a file became a link, or a link a file.
    fn has_other_kind(&self) -> bool {
        let before = self.before.and_then(|before| before.kind);
        before.zip(self.now).is_some_and(|(before, now)| before != now.kind)
    }
}

/// What has changed, and whether all of it was compared in time: else a later comparison may find more.
#[derive(Debug, PartialEq, Eq)]
pub struct Comparison {
    pub changes: FileChanges,
    pub is_in_time: bool,
}

/// Nothing has changed.
impl Default for Comparison {
    fn default() -> Self {
        Self { changes: FileChanges { items: Vec::new(), truncated: false, left_out: 0 }, is_in_time: true }
    }
}

impl Workspaces {
    /// What has changed in a job's workspace since the job first started, by path: of all, or of the file or directory
    /// at `within`.
    pub fn changes(
        &self,
        job: JobId,
        within: &WorkspacePath,
        cancelled: &CancellationToken,
    ) -> Result<Comparison, FileError> {
        let mut baseline = self.baseline(job)?;
        baseline.entries.retain(|path, _| is_within(&path.0, within));
        let cutoff = Cutoff::after(TIMEOUT, cancelled);
        let top = match self.open(job) {
            Err(FileError::NotFound) => return Ok(Comparison::default()),
            other => other?,
        };
        let (present, is_whole) = present(&top, within, &cutoff)?;
        let mut changes = changed(&top, &baseline, &present, is_whole, &cutoff)?;
        let shown = shown(&changes);
        let left_out = (changes.len() - shown) as u64;
        let truncated = !is_whole || !baseline.is_complete || left_out > 0;
        changes.truncate(shown);
        let mut diffs = Diffs { left: MAX_DIFFS_BYTES, cutoff };
        let items = changes.iter().map(|change| diffs.item(&top, change)).collect::<Result<_, FileError>>()?;
        let is_in_time = diffs.cutoff.check().is_ok();
        Ok(Comparison { changes: FileChanges { items, truncated, left_out }, is_in_time })
    }
}

/// Whether a path is `within`, or below it.
fn is_within(path: &[u8], within: &WorkspacePath) -> bool {
    within.is_root()
        || path.strip_prefix(within.to_bytes().as_slice()).is_some_and(|rest| matches!(rest, [] | [b'/', ..]))
}

/// The number of changes that an answer has room for.
fn shown(changes: &[Change<'_>]) -> usize {
    let mut left = Some(MAX_ITEM_PATHS_BYTES);
    let fits = |change: &&Change<'_>| {
        left = left.and_then(|left| left.checked_sub(change.path.0.len()));
        left.is_some()
    };
    changes.iter().take(MAX_ITEMS).take_while(fits).count()
}

/// The files and links of a workspace at `within` or below it, and whether these are all.
fn present(top: &Dir, within: &WorkspacePath, cutoff: &Cutoff) -> Result<(Present, bool), FileError> {
    let Some((parent, name)) = within.split_last() else { return present_below(top.reopen()?, b"", cutoff) };
    let name = OsStr::from_bytes(name);
    let nothing = || Ok((Present::new(), true));
    let found = open_descendant(top, parent).and_then(|dir| dir.metadata(name).map(|metadata| (dir, metadata)));
    match found.map_err(FileError::from) {
        Ok((dir, metadata)) if metadata.kind == FileKind::Directory => {
            match dir.open_dir(name).map_err(FileError::from) {
                Ok(dir) => present_below(dir, &within.join(b""), cutoff),
                // Removed or replaced just now.
                Err(FileError::NotFound | FileError::NotADirectory) => nothing(),
                Err(error) => Err(error),
            }
        }
        Ok((_, metadata)) if is_compared(&metadata) => {
            Ok((Present::from([(EntryPath(within.to_bytes()), metadata)]), true))
        }
        Ok(_) | Err(FileError::NotFound | FileError::NotADirectory) => nothing(),
        Err(error) => Err(error),
    }
}

/// The files and links below a directory, with `prefix` before their paths.
fn present_below(top: Dir, prefix: &[u8], cutoff: &Cutoff) -> Result<(Present, bool), FileError> {
    let mut found = Present::new();
    let mut paths_left = MAX_PATHS_BYTES;
    let mut walk = Walk::new(top, MAX_ENTRIES).with_cutoff(cutoff.clone());
    loop {
        match walk.next_entry() {
            Ok(Some(entry)) if is_compared(&entry.metadata) => {
                let Some(left) = paths_left.checked_sub(walk.path_bytes(&entry.name) + prefix.len() as u64) else {
                    return Ok((found, false));
                };
                paths_left = left;
                let path = EntryPath::of(&walk, &entry.name);
                found.insert(EntryPath([prefix, path.0.as_slice()].concat()), entry.metadata);
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
    present: &'a Present,
    is_whole: bool,
    cutoff: &Cutoff,
) -> Result<Vec<Change<'a>>, FileError> {
    let mut changes = Vec::new();
    let mut left = MAX_DIGESTED_TOTAL_BYTES;
    for (path, before) in &baseline.entries {
        let now = present.get(path);
        let change = Change { path, before: Some(before), now };
        let is_changed = match now {
            None => is_whole,
            Some(now) => change.has_other_kind() || is_modified(top, (path, before, now), &mut left, cutoff)?,
        };
        if is_changed {
            changes.push(change);
        }
    }
    let added = present.iter().filter(|(path, _)| !baseline.entries.contains_key(*path));
    changes.extend(added.map(|(path, now)| Change { path, before: None, now: Some(now) }));
    changes.sort_unstable_by_key(|change| change.path);
    Ok(changes)
}

/// Whether a file has another content. Times are compared only where the content is too large to be read.
fn is_modified(
    top: &Dir,
    (path, before, now): (&EntryPath, &BaselineEntry, &Metadata),
    left: &mut u64,
    cutoff: &Cutoff,
) -> Result<bool, FileError> {
    if before.size_bytes != now.size_bytes {
        return Ok(true);
    }
    let may_read = now.size_bytes <= MAX_DIGESTED_BYTES.min(*left) && cutoff.check().is_ok();
    let digest = before.digest.as_ref().filter(|_| may_read);
    let Some(digest) = digest else { return Ok(before.modified_at != now.modified_at) };
    let Some(bytes) = content_of(top, path, now)? else { return Ok(false) };
    // It may have grown since its size was read.
    *left = left.saturating_sub(bytes.len() as u64);
    Ok(sha256_hex(&bytes) != *digest)
}

fn content_of(top: &Dir, path: &EntryPath, metadata: &Metadata) -> Result<Option<Vec<u8>>, FileError> {
    let path = Path::new(OsStr::from_bytes(&path.0));
    let Some(name) = path.file_name() else { return Ok(None) };
    let parent = path.parent().unwrap_or(Path::new(""));
    match top.open_descendant(parent.iter()) {
        Ok(dir) => read(&dir, name, metadata),
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
    fn item(&mut self, top: &Dir, change: &Change<'_>) -> Result<FileChange, FileError> {
        let Change { path, before, now } = *change;
        let kind = match (before, now) {
            (None, _) => FileChangeKind::Added,
            (Some(_), None) => FileChangeKind::Deleted,
            (Some(_), Some(_)) => FileChangeKind::Modified,
        };
        let empty = Content::Text(String::new());
        let old = before.map_or(&empty, |before| &before.content);
        let new = match now {
            None => empty.clone(),
            Some(now) if now.size_bytes > MAX_TEXT_BYTES => Content::TooLarge,
            Some(now) => content_of(top, path, now)?.map_or(Content::TooLarge, Content::of),
        };
        let (path, path_bytes) = displayed(&path.0);
        let made = match (old, &new) {
            (Content::Binary, _) | (_, Content::Binary) => Err(DiffOmitted::Binary),
            (Content::TooLarge, _) | (_, Content::TooLarge) => Err(DiffOmitted::TooLarge),
            // As git shows it: one is removed, and the other added.
            (Content::Text(old), Content::Text(new)) if change.has_other_kind() => self
                .diff(&path, FileChangeKind::Deleted, old, "")
                .and_then(|removed| Ok(removed + &self.diff(&path, FileChangeKind::Added, "", new)?)),
            (Content::Text(old), Content::Text(new)) => self.diff(&path, kind, old, new),
        };
        let (diff, diff_omitted) = made.map_or_else(|omitted| (None, Some(omitted)), |diff| (Some(diff), None));
        Ok(FileChange {
            path,
            path_bytes,
            change: kind,
            size_bytes: now.map(|now| now.size_bytes),
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
