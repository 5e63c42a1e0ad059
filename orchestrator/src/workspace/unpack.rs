//! A tar that somebody sends, unpacked into a folder where nobody looks yet; one entry that must not be refuses it whole.
//!
//! Reads headers as they are and never more of one than fits a page or two of text. Never writes outside the folder, never
//! makes a link that leads out of it, never keeps a setuid bit.

use std::{
    ffi::OsStr,
    io::{self, Read},
    path::Path,
    time::{Duration, SystemTime},
};

use flate2::read::MultiGzDecoder;
use protocol::{FileKind, Unpacked};
use tar::{Archive, Entry, EntryType, PaxExtensions};

use super::{Cutoff, FileError, Room, Upload, folder::Folder};
use crate::domain::request::check_path;

/// Files, directories and links in one archive.
const MAX_ENTRIES: u64 = 100_000;
/// For all of it: 10 GiB of the slowest compression that is any use take about half of it.
const UNPACK_LIMIT: Duration = Duration::from_mins(5);
/// Of a header that holds a long name and the like.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;
/// Headers, padding and long names of one entry, generously.
const MAX_HEADER_BYTES: u64 = 4 * 1024;
/// Of a name, shown in an error.
const MAX_SHOWN_CHARS: usize = 200;

/// Unpacks a tar, compressed by gzip or not.
pub(super) fn unpack(sent: impl Read, gzip: bool, tree: &Folder, upload: &mut Upload) -> Result<Unpacked, FileError> {
    let (room, cutoff) = (Room::of(&upload.limits), &upload.cutoff(UNPACK_LIMIT));
    let room = Room { entries: room.entries.min(MAX_ENTRIES), ..room };
    let left = room.bytes.saturating_add(MAX_HEADER_BYTES.saturating_mul(room.entries.saturating_add(256)));
    let mut unpacking = Unpacking { tree, room, upload, done: Unpacked::default() };
    if gzip {
        unpacking.all(Bounded { from: MultiGzDecoder::new(sent), left, cutoff })?;
    } else {
        unpacking.all(Bounded { from: sent, left, cutoff })?;
    }
    Ok(unpacking.done)
}

/// Ends with an error what would go on for ever.
struct Bounded<'a, R> {
    from: R,
    left: u64,
    cutoff: &'a Cutoff,
}

impl<R: Read> Read for Bounded<'_, R> {
    fn read(&mut self, buffer: &mut [u8]) -> io::Result<usize> {
        // Each entry has a header that is read here, so this is looked at for each entry, too.
        self.cutoff.check().map_err(|_| io::ErrorKind::TimedOut)?;
        let read = self.from.read(buffer)?;
        self.left = self.left.checked_sub(read as u64).ok_or(io::ErrorKind::FileTooLarge)?;
        Ok(read)
    }
}

/// An error while an archive is read.
fn unreadable(error: &io::Error) -> FileError {
    match error.kind() {
        io::ErrorKind::FileTooLarge => Room::full(),
        io::ErrorKind::TimedOut => FileError::TooSlow,
        _ => FileError::Malformed("it is not a whole tar archive (or a gzip-compressed one that says so)".to_owned()),
    }
}

/// What headers before an entry say of it.
#[derive(Default)]
struct Extended {
    path: Option<Vec<u8>>,
    target: Option<Vec<u8>>,
    size: Option<Vec<u8>>,
    sparse: bool,
}

impl Extended {
    fn take_pax(&mut self, records: &[u8]) -> Result<(), FileError> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(|error| unreadable(&error))?;
            let value = || Some(record.value_bytes().to_vec());
            match record.key_bytes() {
                b"path" => self.path = value(),
                b"linkpath" => self.target = value(),
                b"size" => self.size = value(),
                key if key.starts_with(b"GNU.sparse.") => self.sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

struct Unpacking<'a> {
    tree: &'a Folder,
    room: Room,
    upload: &'a mut Upload,
    done: Unpacked,
}

impl Unpacking<'_> {
    fn all(&mut self, sent: impl Read) -> Result<(), FileError> {
        let mut archive = Archive::new(sent);
        let mut extended = Extended::default();
        let entries = archive.entries().map_err(|error| unreadable(&error))?;
        for entry in entries.raw(true) {
            let mut entry = entry.map_err(|error| unreadable(&error))?;
            match entry.header().entry_type() {
                EntryType::GNULongName => extended.path = Some(text(&mut entry)?),
                EntryType::GNULongLink => extended.target = Some(text(&mut entry)?),
                EntryType::XHeader => extended.take_pax(&extension(&mut entry)?)?,
                EntryType::XGlobalHeader => drop(extension(&mut entry)?),
                _ => self.one(entry, std::mem::take(&mut extended))?,
            }
        }
        Ok(())
    }

