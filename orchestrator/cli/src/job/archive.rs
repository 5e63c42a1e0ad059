//! Directories of the command line's user as tar archives: packed for an upload, and unpacked from a download.
//!
//! Contains regular files, directories and symbolic links as such. Never follows a link below the directory; special
//! files are counted and left out. Never used for workspaces.

use std::{
    fs,
    io::{self, Read, Write},
    path::Path,
};

use tar::{Builder, EntryType, Header, HeaderMode};

pub(crate) use crate::unix::unpack_directory;

/// What was packed or unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ArchiveCounts {
    /// Regular files, directories and symbolic links.
    pub(crate) entries: u64,
    /// Content, in bytes.
    pub(crate) size_bytes: u64,
    /// Special files, and entries of an archive that cannot be unpacked below the directory.
    pub(crate) skipped: u64,
}

/// Writes the content of a directory to a tar archive, below `prefix`.
pub(crate) fn pack_directory(directory: &Path, prefix: &Path, out: impl Write) -> io::Result<ArchiveCounts> {
    let mut builder = Builder::new(out);
    let mut counts = ArchiveCounts::default();
    pack(&mut builder, directory, prefix, &mut counts)?;
    builder.into_inner()?.flush()?;
    Ok(counts)
}

fn pack(
    builder: &mut Builder<impl Write>,
    directory: &Path,
    prefix: &Path,
    counts: &mut ArchiveCounts,
) -> io::Result<()> {
    let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", directory.display()));
    let mut names = fs::read_dir(directory)
        .and_then(|entries| entries.map(|entry| Ok(entry?.file_name())).collect::<io::Result<Vec<_>>>())
        .map_err(failed)?;
    names.sort();
    for name in names {
        let (local, remote) = (directory.join(&name), prefix.join(&name));
        let failed = |error: io::Error| io::Error::new(error.kind(), format!("{}: {error}", local.display()));
        let metadata = fs::symlink_metadata(&local).map_err(failed)?;
        let mut header = Header::new_gnu();
        // No users and times of this machine.
        header.set_metadata_in_mode(&metadata, HeaderMode::Deterministic);
        if metadata.is_dir() {
            append(builder, &mut header, (&remote, Path::new("")), io::empty()).map_err(failed)?;
            counts.entries += 1;
            pack(builder, &local, &remote, counts)?;
        } else if metadata.is_file() {
            let file = fs::File::open(&local).map_err(failed)?;
            let size = file.metadata().map_err(failed)?.len();
            header.set_size(size);
            append(builder, &mut header, (&remote, Path::new("")), file.take(size)).map_err(failed)?;
            counts.entries += 1;
            counts.size_bytes += size;
        } else if metadata.is_symlink() {
            let target = fs::read_link(&local).map_err(failed)?;
            header.set_size(0);
            append(builder, &mut header, (&remote, &target), io::empty()).map_err(failed)?;
            counts.entries += 1;
        } else {
            counts.skipped += 1;
        }
    }
    Ok(())
}

/// Appends an entry with the bytes of its path and of a link's target, which [`Builder`] would normalize or refuse.
fn append(
    builder: &mut Builder<impl Write>,
    header: &mut Header,
    (path, target): (&Path, &Path),
    content: impl Read,
) -> io::Result<()> {
    let old = header.as_old_mut();
    for (field, kind, text) in [
        (&mut old.name, EntryType::GNULongName, path.as_os_str().as_encoded_bytes()),
        (&mut old.linkname, EntryType::GNULongLink, target.as_os_str().as_encoded_bytes()),
    ] {
        let shown = &text[..text.len().min(field.len())];
        field[..shown.len()].copy_from_slice(shown);
        if shown.len() < text.len() {
            // Too long for the header: a GNU extension entry has it, ended by a NUL.
            let mut long = Header::new_gnu();
            long.set_entry_type(kind);
            long.set_size(text.len() as u64 + 1);
            long.set_cksum();
            builder.append(&long, [text, b"\0"].concat().as_slice())?;
        }
    }
    header.set_cksum();
    builder.append(header, content)
}

#[cfg(test)]
mod tests;
