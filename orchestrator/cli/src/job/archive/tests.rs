//! Archives of directories, in both directions.

use std::{
    collections::BTreeMap,
    ffi::OsStr,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, PermissionsExt as _, symlink},
        net::UnixListener,
    },
};

use tar::Archive;

use super::*;

/// Links as people and package managers make them.
const TARGETS: [&[u8]; 7] =
    [b"/usr/bin/python3", b"a/one.txt", b"..", b"../../../x", b"caf\xe9", b"//a///", &[b'l'; 4000]];

fn mode(path: &Path) -> u32 {
    fs::symlink_metadata(path).unwrap().permissions().mode() & 0o7777
}

/// An archive with headers that [`Builder`] would not make. Regular files have one byte.
fn archive(entries: &[(EntryType, &str, u32, &str)]) -> Vec<u8> {
    let mut builder = Builder::new(Vec::new());
    for (kind, path, mode, target) in entries {
        let mut header = Header::new_old();
        header.as_mut_bytes()[..path.len()].copy_from_slice(path.as_bytes());
        header.set_entry_type(*kind);
        header.set_mode(*mode);
        header.set_size(u64::from(kind.is_file()));
        header.set_link_name_literal(target).unwrap();
        header.set_cksum();
        let content: &[u8] = if kind.is_file() { b"x" } else { b"" };
        builder.append(&header, content).unwrap();
    }
    builder.into_inner().unwrap()
}

#[test]
fn a_directory_comes_back_as_it_was_without_special_files() {
    let directory = tempfile::tempdir().unwrap();
    let source = directory.path().join("source");
    fs::create_dir_all(source.join("a/empty")).unwrap();
    fs::write(source.join("a/one.txt"), "one").unwrap();
    fs::write(source.join("two.txt"), "2").unwrap();
    let long = "n".repeat(200);
    for (n, target) in TARGETS.iter().enumerate() {
        symlink(OsStr::from_bytes(target), source.join(format!("a/{n}-{long}"))).unwrap();
    }
    let _socket = UnixListener::bind(source.join("socket")).unwrap();
    let mut archive = Vec::new();
    let packed = pack_directory(&source, Path::new("in"), &mut archive).unwrap();
    assert_eq!(packed, ArchiveCounts { entries: 11, size_bytes: 4, skipped: 1 });

    let target = directory.path().join("target");
    let unpacked = unpack_directory(archive.as_slice(), &target).unwrap();
    assert_eq!(unpacked, ArchiveCounts { entries: 11, size_bytes: 4, skipped: 0 });
    assert_eq!(fs::read_to_string(target.join("in/a/one.txt")).unwrap(), "one");
    assert!(target.join("in/a/empty").is_dir() && !target.join("in/socket").exists());
    for (n, link) in TARGETS.iter().enumerate() {
        let read = fs::read_link(target.join(format!("in/a/{n}-{long}"))).unwrap();
        assert_eq!(read.as_os_str().as_bytes(), *link);
    }
}

// Long names of other bytes have an extension entry whose header shows the part that is text.
#[cfg(target_os = "linux")]
#[test]
fn names_that_are_not_plain_text_come_back_as_they_were() {
    let long = [0xff; 255];
    let names: [&[u8]; 6] = [b"caf\xe9.txt", br"dev-disk-by\x2dlabel.device", b"a\nb", b"\x1b[31m", b"C:", &long];
    let directory = tempfile::tempdir().unwrap();
    let (source, target) = (directory.path().join("source"), directory.path().join("target"));
    for name in names {
        fs::create_dir_all(source.join(OsStr::from_bytes(name))).unwrap();
        fs::write(source.join(OsStr::from_bytes(name)).join(OsStr::from_bytes(name)), "1").unwrap();
    }
    let mut archive = Vec::new();
    let packed = pack_directory(&source, Path::new(""), &mut archive).unwrap();
    let unpacked = unpack_directory(archive.as_slice(), &target).unwrap();
    assert_eq!((packed, unpacked), (unpacked, ArchiveCounts { entries: 12, size_bytes: 6, skipped: 0 }));
    for name in names.map(OsStr::from_bytes) {
        assert!(target.join(name).join(name).is_file(), "{}", name.display());
    }
}