    fn one(&mut self, mut entry: Entry<'_, impl Read>, extended: Extended) -> Result<(), FileError> {
        let kind = entry.header().entry_type();
        let given = extended.path.unwrap_or_else(|| entry.path_bytes().into_owned());
        let shown = shown(&given);
        let refuse = |rule| FileError::Refused { entry: shown.clone(), rule };
        let size = entry.size();
        if kind.is_gnu_sparse() || extended.sparse {
            return Err(refuse("is a sparse file; pack it without holes"));
        }
        if extended.size.is_some_and(|told| told != size.to_string().into_bytes()) {
            return Err(refuse("has two sizes"));
        }
        let given = String::from_utf8(given).map_err(|_| refuse("must have a name in UTF-8"))?;
        let mut path = given.as_str();
        while let Some(rest) = path.strip_prefix("./") {
            path = rest;
        }
        if kind.is_dir() {
            path = path.strip_suffix('/').unwrap_or(path);
            if matches!(path, "" | ".") {
                return Ok(());
            }
        }
        check_path(path).map_err(refuse)?;
        let (folders, name) = path.rsplit_once('/').map_or((None, path), |(folders, name)| (Some(folders), name));
        let folder = self.descend(folders).map_err(|error| told(error, &shown))?;
        let name = OsStr::new(name);
        let mode = entry.header().mode().unwrap_or(0o644) & 0o777;
        let unpacked = match kind {
            EntryType::Regular => self.file(&mut entry, &folder, name, mode | 0o600),
            EntryType::Directory => self.folder(&folder, name, mode | 0o700),
            EntryType::Symlink => {
                let target = extended.target.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                let depth = path.matches('/').count();
                let target = target.and_then(|target| stays(target, depth));
                self.link(&folder, name, &target.ok_or_else(|| refuse("is a link out of the workspace"))?)
            }
            EntryType::Link => {
                let target = extended.target.or_else(|| entry.link_name_bytes().map(std::borrow::Cow::into_owned));
                let target = target.and_then(|target| String::from_utf8(target).ok()).unwrap_or_default();
                let target = target.strip_prefix("./").unwrap_or(&target);
                check_path(target).map_err(|_| refuse("is a hard link out of the workspace"))?;
                if target == path { Ok(()) } else { self.second_name(target, &folder, name) }
            }
            EntryType::Block | EntryType::Char | EntryType::Fifo => return Err(refuse("is a device or a FIFO")),
            _ => return Err(refuse("is of a kind that is not taken")),
        };
        unpacked.map_err(|error| told(error, &shown))?;
        self.done.entries += 1;
        Ok(())
    }

    /// The folder that an entry lies in, made where it is missing; a link or a file on the way is no folder.
    fn descend(&mut self, folders: Option<&str>) -> Result<Folder, FileError> {
        let Some(path) = folders else { return Ok(self.tree.folder(OsStr::new("."))?) };
        match self.tree.folder_at(Path::new(path)) {
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            other => return Ok(other?),
        }
        let mut here = self.tree.folder(OsStr::new("."))?;
        for name in path.split('/').map(OsStr::new) {
            here = match here.folder(name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => {
                    self.room.take(0)?;
                    here.made(name)?
                }
                other => other?,
            };
        }
        Ok(here)
    }

    /// Makes way for an entry, the last of its name being the one that counts.
    fn place(&mut self, folder: &Folder, name: &OsStr, bytes: u64) -> Result<(), FileError> {
        self.room.take(bytes)?;
        match folder.unlink(name) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error.into()),
            _ => Ok(()),
        }
    }

    fn file(&mut self, entry: &mut impl Sent, folder: &Folder, name: &OsStr, mode: u32) -> Result<(), FileError> {
        let size = entry.size();
        self.place(folder, name, size)?;
        self.upload.take(size)?;
        let mut file = folder.new_file(name, mode)?;
        // An archive's errors and the disk's must not be taken for each other.
        let mut buffer = vec![0; 64 * 1024];
        let mut left = size;
        while left > 0 {
            let read = entry.read(&mut buffer).map_err(|error| unreadable(&error))?;
            if read == 0 {
                return Err(unreadable(&io::ErrorKind::UnexpectedEof.into()));
            }
            io::Write::write_all(&mut file, &buffer[..read])?;
            left = left.saturating_sub(read as u64);
        }
        if let Some(at) = SystemTime::UNIX_EPOCH.checked_add(Duration::from_secs(entry.modified())) {
            // A time that the file system does not have is not worth an error.
            let _ = file.set_modified(at);
        }
        self.done.size_bytes += size;
        Ok(())
    }

    fn folder(&mut self, folder: &Folder, name: &OsStr, mode: u32) -> Result<(), FileError> {
        if folder.look(name).is_err() {
            self.room.take(0)?;
        }
        let own = folder.made(name)?;
        own.set_mode(mode)?;
        Ok(own.give()?)
    }

    fn link(&mut self, folder: &Folder, name: &OsStr, target: &OsStr) -> Result<(), FileError> {
        self.place(folder, name, 0)?;
        Ok(folder.link_to(name, target)?)
    }

    /// A hard link to a file that the archive has already brought.
    fn second_name(&mut self, target: &str, folder: &Folder, name: &OsStr) -> Result<(), FileError> {
        let (folders, last) = target.rsplit_once('/').map_or((None, target), |(folders, last)| (Some(folders), last));
        let there = self.descend(folders)?;
        let look = there.look(OsStr::new(last))?;
        if look.kind != FileKind::File {
            return Err(FileError::NotAFile("it is a hard link to what is no file"));
        }
        // As the sweep of a running job counts it: each name anew.
        self.place(folder, name, look.size_bytes)?;
        Ok(there.second_name(OsStr::new(last), folder, name)?)
    }
}

