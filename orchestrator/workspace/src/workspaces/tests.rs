//! Tests of copies of whole workspaces, and of links on their way through archives.

use std::{
    ffi::OsStr,
    fs::File,
    os::unix::{
        ffi::OsStrExt as _,
        fs::{FileExt as _, MetadataExt as _, symlink},
    },
};

use proptest::prelude::*;
use protocol::FileMode;
use rstest::rstest;
use tokio_util::sync::CancellationToken;

use super::*;
use crate::{FreeSpace, UploadRegistry, WorkspacePath};

const MB: u64 = 1024 * 1024;

struct Fixture {
    root: tempfile::TempDir,
    workspaces: Workspaces,
    uploads: UploadRegistry,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let workspaces = Workspaces::new(root.path().join("workspaces"));
        let uploads = UploadRegistry::new(FreeSpace::new(root.path().to_owned(), Some(0)));
        Self { root, workspaces, uploads }
    }

    fn job(&self) -> (JobId, PathBuf) {
        let job = JobId::generate();
        self.workspaces.create(job, &[]).unwrap();
        (job, self.workspaces.path(job))
    }

    fn upload(&self, job: JobId, disk_mb: u64) -> Upload {
        let limits = Limits { disk_mb, ..Limits::default() };
        self.uploads.begin("ada", job, limits, CancellationToken::new()).unwrap()
    }

    fn copy(&self, source: JobId, disk_mb: u64) -> Result<PathBuf, FileError> {
        let copy = JobId::generate();
        self.workspaces.copy_from(source, &mut self.upload(copy, disk_mb)).map_err(WorkspaceError::into_source)?;
        Ok(self.workspaces.path(copy))
    }

    fn archive(&self, job: JobId) -> Vec<u8> {
        let top = WorkspacePath::parse_for_list("").unwrap();
        let limits = Limits::default();
        let mut stream = self.workspaces.archive(job, &top, &limits, &CancellationToken::new()).unwrap();
        let mut bytes = vec![];
        while let Some(chunk) = stream.next_chunk(Cutoff::default()).unwrap() {
            bytes.extend(chunk);
        }
        bytes
    }

    /// Uploads an archive to a job.
    fn put_archive(&self, job: JobId, archive: &[u8]) -> Result<(), FileError> {
        let (mut upload, staged) = (self.upload(job, 8), self.workspaces.stage().unwrap());
        let mut body = staged.create_body_file().unwrap();
        body.write_all(archive).unwrap();
        self.workspaces.unpack(&mut upload, body, false, &staged)?;
        self.workspaces.install(&upload, &staged)
    }
}

/// Bytes on disk.
fn allocated(path: &Path) -> u64 {
    fs::symlink_metadata(path).unwrap().blocks() * 512
}

#[rstest]
#[case::regular(FileMode::Regular, 0)]
#[case::executable(FileMode::Executable, 0o111)]
fn an_input_file_has_its_mode(#[case] mode: FileMode, #[case] execute_bits: u32) {
    let fixture = Fixture::new();
    let job = JobId::generate();
    let file = WorkspaceFile { path: "bin/run".to_owned(), content: b"#!/bin/sh\n".to_vec(), mode };
    fixture.workspaces.create(job, &[file]).unwrap();
    let metadata = fs::metadata(fixture.workspaces.path(job).join("bin/run")).unwrap();
    // Without root, all users may write.
    assert_eq!(metadata.mode() & 0o7555, 0o444 | execute_bits);
}

// A link of a Python virtual environment made each copy fail: podman-container-tools/podman#29805.
#[rstest]
#[case::virtual_environment(b"/usr/bin/python3")]
#[case::absolute_in_the_workspace(b"/workspace/a")]
#[case::parent(b"..")]
#[case::above_the_top(b"../../../x")]
#[case::parent_of_a_name(b"a/../../x")]
#[case::not_utf8(b"caf\xe9")]
#[case::several_slashes(b"//a///")]
#[case::long(&[b'l'; 4000])]
fn a_link_is_the_same_after_download_upload_and_restart(#[case] target: &[u8]) {
    let fixture = Fixture::new();
    let target = OsStr::from_bytes(target);
    let (first, path) = fixture.job();
    fs::create_dir_all(path.join(".venv/bin")).unwrap();
    symlink(target, path.join(".venv/bin/python3")).unwrap();
    let archive = fixture.archive(first);

    let (second, path) = fixture.job();
    fixture.put_archive(second, &archive).unwrap();
    assert_eq!(fs::read_link(path.join(".venv/bin/python3")).unwrap(), target, "after an upload");
    let restarted = fixture.copy(second, 1).unwrap();
    assert_eq!(fs::read_link(restarted.join(".venv/bin/python3")).unwrap(), target, "after a restart");
    let restarted = restarted.file_name().unwrap().to_str().unwrap().parse().unwrap();
    let sent = fixture.archive(restarted);
    let mut archive = tar::Archive::new(sent.as_slice());
    let link = archive.entries().unwrap().map(Result::unwrap).find(|entry| entry.header().entry_type().is_symlink());
    assert_eq!(link.unwrap().link_name_bytes().unwrap(), target.as_bytes(), "after a second download");
}

// Unit files of systemd have a backslash in their names: systemd/systemd#13309.
#[rstest]
#[case::not_utf8(b"caf\xe9.txt")]
#[case::backslash(br"dev-disk-by\x2dlabel.device")]
#[case::line_break(b"a\nb")]
#[case::escape(b"\x1b[31m")]
#[case::drive(b"C:")]
#[case::dots(b"...")]
#[case::long_and_not_utf8(&[0xff; 255])]
fn a_name_is_the_same_after_download_and_upload(#[case] name: &[u8]) {
    let fixture = Fixture::new();
    let name = Path::new(OsStr::from_bytes(name));
    let (first, path) = fixture.job();
    fs::create_dir_all(path.join(name).join(name)).unwrap();
    fs::write(path.join(name).join("file"), "1").unwrap();
    fs::write(path.join(name).join(name).join(name), "2").unwrap();

    let (second, path) = fixture.job();
    fixture.put_archive(second, &fixture.archive(first)).unwrap();
    assert_eq!(fs::read_to_string(path.join(name).join("file")).unwrap(), "1");
    assert_eq!(fs::read_to_string(path.join(name).join(name).join(name)).unwrap(), "2");
}