#[test]
fn a_file_with_holes_is_packed_with_zeros() {
    let directory = tempfile::tempdir().unwrap();
    let file = fs::File::create(directory.path().join("holes")).unwrap();
    file.set_len(1 << 20).unwrap();
    file.write_all_at(b"x", 1 << 19).unwrap();
    let mut archive = Vec::new();
    pack_directory(directory.path(), Path::new(""), &mut archive).unwrap();
    let mut archive = Archive::new(archive.as_slice());
    let mut entry = archive.entries().unwrap().next().unwrap().unwrap();
    assert_eq!(entry.header().entry_type(), EntryType::Regular);
    let mut content = Vec::new();
    entry.read_to_end(&mut content).unwrap();
    assert_eq!((content.len(), content[1 << 19]), (1 << 20, b'x'));
}

/// Without root, a directory that is read-only before it has its files cannot be filled.
#[test]
fn directories_have_their_modes_after_their_content() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    let (file, dir, link) = (EntryType::Regular, EntryType::Directory, EntryType::Symlink);
    let archive = archive(&[
        (dir, "a/", 0o555, ""),
        (file, "a/x", 0o400, ""),
        (dir, "a/b/", 0o2500, ""),
        (link, "a/b/link", 0o777, "/"),
        (file, "a/y", 0o4755, ""),
        (file, "z", 0o640, ""),
        (dir, "none/", 0o000, ""),
    ]);
    let counts = unpack_directory(archive.as_slice(), &target).unwrap();
    assert_eq!(counts, ArchiveCounts { entries: 7, size_bytes: 3, skipped: 0 });
    let modes = ["none", "a", "a/x", "a/b", "a/y", "z"].map(|path| mode(&target.join(path)));
    assert_eq!(modes, [0o000, 0o555, 0o400, 0o500, 0o755, 0o640]);
    for path in ["a", "a/b"] {
        fs::set_permissions(target.join(path), fs::Permissions::from_mode(0o755)).unwrap();
    }
}

#[test]
fn nothing_is_written_outside_of_the_target() {
    let directory = tempfile::tempdir().unwrap();
    let target = directory.path().join("target");
    fs::write(directory.path().join("kept"), "kept").unwrap();
    let (file, dir, link) = (EntryType::Regular, EntryType::Directory, EntryType::Symlink);
    let archive = archive(&[
        (file, "../outside", 0o644, ""),
        (file, "/outside", 0o644, ""),
        (dir, "..", 0o777, ""),
        (link, "../outside", 0o777, "x"),
        (EntryType::Link, "hard", 0o644, "../kept"),
        (link, "up", 0o777, ".."),
        (file, "up/outside", 0o644, ""),
        (dir, "up/outside", 0o755, ""),
        (link, "up/outside", 0o777, "x"),
        (dir, "up/", 0o777, ""),
        (link, "file", 0o777, "../kept"),
        (file, "file", 0o644, ""),
        (dir, "d/", 0o755, ""),
        (link, "d", 0o777, ".."),
        (file, "d/inside", 0o644, ""),
    ]);
    let before = mode(directory.path());
    let counts = unpack_directory(archive.as_slice(), &target).unwrap();
    assert_eq!(counts, ArchiveCounts { entries: 5, size_bytes: 2, skipped: 10 });
    let names = |path: &Path| {
        let names = fs::read_dir(path).unwrap().map(|entry| entry.unwrap().file_name().into_string().unwrap());
        let kinds = names.map(|name| (name.clone(), fs::symlink_metadata(path.join(name)).unwrap().is_symlink()));
        kinds.collect::<BTreeMap<_, _>>()
    };
    let expected = |names: &[(&str, bool)]| {
        names.iter().map(|(name, is_link)| ((*name).to_owned(), *is_link)).collect::<BTreeMap<_, _>>()
    };
    assert_eq!(names(directory.path()), expected(&[("kept", false), ("target", false)]));
    assert_eq!(names(&target), expected(&[("d", false), ("file", false), ("up", true)]));
    assert_eq!(names(&target.join("d")), expected(&[("inside", false)]));
    assert_eq!(fs::read(directory.path().join("kept")).unwrap(), b"kept");
    assert_eq!(mode(directory.path()), before);
}

#[test]
fn an_archive_that_is_cut_is_an_error() {
    let directory = tempfile::tempdir().unwrap();
    let archive = archive(&[(EntryType::Regular, "a", 0o644, "")]);
    let error = unpack_directory(&archive[..512], directory.path()).unwrap_err();
    assert_eq!(error.kind(), io::ErrorKind::UnexpectedEof);
}
