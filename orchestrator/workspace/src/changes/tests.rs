//! Changes of a workspace on real files.

use std::{fs, os::unix::fs::symlink};

use rustix::fs::{Mode, OFlags};

use FileChangeKind::{Added, Deleted, Modified};

use super::*;
use crate::baseline;

struct Fixture {
    root: tempfile::TempDir,
    workspaces: Workspaces,
    job: JobId,
}

impl Fixture {
    fn new() -> Self {
        let root = tempfile::tempdir().unwrap();
        let (workspaces, job) = (Workspaces::new(root.path().join("w")), JobId::nil());
        workspaces.create(job, &[]).unwrap();
        Self { root, workspaces, job }
    }

    fn write(&self, name: &str, content: impl AsRef<[u8]>) {
        let path = self.workspaces.path(self.job).join(name);
        fs::create_dir_all(path.parent().unwrap()).unwrap();
        fs::write(path, content).unwrap();
    }

    fn changes(&self) -> FileChanges {
        self.changes_within("")
    }

    fn changes_within(&self, path: &str) -> FileChanges {
        let path = WorkspacePath::parse_for_list(path).unwrap();
        let compared = self.workspaces.changes(self.job, &path, &CancellationToken::new()).unwrap();
        assert!(compared.is_in_time);
        compared.changes
    }

    /// Path, kind, and the diff or why there is none.
    fn shown(&self) -> Vec<(String, FileChangeKind, String)> {
        let changes = self.changes();
        assert!(!changes.truncated);
        let why = |item: &FileChange| format!("{:?}", item.diff_omitted.expect("a diff or a reason"));
        changes
            .items
            .iter()
            .map(|item| (item.path.clone(), item.change, item.diff.clone().unwrap_or_else(|| why(item))))
            .collect()
    }
}

#[test]
fn every_kind_of_change_is_shown_with_its_lines() {
    let fixture = Fixture::new();
    for name in ["kept", "src/changed", "gone", "touched"] {
        fixture.write(name, "one\ntwo\n");
    }
    fixture.write("binary", [0, 1, 2]);
    fixture.write("large", "x".repeat(300_000));
    symlink("kept", fixture.workspaces.path(fixture.job).join("link")).unwrap();
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    assert_eq!(fixture.shown(), []);

    fixture.write("src/changed", "one\n2\n");
    fixture.write("new", "hello");
    fixture.write("touched", "one\ntwo\n");
    fixture.write("binary", [0, 1, 3]);
    fixture.write("large", "y".repeat(300_000));
    let workspace = fixture.workspaces.path(fixture.job);
    fs::remove_file(workspace.join("gone")).unwrap();
    fs::remove_file(workspace.join("link")).unwrap();
    symlink("new", workspace.join("link")).unwrap();
    let expected = [
        ("binary", Modified, "Binary"),
        ("gone", Deleted, "--- a/gone\n+++ /dev/null\n@@ -1,2 +0,0 @@\n-one\n-two\n"),
        ("large", Modified, "TooLarge"),
        (
            "link",
            Modified,
            "--- a/link\n+++ b/link\n@@ -1 +1 @@\n-kept\n\\ No newline at end of file\n+new\n\\ No newline at end of file\n",
        ),
        ("new", Added, "--- /dev/null\n+++ b/new\n@@ -0,0 +1 @@\n+hello\n\\ No newline at end of file\n"),
        ("src/changed", Modified, "--- a/src/changed\n+++ b/src/changed\n@@ -1,2 +1,2 @@\n one\n-two\n+2\n"),
    ];
    assert_eq!(fixture.shown(), expected.map(|(path, kind, diff)| (path.to_owned(), kind, diff.to_owned())));
    let sizes: Vec<_> =
        fixture.changes().items.iter().map(|item| (item.previous_size_bytes, item.size_bytes)).collect();
    assert_eq!((sizes[1], sizes[4]), ((Some(8), None), (None, Some(5))));
}

#[test]
fn an_empty_workspace_has_no_baseline_file_and_removal_leaves_nothing() {
    let fixture = Fixture::new();
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    let beside = || fs::read_dir(fixture.root.path().join("w")).unwrap().count();
    assert_eq!(beside(), 1, "only the workspace");
    fixture.write("a", "1\n");
    assert_eq!(fixture.shown().len(), 1);
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    assert_eq!((beside(), fixture.shown()), (2, vec![]));
    assert_eq!(fixture.workspaces.jobs().unwrap(), [fixture.job]);
    fs::write(fixture.workspaces.path(fixture.job).with_extension("partial"), "cut short").unwrap();
    assert!(fixture.workspaces.remove(fixture.job));
    assert_eq!(beside(), 0);
}

