//! Removal of a directory tree of any depth with a constant number of descriptors.
//!
//! Deep subdirectories are first moved up next to the top, so at most three directories are open at a time. Follows no
//! symbolic link.

use std::{
    ffi::{OsStr, OsString},
    io,
};

use super::Dir;

/// Removes an entry with everything below it.
pub(crate) fn remove_tree(parent: &Dir, name: &OsStr) -> io::Result<()> {
    match parent.unlink(name) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
        other => return other,
    }
    let top = parent.open_dir(name)?;
    let mut moved_dirs = 0_u64;
    loop {
        let mut had_subdirs = false;
        for child in top.names()? {
            let child = child?;
            let Some(dir) = remove_or_open(&top, &child)? else { continue };
            had_subdirs = true;
            for grandchild in dir.names()? {
                let grandchild = grandchild?;
                if remove_or_open(&dir, &grandchild)?.is_some() {
                    move_up(&dir, &grandchild, &top, &mut moved_dirs)?;
                }
            }
            top.remove_dir(&child)?;
        }
        if !had_subdirs {
            break;
        }
    }
    parent.remove_dir(name)
}

/// Moves a directory into `top` under the next free name; the tree may contain any name already.
fn move_up(from: &Dir, name: &OsStr, top: &Dir, moved_dirs: &mut u64) -> io::Result<()> {
    loop {
        *moved_dirs += 1;
        match from.rename(name, top, &OsString::from(format!(".removing-{moved_dirs}"))) {
            Err(error)
                if matches!(
                    error.kind(),
                    io::ErrorKind::NotADirectory | io::ErrorKind::DirectoryNotEmpty | io::ErrorKind::AlreadyExists
                ) => {}
            other => return other,
        }
    }
}

/// Removes a file, a link or an empty directory; opens a directory that is not empty instead.
fn remove_or_open(parent: &Dir, name: &OsStr) -> io::Result<Option<Dir>> {
    match parent.unlink(name) {
        Err(error) if error.kind() == io::ErrorKind::IsADirectory => {}
        other => return other.map(|()| None),
    }
    match parent.remove_dir(name) {
        Err(error) if error.kind() == io::ErrorKind::DirectoryNotEmpty => parent.open_dir(name).map(Some),
        other => other.map(|()| None),
    }
}

#[cfg(test)]
mod tests {
    use std::{fs, os::unix::fs::symlink};

    use super::*;

    #[test]
    fn a_deep_tree_with_any_names_is_removed_and_nothing_else() {
        let root = tempfile::tempdir().unwrap();
        fs::write(root.path().join("kept"), "").unwrap();
        let tree = root.path().join("tree");
        fs::create_dir_all(tree.join(".removing-1/x/.removing-3/y")).unwrap();
        fs::write(tree.join(".removing-2"), "").unwrap();
        fs::create_dir_all(tree.join("a/".repeat(1500))).unwrap();
        fs::create_dir_all(tree.join("b/c/d")).unwrap();
        symlink(root.path(), tree.join("b/c/up")).unwrap();
        remove_tree(&Dir::open(root.path()).unwrap(), "tree".as_ref()).unwrap();
        let left: Vec<_> = fs::read_dir(root.path()).unwrap().map(|entry| entry.unwrap().file_name()).collect();
        assert_eq!(left, ["kept"]);
    }
}
