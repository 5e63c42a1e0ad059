//! Copies of files that keep their holes.

use std::{
    fs::File,
    io::{self, Read as _, Seek as _},
};

use rustix::{fs::SeekFrom, io::Errno};

use super::FileError;

/// Copies the first `size` bytes of a file to an empty one. Calls `reserve` with the number of bytes before they are
/// written; holes are not written. A source that is shorter than `size` is continued with a hole.
pub(super) fn copy_sparse(
    mut from: &File,
    mut to: &File,
    size: u64,
    mut reserve: impl FnMut(u64) -> Result<(), FileError>,
) -> Result<(), FileError> {
    let mut end = 0;
    while let Some(start) = seek(from, SeekFrom::Data(end))?.filter(|start| *start < size) {
        // Truncated since the line above: there is nothing to read.
        let Some(hole) = seek(from, SeekFrom::Hole(start))? else { break };
        end = hole.min(size);
        let length = end.saturating_sub(start);
        reserve(length)?;
        from.seek(io::SeekFrom::Start(start))?;
        to.seek(io::SeekFrom::Start(start))?;
        io::copy(&mut from.take(length), &mut to)?;
        if end == size {
            break;
        }
    }
    Ok(to.set_len(size)?)
}

/// The next data or hole; none at the end of the file.
fn seek(file: &File, position: SeekFrom) -> io::Result<Option<u64>> {
    match rustix::fs::seek(file, position) {
        Ok(offset) => Ok(Some(offset)),
        Err(Errno::NXIO) => Ok(None),
        Err(error) => Err(error.into()),
    }
}