#[test]
fn links_lead_nowhere_and_a_directory_in_place_of_a_file_is_a_deletion() {
    let fixture = Fixture::new();
    let outside = fixture.root.path().join("outside");
    fs::write(&outside, "secret\n").unwrap();
    fixture.write("a", "1\n");
    fixture.write("d/b", "2\n");
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    let workspace = fixture.workspaces.path(fixture.job);
    fs::remove_file(workspace.join("a")).unwrap();
    symlink(&outside, workspace.join("a")).unwrap();
    fs::remove_file(workspace.join("d/b")).unwrap();
    fs::create_dir(workspace.join("d/b")).unwrap();
    let shown = fixture.shown();
    assert_eq!((shown[0].1, shown[1].1), (FileChangeKind::Modified, FileChangeKind::Deleted));
    assert!(shown[0].2.contains("+/") && !shown[0].2.contains("secret"), "{shown:?}");
}

#[test]
fn answers_are_bounded() {
    let fixture = Fixture::new();
    for n in 0..MAX_ITEMS + 5 {
        fixture.write(&format!("{n:05}"), "x\n".repeat(1_000));
    }
    let changes = fixture.changes();
    assert_eq!((changes.items.len(), changes.truncated, changes.left_out), (MAX_ITEMS, true, 5));
    let diffs: usize = changes.items.iter().filter_map(|item| item.diff.as_ref()).map(String::len).sum();
    assert!((MAX_DIFFS_BYTES / 2..=MAX_DIFFS_BYTES).contains(&diffs), "{diffs}");
    assert_eq!(changes.items[MAX_ITEMS - 1].diff_omitted, Some(DiffOmitted::TooLarge));
}

#[test]
fn changes_of_a_directory_or_a_file_are_shown_alone() {
    let fixture = Fixture::new();
    for name in ["src/a", "src/sub/b", "src.txt", "src2/c", "other"] {
        fixture.write(name, "1\n");
    }
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    for name in ["src/a", "src.txt", "src2/c", "other"] {
        fixture.write(name, "2\n");
    }
    let workspace = fixture.workspaces.path(fixture.job);
    fs::remove_dir_all(workspace.join("src/sub")).unwrap();
    symlink("/etc", workspace.join("link")).unwrap();
    let paths = |path| fixture.changes_within(path).items.into_iter().map(|item| item.path).collect::<Vec<_>>();
    assert_eq!(paths("src"), ["src/a", "src/sub/b"]);
    assert_eq!(paths("src/"), ["src/a", "src/sub/b"]);
    assert_eq!(paths("src/sub"), ["src/sub/b"], "of a directory that is gone");
    assert_eq!(paths("src/a"), ["src/a"]);
    assert_eq!(paths("src.txt"), ["src.txt"]);
    assert_eq!(paths("link"), ["link"]);
    for nothing in ["missing", "link/passwd", "other/x"] {
        assert_eq!(paths(nothing), [""; 0], "{nothing}");
    }
}

/// Empty files below nested directories, whose paths have `total` bytes together. Returns the innermost directory.
fn fill_with_paths(workspace: &Path, depth: usize, total: u64) -> rustix::fd::OwnedFd {
    let (name, parents) = ("d".repeat(255), 256 * depth);
    let mut dir = rustix::fs::open(workspace, OFlags::DIRECTORY, Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&dir, &name, Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, &name, OFlags::DIRECTORY, Mode::empty()).unwrap();
    }
    let total = usize::try_from(total).unwrap();
    let count = total / parents - 1;
    let names = total - count * parents;
    for n in 0..count {
        let length = names / count + usize::from(n < names % count);
        touch(&dir, &format!("{n:0>length$}"));
    }
    dir
}

fn touch(dir: &rustix::fd::OwnedFd, name: &str) {
    rustix::fs::openat(dir, name, OFlags::CREATE | OFlags::WRONLY, Mode::RUSR).unwrap();
}

