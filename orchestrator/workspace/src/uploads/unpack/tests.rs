//! Tests of archives that are hostile, or have links.

use std::{fs, os::unix::ffi::OsStrExt as _, path::PathBuf};

use proptest::prelude::*;
use protocol::{JobId, Limits};
use rstest::rstest;
use tar::Header;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{FreeSpace, UploadRegistry};

/// An entry of an archive: its kind, path, link target and content.
type Part<'a> = (EntryType, &'a str, &'a [u8], &'a [u8]);

fn unpack_bytes(bytes: &[u8], gzip: bool, tree: &Path) -> Result<Unpacked, FileError> {
    let uploads = UploadRegistry::new(FreeSpace::new("/tmp".into(), Some(0)));
    let limits = Limits { disk_mb: 1, ..Limits::default() };
    let mut upload = uploads.begin("ada", JobId::generate(), limits, CancellationToken::new()).unwrap();
    unpack(bytes, gzip, &Dir::open(tree).unwrap(), &mut upload)
}

/// Any names, without the checks that `tar` makes.
fn archive(parts: &[Part<'_>]) -> Vec<u8> {
    let mut bytes = vec![];
    for (kind, path, target, content) in parts {
        let mut header = Header::new_gnu();
        header.set_entry_type(*kind);
        header.as_old_mut().name[..path.len()].copy_from_slice(path.as_bytes());
        header.as_old_mut().linkname[..target.len()].copy_from_slice(target);
        header.set_size(content.len() as u64);
        header.set_mode(0o644);
        header.set_mtime(0);
        header.set_cksum();
        bytes.extend_from_slice(header.as_bytes());
        bytes.extend_from_slice(content);
        bytes.resize(bytes.len().next_multiple_of(512), 0);
    }
    bytes.resize(bytes.len() + 1024, 0);
    bytes
}

/// A directory outside of the tree with a file.
struct Outside {
    root: tempfile::TempDir,
    tree: PathBuf,
    dir: PathBuf,
}

impl Outside {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (tree, dir) = (root.path().join("tree"), root.path().join("outside"));
        fs::create_dir(&tree).unwrap();
        fs::create_dir_all(dir.join("sub")).unwrap();
        fs::write(dir.join("passwd"), "root").unwrap();
        Self { root, tree, dir }
    }

    fn assert_is_unchanged(&self) {
        let names = |dir: &Path| {
            let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|entry| entry.unwrap().file_name()).collect();
            names.sort();
            names
        };
        assert_eq!(names(self.root.path()), ["outside", "tree"]);
        assert_eq!(names(&self.dir), ["passwd", "sub"]);
        assert_eq!(names(&self.dir.join("sub")), Vec::<std::ffi::OsString>::new());
        assert_eq!(fs::read_to_string(self.dir.join("passwd")).unwrap(), "root");
        let mode = std::os::unix::fs::MetadataExt::mode(&fs::metadata(&self.dir).unwrap());
        assert_ne!(mode & 0o777, 0o644, "the mode of an entry");
    }
}

const FILE: EntryType = EntryType::Regular;

// Archives that write through a link which they contain: composefs/tar-rs#129, mholt/archiver#69.
#[rstest]
#[case::file(FILE, "l/x", b"")]
#[case::existing_file(FILE, "l/passwd", b"")]
#[case::file_below_a_directory(FILE, "l/sub/x", b"")]
#[case::directory(EntryType::Directory, "l/d/", b"")]
#[case::the_directory_itself(EntryType::Directory, "l/", b"")]
#[case::link(EntryType::Symlink, "l/x", b"/etc")]
#[case::hard_link_into_it(EntryType::Link, "l/x", b"good")]
#[case::hard_link_out_of_it(EntryType::Link, "h", b"l/passwd")]
#[case::hard_link_to_the_link(EntryType::Link, "h", b"l")]
#[case::hard_link_by_absolute_path(EntryType::Link, "h", b"/etc/passwd")]
#[case::hard_link_to_a_parent(EntryType::Link, "h", b"../outside/passwd")]
fn nothing_is_reached_through_a_link_of_the_same_archive(
    #[case] kind: EntryType,
    #[case] path: &str,
    #[case] link: &[u8],
    #[values(false, true)] is_absolute: bool,
) {
    let outside = Outside::new();
    let target = if is_absolute { outside.dir.as_os_str().as_bytes() } else { b"../outside" };
    let content: &[u8] = if kind == FILE { b"x" } else { b"" };
    let parts = [(FILE, "good", b"".as_slice(), b"g".as_slice()), (EntryType::Symlink, "l", target, b"")];
    let bytes = archive(&[parts[0], parts[1], (kind, path, link, content)]);
    match unpack_bytes(&bytes, false, &outside.tree) {
        Err(FileError::RejectedEntry { entry, .. }) => assert_eq!(entry, path),
        other => panic!("{other:?}"),
    }
    outside.assert_is_unchanged();
}

#[test]
fn a_later_entry_replaces_a_link_and_not_what_it_names() {
    let outside = Outside::new();
    let target = outside.dir.join("passwd");
    let target = target.as_os_str().as_bytes();
    let bytes = archive(&[
        (EntryType::Symlink, "l", target, b""),
        (FILE, "l", b"", b"new"),
        (EntryType::Symlink, "m", target, b""),
        (EntryType::Symlink, "m", b"..", b""),
    ]);
    unpack_bytes(&bytes, false, &outside.tree).unwrap();
    assert!(fs::symlink_metadata(outside.tree.join("l")).unwrap().is_file());
    assert_eq!(fs::read_link(outside.tree.join("m")).unwrap(), Path::new(".."));
    outside.assert_is_unchanged();
}

#[rstest]
#[case::empty(b"".to_vec())]
#[case::longer_than_a_path(vec![b'l'; 4096])]
fn a_link_that_cannot_exist_is_refused(#[case] target: Vec<u8>) {
    let tree = tempfile::tempdir().unwrap();
    let name = [target.as_slice(), b"\0"].concat();
    let link = archive(&[(EntryType::GNULongLink, "l", b"", &name), (EntryType::Symlink, "l", b"", b"")]);
    match unpack_bytes(&link, false, tree.path()) {
        Err(FileError::RejectedEntry { entry, .. }) => assert_eq!(entry, "l"),
        other => panic!("{other:?}"),
    }
}

proptest! {
    #[test]
    fn arbitrary_bytes_are_unpacked_or_rejected(bytes in prop::collection::vec(any::<u8>(), 0..2048), gzip in any::<bool>()) {
        let root = tempfile::tempdir().unwrap();
        // No panic and no endless loop.
        let _ = unpack_bytes(&bytes, gzip, root.path());
    }
}
