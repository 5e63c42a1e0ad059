//! A workspace as a tar, made piece by piece as it is read: nothing is kept but the piece, and nobody waits in a thread.
//!
//! Regular files, directories and links as such. Never follows a link; what is neither stays out.

use std::{
    fs::File,
    io::{self, Read},
    os::unix::ffi::OsStrExt,
};

use protocol::FileKind;
use tar::{EntryType, Header};

use super::{
    FileError, Room,
    folder::{Folder, Look},
    room::claimed,
    walk::{Cutoff, Found, Walk},
};

const BLOCK: usize = 512;
const PIECE: usize = 64 * 1024;
/// What the files may claim beside what the workspace may hold: a job that was evicted holds more, and more than this is
/// holes.
const CLAIM_FACTOR: u64 = 4;
/// The sandbox's user, whose files they are.
const OWNER: u64 = 10_001;

/// A tar that is being made.
pub struct Pack {
    walk: Option<Walk>,
    content: Option<Content>,
    left: u64,
    done: bool,
}

struct Content {
    file: File,
    left: u64,
    padding: usize,
}

impl Pack {
    /// Of a folder; looked through once before, so that what cannot be sent is refused before it is begun.
    pub(super) fn of(folder: Folder, room: Room, cutoff: &Cutoff) -> Result<Self, FileError> {
        let most = Room { bytes: room.bytes.saturating_mul(CLAIM_FACTOR), entries: room.entries.saturating_mul(2) };
        claimed(folder.folder(".".as_ref())?, most, cutoff)?;
        Ok(Self { walk: Some(Walk::of(folder, most.entries)), content: None, left: most.bytes, done: false })
    }

    /// Of nothing.
    pub(super) fn nothing() -> Self {
        Self { walk: None, content: None, left: 0, done: false }
    }

    /// The next piece; none at the end.
    pub fn piece(&mut self, cutoff: Cutoff) -> Result<Option<Vec<u8>>, FileError> {
        let mut piece = Vec::new();
        if let Some(walk) = &mut self.walk {
            walk.give_up_at(cutoff);
        }
        while !self.done && piece.len() < PIECE {
            if self.content.is_some() {
                self.read(&mut piece)?;
            } else if let Some(found) = self.walk.as_mut().map(Walk::next).transpose()?.flatten() {
                self.entry(&found, &mut piece)?;
            } else {
                piece.resize(piece.len() + 2 * BLOCK, 0);
                self.done = true;
            }
        }
        Ok(Some(piece).filter(|piece| !piece.is_empty()))
    }

    fn read(&mut self, piece: &mut Vec<u8>) -> Result<(), FileError> {
        let Some(content) = &mut self.content else { return Ok(()) };
        let wanted = content.left.min((PIECE - piece.len()) as u64);
        let before = piece.len();
        let read = (&mut content.file).take(wanted).read_to_end(piece)? as u64;
        if read < wanted {
            // Cut while it was read: its header has promised more.
            piece.resize(before + usize::try_from(wanted).unwrap_or(PIECE), 0);
        }
        content.left -= wanted;
        if content.left == 0 {
            piece.resize(piece.len() + content.padding, 0);
            self.content = None;
        }
        Ok(())
    }

    fn entry(&mut self, found: &Found, piece: &mut Vec<u8>) -> Result<(), FileError> {
        let Some(walk) = &self.walk else { return Ok(()) };
        let Some(folder) = walk.folder() else { return Ok(()) };
        let mut path = walk.path().join(&found.name).into_os_string().into_encoded_bytes();
        match found.look.kind {
            FileKind::File => {
                let (file, look) = match folder.file(&found.name) {
                    // Gone or swapped since.
                    Err(FileError::Missing | FileError::NotAFile(_)) => return Ok(()),
                    other => other?,
                };
                self.left = self.left.checked_sub(look.size_bytes).ok_or_else(grown)?;
                write(piece, EntryType::Regular, &path, (&[], look.size_bytes, &look));
                let over = usize::try_from(look.size_bytes % BLOCK as u64).unwrap_or(0);
                let content = Content { file, left: look.size_bytes, padding: (BLOCK - over) % BLOCK };
                self.content = Some(content).filter(|content| content.left > 0);
            }
            FileKind::Directory => {
                path.push(b'/');
                write(piece, EntryType::Directory, &path, (&[], 0, &found.look));
            }
            FileKind::Symlink => match folder.target(&found.name) {
                Ok(target) => write(piece, EntryType::Symlink, &path, (target.as_bytes(), 0, &found.look)),
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::InvalidInput) => {}
                Err(error) => return Err(error.into()),
            },
            FileKind::Other => {}
        }
        Ok(())
    }
}

fn grown() -> FileError {
    FileError::TooLarge("the workspace grew while it was read".to_owned())
}

/// One header, with those before it that hold what it has no room for.
fn write(piece: &mut Vec<u8>, kind: EntryType, path: &[u8], (target, size, look): (&[u8], u64, &Look)) {
    let mut header = Header::new_gnu();
    header.set_entry_type(kind);
    header.set_size(size);
    header.set_mode(look.mode & 0o777);
    header.set_mtime(u64::try_from(look.modified.timestamp()).unwrap_or(0));
    header.set_uid(OWNER);
    header.set_gid(OWNER);
    let old = header.as_old_mut();
    for (field, long, text) in
        [(&mut old.name, EntryType::GNULongName, path), (&mut old.linkname, EntryType::GNULongLink, target)]
    {
        let fits = text.len().min(field.len());
        field[..fits].copy_from_slice(&text[..fits]);
        if text.len() > field.len() {
            write_long(piece, long, text);
        }
    }
    header.set_cksum();
    piece.extend_from_slice(header.as_bytes());
}

fn write_long(piece: &mut Vec<u8>, kind: EntryType, text: &[u8]) {
    let name = b"././@LongLink";
    let mut header = Header::new_gnu();
    header.as_old_mut().name[..name.len()].copy_from_slice(name);
    header.set_entry_type(kind);
    header.set_mode(0o644);
    header.set_mtime(0);
    header.set_uid(0);
    header.set_gid(0);
    header.set_size(text.len() as u64 + 1);
    header.set_cksum();
    piece.extend_from_slice(header.as_bytes());
    piece.extend_from_slice(text);
    let end = piece.len() + 1;
    piece.resize(end + (BLOCK - (text.len() + 1) % BLOCK) % BLOCK, 0);
}