#[test]
fn the_paths_of_a_comparison_are_bounded() {
    let fixture = Fixture::new();
    let dir = fill_with_paths(&fixture.workspaces.path(fixture.job), 128, MAX_PATHS_BYTES);
    let found = || {
        let top = fixture.workspaces.open(fixture.job).unwrap();
        let (found, is_whole) = present_below(top, b"", &Cutoff::default()).unwrap();
        (found.keys().map(|path| path.0.len() as u64).sum::<u64>(), is_whole)
    };
    assert_eq!(found(), (MAX_PATHS_BYTES, true));
    touch(&dir, "one more");
    let (size, is_whole) = found();
    assert!(size <= MAX_PATHS_BYTES && !is_whole, "{size}");
    let changes = fixture.changes();
    let shown: usize = changes.items.iter().map(|item| item.path.len()).sum();
    assert!((MAX_ITEM_PATHS_BYTES * 9 / 10..=MAX_ITEM_PATHS_BYTES).contains(&shown) && changes.truncated, "{shown}");
}

#[test]
fn the_paths_of_a_baseline_are_bounded() {
    let fixture = Fixture::new();
    let dir = fill_with_paths(&fixture.workspaces.path(fixture.job), 64, baseline::MAX_PATHS_BYTES);
    let record = || {
        fixture.workspaces.record_baseline(fixture.job).unwrap();
        let baseline = fixture.workspaces.baseline(fixture.job).unwrap();
        (baseline.entries.keys().map(|path| path.0.len() as u64).sum::<u64>(), baseline.is_complete)
    };
    assert_eq!(record(), (baseline::MAX_PATHS_BYTES, true));
    assert_eq!(fixture.shown(), []);
    touch(&dir, "one more");
    let (size, is_complete) = record();
    assert!(size <= baseline::MAX_PATHS_BYTES && !is_complete, "{size}");
    assert!(fixture.changes().truncated);
}

#[test]
fn names_that_look_alike_are_compared_by_their_bytes() {
    let fixture = Fixture::new();
    let workspace = fixture.workspaces.path(fixture.job);
    let at = |name: &[u8]| workspace.join(OsStr::from_bytes(name));
    for name in [b"\xe8".as_slice(), b"\xe9", "\u{fffd}".as_bytes()] {
        fs::write(at(name), "1\n").unwrap();
    }
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    assert_eq!(fixture.shown(), []);
    fs::write(at(b"\xe8"), "2\n").unwrap();
    fs::remove_file(at(b"\xe9")).unwrap();
    fs::write(at(b"\xea"), "3\n").unwrap();
    let changes = fixture.changes().items.into_iter().map(|item| (item.path, item.path_bytes, item.change));
    let expected = [("6A==", Modified), ("6Q==", Deleted), ("6g==", Added)]
        .map(|(bytes, kind)| ("\u{fffd}".to_owned(), Some(bytes.to_owned()), kind));
    assert_eq!(changes.collect::<Vec<_>>(), expected);
}

#[test]
fn a_file_that_became_a_link_with_the_same_bytes_is_shown() {
    let fixture = Fixture::new();
    let workspace = fixture.workspaces.path(fixture.job);
    fixture.write("became-link", "target");
    symlink("target", workspace.join("became-file")).unwrap();
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    for name in ["became-link", "became-file"] {
        fs::remove_file(workspace.join(name)).unwrap();
    }
    symlink("target", workspace.join("became-link")).unwrap();
    fixture.write("became-file", "target");
    let expected = ["became-file", "became-link"].map(|name| {
        let end = "target\n\\ No newline at end of file\n";
        let removed = format!("--- a/{name}\n+++ /dev/null\n@@ -1 +0,0 @@\n-{end}");
        (name.to_owned(), Modified, format!("{removed}--- /dev/null\n+++ b/{name}\n@@ -0,0 +1 @@\n+{end}"))
    });
    assert_eq!(fixture.shown(), expected);
}

/// A thousand files delay the start of a job by far less than a second.
#[test]
fn a_baseline_of_a_thousand_files_is_recorded_quickly() {
    let fixture = Fixture::new();
    for n in 0..1_000 {
        fixture.write(&format!("d{}/f{n}", n % 10), format!("{n}\n").repeat(500));
    }
    let start = Instant::now();
    fixture.workspaces.record_baseline(fixture.job).unwrap();
    let took = start.elapsed();
    assert!(took < Duration::from_secs(2), "{took:?}");
    assert_eq!(fixture.shown(), []);
}
