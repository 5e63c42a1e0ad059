//! Unpacks a tar archive that a user sent into a staging directory. One entry that is not acceptable rejects the whole
//! archive. Names may have any bytes that a file's name may have, so that the archive of a workspace is acceptable
//! whatever its job named its files.
//!
//! Reads headers as they are, with a bound on the size of each. The target of a symbolic link is only a text, which may
//! name anything. Never writes outside the staging directory, never follows a link, never keeps a setuid, setgid or
//! sticky bit.

mod header;

use std::{
    ffi::{OsStr, OsString},
    io::{self, Read, Write as _},
    os::unix::ffi::{OsStrExt as _, OsStringExt as _},
    path::Path,
    time::{Duration, SystemTime},
};

use flate2::read::MultiGzDecoder;
use protocol::{FileKind, Unpacked, WorkspacePath, limits::MAX_PATH_DEPTH};
use tar::{Archive, Entry, EntryType};

use self::header::{ExtendedHeader, entry_path, printable};
use crate::{Cutoff, FileError, PERMISSION_BITS, Quota, Upload, dir::Dir};

/// Files, directories and links in one archive.
const MAX_ENTRIES: u64 = 100_000;
/// Timeout of a whole archive: 10 GiB at the slowest compression in common use takes about half of it.
const UNPACK_TIMEOUT: Duration = Duration::from_mins(5);
/// Headers, padding and long names of one entry; a generous average.
const MAX_HEADER_BYTES_PER_ENTRY: u64 = 4 * 1024;
/// Entries beyond the quota whose headers are still read: directories that exist already and extension entries.
const SPARE_ENTRIES: u64 = 256;
const DEFAULT_MODE: u32 = 0o644;
/// Permissions that the owner always has.
const OWNER_FILE_BITS: u32 = 0o600;
const OWNER_DIR_BITS: u32 = 0o700;
const COPY_BUFFER_BYTES: usize = 64 * 1024;
/// The size of the longest target of a link, with its final NUL (`PATH_MAX`).
const PATH_MAX: usize = 4096;

/// Unpacks a tar archive, compressed with gzip or not, into `tree`.
pub(crate) fn unpack(body: impl Read, gzip: bool, tree: &Dir, upload: &mut Upload) -> Result<Unpacked, FileError> {
    let (quota, cutoff) = (Quota::from_limits(&upload.limits), &upload.cutoff(UNPACK_TIMEOUT));
    let quota = Quota { entries: quota.entries.min(MAX_ENTRIES), ..quota };
    let header_bytes = MAX_HEADER_BYTES_PER_ENTRY.saturating_mul(quota.entries.saturating_add(SPARE_ENTRIES));
    let remaining_bytes = quota.bytes.saturating_add(header_bytes);
    let mut unpacker = Unpacker { tree, quota, upload, unpacked: Unpacked::default() };
    if gzip {
        unpacker.unpack_all(LimitedReader { inner: MultiGzDecoder::new(body), remaining_bytes, cutoff })?;
    } else {
        unpacker.unpack_all(LimitedReader { inner: body, remaining_bytes, cutoff })?;
    }
    Ok(unpacker.unpacked)
}

/// Fails a read beyond a number of bytes or past a cutoff. Every entry has a header that is read through it, so the
/// cutoff is checked for every entry.
struct LimitedReader<'a, R> {
    inner: R,
    remaining_bytes: u64,
    cutoff: &'a Cutoff,
}

impl<R: Read> Read for LimitedReader<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        self.cutoff.check().map_err(|_| io::ErrorKind::TimedOut)?;
        let read = self.inner.read(buffer)?;
        self.remaining_bytes = self.remaining_bytes.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

/// Maps an error of reading the archive, as opposed to one of writing to the disk.
fn read_error(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => Quota::exceeded(),
        io::ErrorKind::TimedOut => FileError::TimedOut,
        _ => FileError::MalformedArchive("not a complete tar archive (gzip-compressed only if declared)".to_owned()),
    }
}

