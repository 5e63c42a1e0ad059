//! A walk over all of a folder, with one folder open at a time however deep it goes, and an end however it changes.
//!
//! Never follows a link, never reads a file.

use std::{
    ffi::{OsStr, OsString},
    io,
    sync::Arc,
};

use protocol::FileKind;

use super::{
    FileError,
    folder::{Folder, Look},
};

/// Folders within folders; nothing deeper is looked at.
const MAX_DEPTH: usize = 512;
/// Folders that wait for their turn.
const MAX_WAITING: usize = 100_000;

type Names = Box<dyn Iterator<Item = io::Result<OsString>> + Send>;

/// A folder on the way, by its name in the one above.
#[derive(Debug)]
pub(super) struct Place {
    above: Option<(Arc<Place>, OsString)>,
    depth: usize,
}

impl Place {
    /// The names from the top to here.
    pub(super) fn names(&self) -> Vec<&OsStr> {
        let mut names = vec![];
        let mut place = self;
        while let Some((above, name)) = &place.above {
            names.push(name.as_os_str());
            place = above;
        }
        names.reverse();
        names
    }
}

/// One entry.
#[derive(Debug)]
pub(super) struct Found {
    /// In which folder.
    pub(super) place: Arc<Place>,
    pub(super) name: OsString,
    pub(super) look: Look,
}

/// The walk.
pub(super) struct Walk {
    top: Folder,
    waiting: Vec<Arc<Place>>,
    here: Option<(Folder, Names, Arc<Place>)>,
    left: u64,
}

impl Walk {
    /// Of at most `entries`; more is an error, as is what is too deep.
    pub(super) fn of(top: Folder, entries: u64) -> Self {
        Self { top, waiting: vec![Arc::new(Place { above: None, depth: 0 })], here: None, left: entries }
    }

    /// The next entry, folders before what is in them. What vanishes while it is looked at was not there.
    pub(super) fn next(&mut self) -> Result<Option<Found>, FileError> {
        loop {
            if self.here.is_none() && !self.enter()? {
                return Ok(None);
            }
            let Some((folder, names, place)) = &mut self.here else { continue };
            let Some(name) = names.next() else {
                self.here = None;
                continue;
            };
            let name = name?;
            let look = match folder.look(&name) {
                Err(error) if error.kind() == io::ErrorKind::NotFound => continue,
                other => other?,
            };
            let place = Arc::clone(place);
            let Some(left) = self.left.checked_sub(1) else {
                return Err(FileError::TooLarge("the workspace holds too many entries".to_owned()));
            };
            self.left = left;
            if look.kind == FileKind::Directory {
                if place.depth >= MAX_DEPTH || self.waiting.len() >= MAX_WAITING {
                    return Err(FileError::TooLarge(format!("the workspace is deeper than {MAX_DEPTH} folders")));
                }
                let above = Some((Arc::clone(&place), name.clone()));
                self.waiting.push(Arc::new(Place { above, depth: place.depth + 1 }));
            }
            return Ok(Some(Found { place, name, look }));
        }
    }

    /// The folder of the entry that was given last.
    pub(super) fn folder(&self) -> &Folder {
        self.here.as_ref().map_or(&self.top, |(folder, ..)| folder)
    }

    /// Enters the next folder that is there; false when there is none.
    fn enter(&mut self) -> Result<bool, FileError> {
        while let Some(place) = self.waiting.pop() {
            match open(&self.top, &place.names()) {
                Ok(folder) => {
                    let names = Box::new(folder.names()?);
                    self.here = Some((folder, names, place));
                    return Ok(true);
                }
                // Moved or swapped since.
                Err(error) if matches!(error.kind(), io::ErrorKind::NotFound | io::ErrorKind::NotADirectory) => {}
                Err(error) => return Err(error.into()),
            }
        }
        Ok(false)
    }
}

/// The folder that names lead to, one after the other.
pub(super) fn open(top: &Folder, names: &[&OsStr]) -> io::Result<Folder> {
    let mut folder = top.folder(OsStr::new("."))?;
    for name in names {
        folder = folder.folder(name)?;
    }
    Ok(folder)
}
