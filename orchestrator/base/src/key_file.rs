//! Keys in files: created once, private to their owner, replaced atomically.
//!
//! Owns how such a file is created, read and replaced. Never knows what a key is for.

use std::{
    fs::{self, File, OpenOptions},
    io::{self, Write},
    os::unix::fs::{OpenOptionsExt, PermissionsExt},
    path::Path,
};

use secrecy::zeroize::Zeroizing;

/// Only the orchestrator's user may read a key.
const FILE_MODE: u32 = 0o600;
/// Permissions of the group and of others.
const OTHERS_BITS: u32 = 0o077;

/// The text of the key at `path`, without the white space at its end; `None` if there is no file. A file that other
/// users can access is made private first.
pub fn read(path: &Path) -> io::Result<Option<Zeroizing<String>>> {
    match restrict(path) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(None),
        restricted => restricted?,
    }
    let text = Zeroizing::new(fs::read_to_string(path)?);
    Ok(Some(Zeroizing::new(text.trim_end().to_owned())))
}

/// Like [`read`]; creates the file with `text` if there is none. Its directory must exist. If two processes do this at
/// once one wins, and a partial key is never read.
pub fn read_or_create(path: &Path, text: impl FnOnce() -> Zeroizing<String>) -> io::Result<Zeroizing<String>> {
    if let Some(text) = read(path)? {
        return Ok(text);
    }
    let draft = path.with_extension(format!("key.{:016x}", rand::random::<u64>()));
    let linked = write_new(&draft, &text()).and_then(|()| match fs::hard_link(&draft, path) {
        Err(error) if error.kind() == io::ErrorKind::AlreadyExists => Ok(()),
        linked => linked,
    });
    remove(&draft)?;
    linked?;
    sync_directory(path)?;
    read(path)?.ok_or_else(|| io::ErrorKind::NotFound.into())
}

/// Writes a key to a new file and returns when it is on the disk. Replaces what an interrupted process may have left
/// there.
pub fn write(path: &Path, text: &str) -> io::Result<()> {
    remove(path)?;
    write_new(path, text)?;
    sync_directory(path)
}

/// Renames the key at `from` to `to`, which it replaces, and returns when that is on the disk. Both are in one
/// directory.
pub fn rename(from: &Path, to: &Path) -> io::Result<()> {
    fs::rename(from, to)?;
    sync_directory(to)
}

pub fn remove(path: &Path) -> io::Result<()> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
        _ => Ok(()),
    }
}

fn write_new(path: &Path, text: &str) -> io::Result<()> {
    let mut file = OpenOptions::new().write(true).create_new(true).mode(FILE_MODE).open(path)?;
    file.write_all(text.as_bytes())?;
    file.sync_all()
}

/// A name in a directory is lost in a power cut until the directory itself is on the disk.
fn sync_directory(path: &Path) -> io::Result<()> {
    path.parent().map_or(Ok(()), |directory| File::open(directory)?.sync_all())
}

/// Takes the file away from other users.
fn restrict(path: &Path) -> io::Result<()> {
    let mut permissions = fs::metadata(path)?.permissions();
    if permissions.mode() & OTHERS_BITS == 0 {
        return Ok(());
    }
    permissions.set_mode(FILE_MODE);
    fs::set_permissions(path, permissions)?;
    let path = path.display().to_string();
    tracing::warn!(
        path,
        "the key was accessible to other users; its mode is now 0600. Replace it if they may have read it"
    );
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn text(text: &str) -> Zeroizing<String> {
        Zeroizing::new(text.to_owned())
    }

    fn mode(path: &Path) -> u32 {
        fs::metadata(path).unwrap().permissions().mode() & 0o777
    }

    #[test]
    fn a_key_is_created_once_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.key");
        assert_eq!(read(&path).unwrap(), None);
        assert_eq!(*read_or_create(&path, || text("first")).unwrap(), "first");
        assert_eq!(*read_or_create(&path, || text("second")).unwrap(), "first");
        assert_eq!(mode(&path), 0o600);
        assert_eq!(fs::read_dir(directory.path()).unwrap().count(), 1, "no draft is left");
    }

    #[test]
    fn a_key_that_others_can_read_is_made_private_and_its_line_break_ignored() {
        let directory = tempfile::tempdir().unwrap();
        let path = directory.path().join("a.key");
        fs::write(&path, "from elsewhere\r\n").unwrap();
        fs::set_permissions(&path, fs::Permissions::from_mode(0o644)).unwrap();
        assert_eq!(read(&path).unwrap(), Some(text("from elsewhere")));
        assert_eq!(mode(&path), 0o600);
    }

    #[test]
    fn a_written_key_replaces_what_is_there_and_is_private() {
        let directory = tempfile::tempdir().unwrap();
        let (path, next) = (directory.path().join("a.key"), directory.path().join("a.key.next"));
        fs::write(&path, "old").unwrap();
        fs::write(&next, "half a k").unwrap();
        write(&next, "new").unwrap();
        assert_eq!(mode(&next), 0o600);
        rename(&next, &path).unwrap();
        assert_eq!((read(&path).unwrap(), next.exists()), (Some(text("new")), false));
        remove(&path).unwrap();
        remove(&path).unwrap();
    }
}