/// An entry's content and what is needed beside it.
trait Sent: Read {
    fn size(&self) -> u64;
    fn modified(&self) -> u64;
}

impl<R: Read> Sent for Entry<'_, R> {
    fn size(&self) -> u64 {
        Entry::size(self)
    }

    fn modified(&self) -> u64 {
        self.header().mtime().unwrap_or(0)
    }
}

/// Where a link points, if it stays in the workspace: up only at its beginning, and no higher than it lies. A `..` after a
/// name might be a way out through another link.
fn stays(target: Vec<u8>, depth: usize) -> Option<std::ffi::OsString> {
    let target = String::from_utf8(target).ok()?;
    let up = target.split('/').take_while(|name| *name == "..").count();
    let rest: Vec<&str> = target.split('/').skip(up).collect();
    let plain = rest.iter().enumerate().all(|(at, name)| match *name {
        ".." => false,
        // `dir/` and `..` alone end so; a beginning like this is absolute.
        "" => at > 0 || up > 0,
        _ => true,
    });
    let known = !target.is_empty() && target.len() < 4096 && !target.contains('\0');
    (plain && known && up <= depth).then(|| target.into())
}

/// An entry that cannot be where it is said to be, by its name.
fn told(error: FileError, entry: &str) -> FileError {
    let refused = |rule| FileError::Refused { entry: entry.to_owned(), rule };
    match error {
        FileError::NotADirectory => refused("lies below a file or a link of the archive"),
        FileError::NotAFile(_) => refused("is another kind of thing elsewhere in the archive"),
        FileError::Missing => refused("is a hard link to what the archive has not brought before it"),
        other => other,
    }
}

fn extension(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, FileError> {
    if entry.size() > MAX_EXTENSION_BYTES {
        let rule = "has an extended header of over 64 KiB";
        return Err(FileError::Refused { entry: shown(&entry.path_bytes()), rule });
    }
    let mut bytes = vec![];
    entry.read_to_end(&mut bytes).map_err(|error| unreadable(&error))?;
    Ok(bytes)
}

/// A long name, which ends in NUL.
fn text(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, FileError> {
    let mut bytes = extension(entry)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}

/// Harmless, and not endless.
fn shown(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars().take(MAX_SHOWN_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;
    use protocol::{JobId, Limits};
    use rstest::rstest;
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::workspace::{FreeSpace, Uploads};

    #[rstest]
    #[case::beside("x", 0, true)]
    #[case::below("a/b", 0, true)]
    #[case::folder("a/", 0, true)]
    #[case::up("../x", 1, true)]
    #[case::the_top("../..", 2, true)]
    #[case::the_top_as_a_folder("../", 1, true)]
    #[case::out("../x", 0, false)]
    #[case::far_out("../../x", 1, false)]
    #[case::absolute("/etc/passwd", 3, false)]
    #[case::through_a_name("a/../x", 3, false)]
    #[case::empty("", 3, false)]
    fn a_link_goes_up_only_at_its_beginning(#[case] target: &str, #[case] depth: usize, #[case] stays_inside: bool) {
        assert_eq!(stays(target.into(), depth).is_some(), stays_inside);
    }

    proptest! {
        #[test]
        fn no_link_that_stays_climbs_out(target in "(\\.\\./|\\.\\.|a/|a|/|\\./){0,6}", depth in 0_usize..4) {
            if stays(target.clone().into_bytes(), depth).is_some() {
                let mut at = isize::try_from(depth).unwrap();
                prop_assert!(!target.starts_with('/'));
                for name in target.split('/') {
                    at += match name { ".." => -1, "" | "." => 0, _ => 1 };
                    prop_assert!(at >= 0, "{target:?} from {depth}");
                }
            }
        }

        #[test]
        fn whatever_is_sent_is_unpacked_or_refused(bytes in prop::collection::vec(any::<u8>(), 0..2048), gzip in any::<bool>()) {
            let folder = tempfile::tempdir().unwrap();
            let tree = Folder::open(folder.path()).unwrap();
            let uploads = Uploads::new(FreeSpace::new("/tmp".into(), Some(0)));
            let limits = Limits { disk_mb: 1, ..Limits::default() };
            let mut upload = uploads.begin("ada", JobId::generate(), limits, CancellationToken::new()).unwrap();
            // Neither a panic nor an end that does not come.
            let _ = unpack(bytes.as_slice(), gzip, &tree, &mut upload);
        }
    }
}
