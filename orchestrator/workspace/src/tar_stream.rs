//! A workspace as a tar archive, produced chunk by chunk: only the current chunk is in memory, and a slow reader holds
//! no thread.
//!
//! Contains regular files, directories and symbolic links as such. Never follows a link; sockets, FIFOs and devices are
//! left out.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
};

use protocol::FileKind;
use tar::{EntryType, Header};

use super::{
    Cutoff, FileError, PERMISSION_BITS, Quota,
    dir::{
        Dir, Metadata, SANDBOX_ID,
        walk::{DirEntry, Walk},
    },
};

/// The unit of a tar archive (POSIX ustar).
const TAR_BLOCK_BYTES: usize = 512;
const CHUNK_BYTES: usize = 64 * 1024;
/// The size of the fields of a header for a path and a target; a longer text has an entry before it.
const TAR_FIELD_BYTES: u64 = 100;
/// The archive may exceed the quota by this factor: an evicted job holds more than its quota, each entry has a header,
/// and what is larger still is made of holes or of long paths.
const SIZE_FACTOR: u64 = 4;
/// The same for entries.
const ENTRIES_FACTOR: u64 = 2;

/// A tar archive that is being produced.
pub struct TarStream {
    /// None for a workspace that does not exist yet.
    walk: Option<Walk>,
    /// The file whose content comes next.
    current_file: Option<FileContent>,
    remaining_bytes: u64,
    is_finished: bool,
}

struct FileContent {
    file: File,
    remaining_bytes: u64,
    padding_bytes: usize,
}

impl TarStream {
    /// An archive of `dir`. Walks the tree once first, so that one that cannot be sent is refused before the response
    /// begins.
    pub(super) fn new(dir: Dir, quota: Quota, cutoff: &Cutoff) -> Result<Self, FileError> {
        let max = Quota {
            bytes: quota.bytes.saturating_mul(SIZE_FACTOR),
            entries: quota.entries.saturating_mul(ENTRIES_FACTOR),
        };
        check_size(dir.reopen()?, max, cutoff)?;
        let walk = Some(Walk::new(dir, max.entries));
        Ok(Self { walk, current_file: None, remaining_bytes: max.bytes, is_finished: false })
    }

    /// An archive without entries.
    pub(super) fn empty() -> Self {
        Self { walk: None, current_file: None, remaining_bytes: 0, is_finished: false }
    }

    /// The next chunk of at least `CHUNK_BYTES` but for the last one; none at the end. Fails past `cutoff`.
    pub fn next_chunk(&mut self, cutoff: Cutoff) -> Result<Option<Vec<u8>>, FileError> {
        let mut chunk = Vec::new();
        if let Some(walk) = &mut self.walk {
            walk.set_cutoff(cutoff);
        }
        while !self.is_finished && chunk.len() < CHUNK_BYTES {
            if self.current_file.is_some() {
                self.append_content(&mut chunk)?;
            } else if let Some(entry) = self.walk.as_mut().map(Walk::next_entry).transpose()?.flatten() {
                let before = chunk.len();
                self.append_entry(&entry, &mut chunk)?;
                let content = self.current_file.as_ref().map_or(0, FileContent::archived_bytes);
                let added = content.saturating_add((chunk.len() - before) as u64);
                self.remaining_bytes = self.remaining_bytes.checked_sub(added).ok_or_else(grew_while_read)?;
            } else {
                // Two zero blocks end an archive.
                chunk.resize(chunk.len() + 2 * TAR_BLOCK_BYTES, 0);
                self.is_finished = true;
            }
        }
        Ok(Some(chunk).filter(|chunk| !chunk.is_empty()))
    }

    fn append_content(&mut self, chunk: &mut Vec<u8>) -> Result<(), FileError> {
        let Some(content) = &mut self.current_file else { return Ok(()) };
        let wanted = content.remaining_bytes.min((CHUNK_BYTES - chunk.len()) as u64);
        let before = chunk.len();
        let read = (&mut content.file).take(wanted).read_to_end(chunk)? as u64;
        if read < wanted {
            // Truncated while it was read: zeros fill up to the size in its header.
            chunk.resize(before + usize::try_from(wanted).unwrap_or(CHUNK_BYTES), 0);
        }
        content.remaining_bytes -= wanted;
        if content.remaining_bytes == 0 {
            chunk.resize(chunk.len() + content.padding_bytes, 0);
            self.current_file = None;
        }
        Ok(())
    }

