//! Directories of the command line's user as tar archives: packed for an upload, and unpacked from a download.
//!
//! Contains regular files and directories; links and special files are counted and left out, because what a job writes
//! must not lead out of the target. Never used for workspaces.

use std::{
    fs,
    io::{self, Read, Write},
    path::{Component, Path},
};

use tar::{Archive, Builder, EntryType, HeaderMode};

/// What was packed or unpacked.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct ArchiveCounts {
    /// Regular files and directories.
    pub(crate) entries: u64,
    /// Content, in bytes.
    pub(crate) size_bytes: u64,
    /// Links and special files.
    pub(crate) skipped: u64,
}

/// Writes the content of a directory to a tar archive, below `prefix`.
pub(crate) fn pack_directory(directory: &Path, prefix: &Path, out: impl Write) -> io::Result<ArchiveCounts> {
    let mut builder = Builder::new(out);
    // No users and times of this machine.
    builder.mode(HeaderMode::Deterministic);
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
        let kind = fs::symlink_metadata(&local).map_err(failed)?.file_type();
        if kind.is_dir() {
            builder.append_dir(&remote, &local).map_err(failed)?;
            counts.entries += 1;
            pack(builder, &local, &remote, counts)?;
        } else if kind.is_file() {
            let mut file = fs::File::open(&local).map_err(failed)?;
            builder.append_file(&remote, &mut file).map_err(failed)?;
            counts.entries += 1;
            counts.size_bytes += file.metadata().map_err(failed)?.len();
        } else {
            counts.skipped += 1;
        }
    }
    Ok(())
}

/// Unpacks an archive into a directory, which is created. Nothing is written outside of it.
pub(crate) fn unpack_directory(archive: impl Read, target: &Path) -> io::Result<ArchiveCounts> {
    fs::create_dir_all(target)?;
    let mut counts = ArchiveCounts::default();
    let mut archive = Archive::new(archive);
    archive.set_preserve_mtime(false);
    for entry in archive.entries()? {
        let mut entry = entry?;
        let is_plain = matches!(entry.header().entry_type(), EntryType::Regular | EntryType::Directory);
        let is_inside = entry.path()?.components().all(|part| matches!(part, Component::Normal(_) | Component::CurDir));
        if is_plain && is_inside && entry.unpack_in(target)? {
            counts.entries += 1;
            counts.size_bytes += entry.size();
        } else {
            counts.skipped += 1;
        }
    }
    Ok(counts)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_directory_comes_back_as_it_was_without_links() {
        let directory = tempfile::tempdir().unwrap();
        let source = directory.path().join("source");
        fs::create_dir_all(source.join("a/empty")).unwrap();
        fs::write(source.join("a/one.txt"), "one").unwrap();
        fs::write(source.join("two.txt"), "2").unwrap();
        std::os::unix::fs::symlink("/etc", source.join("link")).unwrap();
        let mut archive = Vec::new();
        let packed = pack_directory(&source, Path::new("in"), &mut archive).unwrap();
        assert_eq!(packed, ArchiveCounts { entries: 4, size_bytes: 4, skipped: 1 });

        let target = directory.path().join("target");
        let unpacked = unpack_directory(archive.as_slice(), &target).unwrap();
        assert_eq!(unpacked, ArchiveCounts { entries: 4, size_bytes: 4, skipped: 0 });
        assert_eq!(fs::read_to_string(target.join("in/a/one.txt")).unwrap(), "one");
        assert!(target.join("in/a/empty").is_dir() && !target.join("in/link").exists());
    }

    #[test]
    fn nothing_is_written_outside_of_the_target() {
        let directory = tempfile::tempdir().unwrap();
        let target = directory.path().join("target");
        let mut builder = Builder::new(Vec::new());
        let mut add = |kind: EntryType, path: &str, link: Option<&str>| {
            let mut header = tar::Header::new_old();
            header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
            header.set_entry_type(kind);
            header.set_mode(0o4755);
            header.set_size(u64::from(kind.is_file()));
            if let Some(link) = link {
                header.set_link_name(link).unwrap();
            }
            header.set_cksum();
            let content: &[u8] = if kind.is_file() { b"x" } else { b"" };
            builder.append(&header, content).unwrap();
        };
        add(EntryType::Regular, "../outside", None);
        add(EntryType::Regular, "/outside", None);
        add(EntryType::Symlink, "link", Some(".."));
        add(EntryType::Regular, "link/outside", None);
        let archive = builder.into_inner().unwrap();
        let counts = unpack_directory(archive.as_slice(), &target).unwrap();
        assert_eq!(counts, ArchiveCounts { entries: 1, size_bytes: 1, skipped: 3 });
        assert!(!directory.path().join("outside").exists());
        let mode =
            std::os::unix::fs::PermissionsExt::mode(&fs::metadata(target.join("link/outside")).unwrap().permissions());
        assert_eq!(mode & 0o7000, 0, "no setuid bit");
    }
}
