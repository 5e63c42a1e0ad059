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
    quota::check_apparent_size,
};

/// The unit of a tar archive (POSIX ustar).
const TAR_BLOCK_BYTES: usize = 512;
const CHUNK_BYTES: usize = 64 * 1024;
/// The apparent size of all files may exceed the quota by this factor: an evicted job holds more than its quota, and
/// what is larger still is made of holes.
const APPARENT_SIZE_FACTOR: u64 = 4;
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
            bytes: quota.bytes.saturating_mul(APPARENT_SIZE_FACTOR),
            entries: quota.entries.saturating_mul(ENTRIES_FACTOR),
        };
        check_apparent_size(dir.reopen()?, max, cutoff)?;
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
                self.append_entry(&entry, &mut chunk)?;
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
                self.remaining_bytes = self.remaining_bytes.checked_sub(size).ok_or_else(grew_while_read)?;
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
