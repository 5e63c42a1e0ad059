//! What the headers of an archive say about an entry: extension headers that precede it, and its path.

use std::io::Read;

use tar::{Entry, EntryType, PaxExtensions};

use super::{FileError, read_error};

/// Content of one extension header, such as a long name.
const MAX_EXTENSION_BYTES: u64 = 64 * 1024;
/// Characters of a path in an error.
const MAX_PRINTED_CHARS: usize = 200;

/// The PAX and GNU extension headers before an entry, which override its own header.
#[derive(Default)]
pub(super) struct ExtendedHeader {
    pub(super) path: Option<Vec<u8>>,
    pub(super) link_target: Option<Vec<u8>>,
    /// The size in decimal digits.
    pub(super) size: Option<Vec<u8>>,
    pub(super) is_sparse: bool,
}

impl ExtendedHeader {
    /// Reads an entry that is an extension header; false if it is not one.
    pub(super) fn read_from(&mut self, entry: &mut Entry<'_, impl Read>) -> Result<bool, FileError> {
        match entry.header().entry_type() {
            EntryType::GNULongName => self.path = Some(long_text(entry)?),
            EntryType::GNULongLink => self.link_target = Some(long_text(entry)?),
            EntryType::XHeader => self.apply_pax(&content(entry)?)?,
            // Defaults for all entries, such as a comment; none of them is used.
            EntryType::XGlobalHeader => drop(content(entry)?),
            _ => return Ok(false),
        }
        Ok(true)
    }

    fn apply_pax(&mut self, records: &[u8]) -> Result<(), FileError> {
        for record in PaxExtensions::new(records) {
            let record = record.map_err(|error| read_error(&error))?;
            let value = || Some(record.value_bytes().to_vec());
            match record.key_bytes() {
                b"path" => self.path = value(),
                b"linkpath" => self.link_target = value(),
                b"size" => self.size = value(),
                key if key.starts_with(b"GNU.sparse.") => self.is_sparse = true,
                _ => {}
            }
        }
        Ok(())
    }
}

/// The path of an entry without a leading `./` and a directory's trailing slash; none for the top directory itself.
pub(super) fn entry_path(raw: &[u8], kind: EntryType) -> Option<&[u8]> {
    let mut path = raw;
    while let Some(rest) = path.strip_prefix(b"./") {
        path = rest;
    }
    if !kind.is_dir() {
        return Some(path);
    }
    Some(path.strip_suffix(b"/").unwrap_or(path)).filter(|path| !matches!(*path, b"" | b"."))
}

/// A path for an error message: no control characters, bounded length.
pub(super) fn printable(path: &[u8]) -> String {
    let text = String::from_utf8_lossy(path);
    text.chars().take(MAX_PRINTED_CHARS).map(|c| if c.is_control() { '\u{fffd}' } else { c }).collect()
}

fn content(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, FileError> {
    if entry.size() > MAX_EXTENSION_BYTES {
        let reason = "has an extended header of over 64 KiB";
        return Err(FileError::RejectedEntry { entry: printable(&entry.path_bytes()), reason });
    }
    let mut bytes = vec![];
    entry.read_to_end(&mut bytes).map_err(|error| read_error(&error))?;
    Ok(bytes)
}

/// A long name or link target, without the NULs that end it.
fn long_text(entry: &mut Entry<'_, impl Read>) -> Result<Vec<u8>, FileError> {
    let mut bytes = content(entry)?;
    while bytes.last() == Some(&0) {
        bytes.pop();
    }
    Ok(bytes)
}