struct Unpacker<'a> {
    tree: &'a Dir,
    quota: Quota,
    upload: &'a mut Upload,
    unpacked: Unpacked,
}

impl Unpacker<'_> {
    fn unpack_all(&mut self, reader: impl Read) -> Result<(), FileError> {
        let mut archive = Archive::new(reader);
        let mut extended = ExtendedHeader::default();
        let entries = archive.entries().map_err(|error| read_error(&error))?;
        for entry in entries.raw(true) {
            let mut entry = entry.map_err(|error| read_error(&error))?;
            if !extended.read_from(&mut entry)? {
                self.unpack_entry(entry, std::mem::take(&mut extended))?;
            }
        }
        Ok(())
    }

    fn unpack_entry(&mut self, mut entry: Entry<'_, impl Read>, extended: ExtendedHeader) -> Result<(), FileError> {
        let kind = entry.header().entry_type();
        let raw_path = extended.path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let shown_path = printable(&raw_path);
        let reject = |reason| FileError::RejectedEntry { entry: shown_path.clone(), reason };
        let size = entry.size();
        if kind.is_gnu_sparse() || extended.is_sparse {
            return Err(reject("is a sparse file; pack it without holes"));
        }
        if extended.size.is_some_and(|declared| declared != size.to_string().into_bytes()) {
            return Err(reject("has two different sizes"));
        }
        let Some(path) = entry_path(&raw_path, kind) else { return Ok(()) };
        check_path(path).map_err(reject)?;
        let link_target = extended.link_target.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
        let (parent, name) = split_parent(path);
        let parent = self.open_or_create_dirs(parent).map_err(|error| reject_entry(error, &shown_path))?;
        let name = OsStr::from_bytes(name);
        let mode = entry.header().mode().unwrap_or(DEFAULT_MODE) & PERMISSION_BITS;
        let result = match kind {
            EntryType::Regular => self.write_file(&mut entry, &parent, name, mode | OWNER_FILE_BITS),
            EntryType::Directory => self.create_dir(&parent, name, mode | OWNER_DIR_BITS),
            EntryType::Symlink => {
                let can_exist = |target: &Vec<u8>| (1..PATH_MAX).contains(&target.len()) && !target.contains(&0);
                let target = link_target.filter(can_exist).ok_or_else(|| reject("is a link without a valid target"))?;
                self.symlink(&parent, name, &OsString::from_vec(target))
            }
            EntryType::Link => {
                let target = link_target.unwrap_or_default();
                let target = target.strip_prefix(b"./").unwrap_or(&target);
                check_path(target).map_err(|_| reject("is a hard link out of the workspace"))?;
                if target == path { Ok(()) } else { self.hard_link(target, &parent, name) }
            }
            EntryType::Block | EntryType::Char | EntryType::Fifo => return Err(reject("is a device or a FIFO")),
            _ => return Err(reject("has an unsupported entry type")),
        };
        result.map_err(|error| reject_entry(error, &shown_path))?;
        self.unpacked.entries += 1;
        Ok(())
    }

    /// Opens a directory of the tree, creating the missing ones on the way. A link or a file on the way is an error.
    fn open_or_create_dirs(&mut self, path: Option<&[u8]>) -> Result<Dir, FileError> {
        let Some(path) = path else { return Ok(self.tree.reopen()?) };
        match self.tree.open_dir_beneath(Path::new(OsStr::from_bytes(path))) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return Ok(other?),
        }
        let mut dir = self.tree.reopen()?;
        for name in path.split(|byte| *byte == b'/').map(OsStr::from_bytes) {
            dir = match dir.open_dir(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.quota.reserve(0)?;
                    dir.create_or_open_dir(name)?
                }
                other => other?,
            };
        }
        Ok(dir)
    }

    /// Reserves quota for an entry and removes an earlier one with the same path: the last one wins.
    fn replace(&mut self, parent: &Dir, name: &OsStr, bytes: u64) -> Result<(), FileError> {
        self.quota.reserve(bytes)?;
        match parent.unlink(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn write_file(
        &mut self,
        entry: &mut Entry<'_, impl Read>,
        parent: &Dir,
        name: &OsStr,
        mode: u32,
    ) -> Result<(), FileError> {
        let size = entry.size();
        self.replace(parent, name, size)?;
        self.upload.count_written(size)?;
        let mut file = parent.create_file(name, mode)?;
        // Not io::copy: errors of reading the archive and of writing to the disk are reported differently.
        let mut buffer = vec![0; COPY_BUFFER_BYTES];
        let mut remaining_bytes = size;
        while remaining_bytes > 0 {
            let read = entry.read(&mut buffer).map_err(|error| read_error(&error))?;
            if read == 0 {
                return Err(read_error(&io::ErrorKind::UnexpectedEof.into()));
            }
            file.write_all(&buffer[..read])?;
            remaining_bytes = remaining_bytes.saturating_sub(read as u64);
        }
        let modified = Duration::from_secs(entry.header().mtime().unwrap_or(0));
        if let Some(modified) = SystemTime::UNIX_EPOCH.checked_add(modified) {
            // Best effort: the file system may not be able to represent the time.
            let _ = file.set_modified(modified);
        }
        self.unpacked.size_bytes += size;
        Ok(())
    }

    fn create_dir(&mut self, parent: &Dir, name: &OsStr, mode: u32) -> Result<(), FileError> {
        if parent.metadata(name).is_err() {
            self.quota.reserve(0)?;
        }
        let dir = parent.create_or_open_dir(name)?;
        dir.set_mode(mode)?;
        Ok(dir.chown_to_sandbox()?)
    }

    fn symlink(&mut self, parent: &Dir, name: &OsStr, target: &OsStr) -> Result<(), FileError> {
        self.replace(parent, name, 0)?;
        Ok(parent.symlink(name, target)?)
    }

    /// Creates a hard link to a file that the archive contains before it.
    fn hard_link(&mut self, target: &[u8], parent: &Dir, name: &OsStr) -> Result<(), FileError> {
        let (target_parent, target_name) = split_parent(target);
        let (target_parent, target_name) = (self.open_or_create_dirs(target_parent)?, OsStr::from_bytes(target_name));
        let metadata = target_parent.metadata(target_name)?;
        if metadata.kind != FileKind::File {
            return Err(FileError::NotAFile("the target of the hard link is not a regular file"));
        }
        // Counted in full for each link, as the measure of a running job's workspace does.
        self.replace(parent, name, metadata.size_bytes)?;
        Ok(target_parent.hard_link(target_name, parent, name)?)
    }
}

/// A path's parent, none at the top, and its last component.
fn split_parent(path: &[u8]) -> (Option<&[u8]>, &[u8]) {
    let slash = path.iter().rposition(|byte| *byte == b'/');
    slash.map_or((None, path), |slash| (Some(&path[..slash]), &path[slash + 1..]))
}

/// Validates the path of an entry: that of a file that a job can have made.
fn check_path(path: &[u8]) -> Result<(), &'static str> {
    let path = WorkspacePath::parse_for_read(path)?;
    // A directory at the maximum depth has files.
    if path.components().len() > MAX_PATH_DEPTH + 1 {
        return Err("must be at most 128 directories deep");
    }
    Ok(())
}

/// Turns an error that is caused by the archive's content into a rejection of the entry.
fn reject_entry(error: FileError, entry: &str) -> FileError {
    let rejected = |reason| FileError::RejectedEntry { entry: entry.to_owned(), reason };
    match error {
        FileError::NotADirectory => rejected("has a file or a link of the archive as a parent directory"),
        FileError::NotAFile(_) => rejected("conflicts with an entry of another type in the archive"),
        FileError::NotFound => rejected("is a hard link to a file that does not precede it in the archive"),
        other => other,
    }
}

#[cfg(test)]
mod tests;