    fn append_entry(&mut self, entry: &DirEntry, chunk: &mut Vec<u8>) -> Result<(), FileError> {
        let Some(walk) = &self.walk else { return Ok(()) };
        let Some(dir) = walk.current_dir() else { return Ok(()) };
        let mut path = walk.current_path().join(&entry.name).into_os_string().into_encoded_bytes();
        match entry.metadata.kind {
            FileKind::File => {
                let (file, metadata) = match dir.open_file(&entry.name) {
                    // Removed or replaced since it was listed.
                    Err(FileError::NotFound | FileError::NotAFile(_)) => return Ok(()),
                    other => other?,
                };
                let size = metadata.size_bytes;
                EntryHeader { kind: EntryType::Regular, path: &path, target: &[], size, metadata: &metadata }
                    .append_to(chunk);
                let padding_bytes = padding(usize::try_from(size % TAR_BLOCK_BYTES as u64).unwrap_or(0));
                let content = FileContent { file, remaining_bytes: size, padding_bytes };
                self.current_file = Some(content).filter(|content| content.remaining_bytes > 0);
            }
            FileKind::Directory => {
                path.push(b'/');
                let metadata = &entry.metadata;
                EntryHeader { kind: EntryType::Directory, path: &path, target: &[], size: 0, metadata }
                    .append_to(chunk);
            }
            FileKind::Symlink => match dir.read_link(&entry.name) {
                Ok(target) => {
                    let (target, metadata) = (target.as_bytes(), &entry.metadata);
                    EntryHeader { kind: EntryType::Symlink, path: &path, target, size: 0, metadata }.append_to(chunk);
                }
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
                Err(error) => return Err(error.into()),
            },
            FileKind::Other => {}
        }
        Ok(())
    }
}

impl FileContent {
    fn archived_bytes(&self) -> u64 {
        self.remaining_bytes.saturating_add(self.padding_bytes as u64)
    }
}

/// Fails if the archive of a tree has more than `max.bytes`, or the tree cannot be walked.
fn check_size(dir: Dir, max: Quota, cutoff: &Cutoff) -> Result<(), FileError> {
    let mut walk = Walk::new(dir, max.entries).with_cutoff(cutoff.clone());
    let mut remaining_bytes = max.bytes;
    while let Some(entry) = walk.next_entry()? {
        let (path, size) = (walk.path_bytes(&entry.name), entry.metadata.size_bytes);
        let bytes = match entry.metadata.kind {
            FileKind::File => entry_bytes(path, 0, size),
            FileKind::Directory => entry_bytes(path + 1, 0, 0),
            // The size of a link is that of its target.
            FileKind::Symlink => entry_bytes(path, size, 0),
            FileKind::Other => 0,
        };
        remaining_bytes = remaining_bytes.checked_sub(bytes).ok_or_else(|| {
            FileError::TooLarge(
                "the archive would far exceed limits.disk_mb (sparse files or long paths?); download the files one by one"
                    .to_owned(),
            )
        })?;
    }
    Ok(())
}

/// The size of an entry in an archive: its header, its path and target where they are long, and its content.
fn entry_bytes(path: u64, target: u64, content: u64) -> u64 {
    let block = TAR_BLOCK_BYTES as u64;
    let padded = |bytes: u64| bytes.checked_next_multiple_of(block).unwrap_or(u64::MAX);
    // The text ends with a NUL.
    let long =
        |text: u64| if text > TAR_FIELD_BYTES { padded(text.saturating_add(1)).saturating_add(block) } else { 0 };
    [long(path), long(target), padded(content)].into_iter().fold(block, u64::saturating_add)
}

fn grew_while_read() -> FileError {
    FileError::TooLarge("the workspace grew while it was read".to_owned())
}

/// Zero bytes after `bytes` up to the next block.
fn padding(bytes: usize) -> usize {
    (TAR_BLOCK_BYTES - bytes % TAR_BLOCK_BYTES) % TAR_BLOCK_BYTES
}

/// The header of an archive entry.
struct EntryHeader<'a> {
    kind: EntryType,
    path: &'a [u8],
    /// The target of a symbolic link; otherwise empty.
    target: &'a [u8],
    /// The size of the content that follows.
    size: u64,
    metadata: &'a Metadata,
}

impl EntryHeader<'_> {
    /// Appends the header, after GNU long-name entries for texts that do not fit into it.
    fn append_to(&self, chunk: &mut Vec<u8>) {
        let mut header = Header::new_gnu();
        header.set_entry_type(self.kind);
        header.set_size(self.size);
        header.set_mode(self.metadata.mode & PERMISSION_BITS);
        header.set_mtime(u64::try_from(self.metadata.modified_at.timestamp()).unwrap_or(0));
        header.set_uid(SANDBOX_ID.into());
        header.set_gid(SANDBOX_ID.into());
        let old = header.as_old_mut();
        for (field, long_kind, text) in [
            (&mut old.name, EntryType::GNULongName, self.path),
            (&mut old.linkname, EntryType::GNULongLink, self.target),
        ] {
            let fitting = text.len().min(field.len());
            field[..fitting].copy_from_slice(&text[..fitting]);
            if text.len() > field.len() {
                append_long_text(chunk, long_kind, text);
            }
        }
        header.set_cksum();
        chunk.extend_from_slice(header.as_bytes());
    }
}

/// Appends a GNU extension entry that holds a name or link target too long for a header.
fn append_long_text(chunk: &mut Vec<u8>, kind: EntryType, text: &[u8]) {
    let name = b"././@LongLink";
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    // The text ends with a NUL.
    header.set_size(text.len() as u64 + 1);
    header.set_cksum();
    chunk.extend_from_slice(header.as_bytes());
    chunk.extend_from_slice(text);
    chunk.resize(chunk.len() + 1 + padding(text.len() + 1), 0);
}

#[cfg(test)]
mod tests;
