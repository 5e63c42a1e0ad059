//! The size of archives.

use std::{fs, os::unix::fs::symlink, path::Path};

use rstest::rstest;

use super::*;

fn archive(top: &Path, max_bytes: u64) -> Result<Vec<u8>, FileError> {
    let quota = Quota { bytes: max_bytes / SIZE_FACTOR, entries: 1000 };
    let mut stream = TarStream::new(Dir::open(top)?, quota, &Cutoff::default())?;
    let mut bytes = vec![];
    while let Some(chunk) = stream.next_chunk(Cutoff::default())? {
        bytes.extend(chunk);
    }
    Ok(bytes)
}

#[rstest]
#[case::empty_files(|top: &Path| (0..50).for_each(|n| fs::write(top.join(n.to_string()), "").unwrap()))]
#[case::name_that_fits_into_a_header(|top: &Path| fs::write(top.join("n".repeat(100)), "x").unwrap())]
#[case::long_names(|top: &Path| ["n", "m"].iter().for_each(|n| fs::write(top.join(n.repeat(101)), "x").unwrap()))]
#[case::directories(|top: &Path| fs::create_dir_all(top.join("d".repeat(99)).join("e".repeat(200)).join("f")).unwrap())]
#[case::links(|top: &Path| [1, 100, 101, 512, 4000].iter().for_each(|n| symlink("t".repeat(*n), top.join(n.to_string())).unwrap()))]
#[case::contents(|top: &Path| [1, 511, 512, 513].iter().for_each(|n| fs::write(top.join(n.to_string()), vec![7; *n]).unwrap()))]
fn headers_names_and_padding_count(#[case] fill: fn(&Path)) {
    let top = tempfile::tempdir().unwrap();
    fill(top.path());
    let size = archive(top.path(), u64::MAX).unwrap().len() as u64 - 2 * TAR_BLOCK_BYTES as u64;
    assert_eq!(archive(top.path(), size).unwrap().len() as u64, size + 2 * TAR_BLOCK_BYTES as u64);
    assert!(matches!(archive(top.path(), size - SIZE_FACTOR), Err(FileError::TooLarge(_))));
}

#[test]
fn an_archive_that_grows_while_it_is_sent_ends_at_the_limit() {
    let top = tempfile::tempdir().unwrap();
    fs::write(top.path().join("a"), "").unwrap();
    let quota = Quota { bytes: 2 * TAR_BLOCK_BYTES as u64 / SIZE_FACTOR, entries: 1000 };
    let mut stream = TarStream::new(Dir::open(top.path()).unwrap(), quota, &Cutoff::default()).unwrap();
    for name in ["b", "c"] {
        fs::write(top.path().join(name), "").unwrap();
    }
    assert!(matches!(stream.next_chunk(Cutoff::default()), Err(FileError::TooLarge(_))));
}

#[test]
fn the_size_of_an_entry_never_overflows() {
    assert_eq!(entry_bytes(u64::MAX, u64::MAX, u64::MAX), u64::MAX);
}