#[test]
fn the_deepest_and_longest_paths_go_in_again() {
    let fixture = Fixture::new();
    let (first, path) = fixture.job();
    let deepest = path.join(["a-name-of-20-letters"; 128].join("/"));
    fs::create_dir_all(&deepest).unwrap();
    fs::write(deepest.join("file"), "1").unwrap();
    let (second, copy) = fixture.job();
    fixture.put_archive(second, &fixture.archive(first)).unwrap();
    assert!(copy.join(deepest.strip_prefix(&path).unwrap()).join("file").is_file());
}

#[test]
fn a_copy_never_reads_through_a_link() {
    let fixture = Fixture::new();
    let outside = fixture.root.path().join("outside");
    fs::create_dir(&outside).unwrap();
    fs::write(outside.join("key"), "not for jobs").unwrap();
    let (job, path) = fixture.job();
    symlink(outside.join("key"), path.join("file")).unwrap();
    symlink(&outside, path.join("dir")).unwrap();
    let copy = fixture.copy(job, 1).unwrap();
    for name in ["file", "dir"] {
        assert!(fs::symlink_metadata(copy.join(name)).unwrap().is_symlink(), "{name}");
    }
    assert!(!fixture.archive(job).windows(12).any(|bytes| bytes == b"not for jobs"));
}

// Copies of files with holes filled the disk: moby/moby#5419, docker/docs#4754.
#[test]
fn holes_are_copied_as_holes_and_do_not_count() {
    let fixture = Fixture::new();
    let (job, path) = fixture.job();
    let size = 800 * MB;
    for name in ["a.img", "b.img"] {
        let file = File::create(path.join(name)).unwrap();
        file.set_len(size).unwrap();
        file.write_all_at(b"in the middle", 400 * MB + 5).unwrap();
    }
    let copy = fixture.copy(job, 1).unwrap();
    for name in ["a.img", "b.img"] {
        let file = File::open(copy.join(name)).unwrap();
        assert_eq!(file.metadata().unwrap().len(), size);
        let used = allocated(&copy.join(name));
        assert!(used <= allocated(&path.join(name)).max(64 * 1024), "{name} uses {used} bytes");
        let mut text = [0; 15];
        file.read_exact_at(&mut text, 400 * MB + 4).unwrap();
        assert_eq!(&text, b"\0in the middle\0");
    }
}

#[test]
fn content_beyond_the_limit_is_not_copied() {
    let fixture = Fixture::new();
    let (job, path) = fixture.job();
    fs::write(path.join("big"), vec![1; usize::try_from(2 * MB).unwrap() + 1]).unwrap();
    assert!(matches!(fixture.copy(job, 1), Err(FileError::TooLarge(_))));
    fixture.copy(job, 2).unwrap();
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(32))]
    #[test]
    fn a_file_with_holes_has_the_same_content_in_its_copy(
        parts in prop::collection::vec((0_u64..100_000, 0_usize..10_000), 0..6), tail in 0_u64..100_000
    ) {
        let fixture = Fixture::new();
        let (job, path) = fixture.job();
        let file = File::create(path.join("f")).unwrap();
        let mut end = 0;
        for (gap, length) in parts {
            file.write_all_at(&vec![7; length], end + gap).unwrap();
            end += gap + length as u64;
        }
        file.set_len(end + tail).unwrap();
        let copy = fixture.copy(job, 8).unwrap();
        prop_assert_eq!(fs::read(copy.join("f")).unwrap(), fs::read(path.join("f")).unwrap());
        prop_assert!(allocated(&copy.join("f")) <= allocated(&path.join("f")));
    }
}

#[test]
fn a_file_whose_name_is_not_utf8_is_listed_with_its_bytes_and_opened_by_them() {
    let fixture = Fixture::new();
    let (job, path) = fixture.job();
    fs::create_dir(path.join(OsStr::from_bytes(b"d\xff"))).unwrap();
    fs::write(path.join(OsStr::from_bytes(b"d\xff/caf\xe9")), "text").unwrap();
    fs::write(path.join("d"), "plain").unwrap();
    let list = |path: &[u8]| {
        let page = fixture.workspaces.list(job, &WorkspacePath::parse_for_list(path).unwrap(), None, 10).unwrap();
        page.entries.into_iter().map(|entry| (entry.path, entry.path_bytes)).collect::<Vec<_>>()
    };
    let shown = |path: &str, bytes: Option<&str>| (path.to_owned(), bytes.map(str::to_owned));
    assert_eq!(list(b""), [shown("d", None), shown("d\u{fffd}", Some("ZP8="))]);
    assert_eq!(list(b"d\xff"), [shown("d\u{fffd}/caf\u{fffd}", Some("ZP8vY2Fm6Q=="))]);

    let wanted = WorkspacePath::parse_for_read(b"d\xff/caf\xe9").unwrap();
    let crate::OpenFile { mut file, entry, .. } = fixture.workspaces.open_file(job, &wanted).unwrap();
    let mut text = String::new();
    io::Read::read_to_string(&mut file, &mut text).unwrap();
    assert_eq!((text.as_str(), entry.path_bytes.as_deref()), ("text", Some("ZP8vY2Fm6Q==")));
}
