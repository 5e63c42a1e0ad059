//! Walks through directories, with links and files that change meanwhile.

use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use tokio_util::sync::CancellationToken;

use super::*;
use crate::{DiskUsage, Quota};

const UNLIMITED: Quota = Quota { bytes: u64::MAX, entries: u64::MAX };

fn open(path: &Path) -> Dir {
    Dir::open(path).unwrap()
}

fn measure(path: &Path) -> DiskUsage {
    DiskUsage::measure(open(path), UNLIMITED, &Cutoff::default()).unwrap()
}

/// Nested directories, one level at a time: their path may be longer than a system call accepts.
fn nest(path: &Path, depth: usize) {
    let mut dir = rustix::fs::open(path, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&dir, "d", rustix::fs::Mode::RWXU).unwrap();
        dir = rustix::fs::openat(&dir, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
}

#[test]
fn every_entry_is_returned_once_and_directories_before_their_content() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("a/b")).unwrap();
    fs::create_dir_all(root.path().join("c")).unwrap();
    for file in ["x", "a/x", "a/b/x", "c/x"] {
        fs::write(root.path().join(file), "").unwrap();
    }
    let mut walk = Walk::new(open(root.path()), 100);
    let mut seen = vec![];
    while let Some(entry) = walk.next_entry().unwrap() {
        assert_eq!(walk.current_path().iter().count(), entry.depth);
        assert!(walk.current_dir().unwrap().metadata(&entry.name).is_ok(), "the current directory contains the entry");
        seen.push(walk.current_path().join(&entry.name));
    }
    let at = |path: &str| seen.iter().position(|seen| seen == Path::new(path)).unwrap();
    assert!(at("a") < at("a/x") && at("a") < at("a/b") && at("a/b") < at("a/b/x") && at("c") < at("c/x"));
    assert_eq!((seen.len(), walk.has_missed_entries), (7, false));
}

#[test]
fn the_counterpart_is_found_where_the_second_tree_has_the_directory() {
    let (first, second) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for path in ["a/x/deep", "b/x/deep", "only"] {
        fs::create_dir_all(first.path().join(path)).unwrap();
    }
    for path in ["a/x/deep", "b"] {
        fs::create_dir_all(second.path().join(path)).unwrap();
    }
    let (mut walk, mut counterpart) = (Walk::new(open(first.path()), 100), CounterpartDir::new(open(second.path())));
    let mut both = vec![];
    while let Some(entry) = walk.next_entry().unwrap() {
        if counterpart.of(&walk, &entry).unwrap().is_some_and(|dir| dir.metadata(&entry.name).is_ok()) {
            both.push(walk.current_path().join(&entry.name).display().to_string());
        }
    }
    both.sort();
    assert_eq!(both, ["a", "a/x", "a/x/deep", "b"]);
}

#[test]
fn depth_entries_and_time_are_limited() {
    let root = tempfile::tempdir().unwrap();
    nest(root.path(), MAX_DEPTH);
    assert_eq!(measure(root.path()).entries, MAX_DEPTH as u64);
    assert!(
        DiskUsage::measure(open(root.path()), Quota { entries: 3, ..UNLIMITED }, &Cutoff::default())
            .unwrap()
            .exceeds_walk_limits
    );
    let deeper = tempfile::tempdir().unwrap();
    nest(deeper.path(), MAX_DEPTH + 1);
    assert!(measure(deeper.path()).exceeds_walk_limits);
    let wide = tempfile::tempdir().unwrap();
    for n in 0..2 * ENTRIES_PER_CHECK {
        fs::write(wide.path().join(n.to_string()), "").unwrap();
    }
    let expired = Cutoff { deadline: Some(Instant::now()), cancelled: CancellationToken::new() };
    assert!(matches!(DiskUsage::measure(open(wide.path()), UNLIMITED, &expired), Err(FileError::TimedOut)));
    let cancelled = Cutoff::default();
    cancelled.cancelled.cancel();
    assert!(matches!(DiskUsage::measure(open(wide.path()), UNLIMITED, &cancelled), Err(FileError::TimedOut)));
}

#[test]
fn a_recent_change_of_a_directory_is_detected() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("x"), "").unwrap();
    assert!(measure(root.path()).has_changed, "created just now");
    let deadline = Instant::now() + std::time::Duration::from_secs(5);
    while measure(root.path()).has_changed {
        assert!(Instant::now() < deadline, "an untouched directory settles");
        std::thread::yield_now();
    }
}

/// A thread that renames a directory back and forth.
struct RenameLoop {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl RenameLoop {
    fn start(root: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stop_flag, (a, b)) = (Arc::clone(&stop), (root.join("a"), root.join("b")));
        let thread = std::thread::spawn(move || {
            while !stop_flag.load(Ordering::Relaxed) {
                fs::rename(&a, &b).unwrap();
                fs::rename(&b, &a).unwrap();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for RenameLoop {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "the number of hits is informative")]
fn a_tree_that_is_being_renamed_never_looks_smaller_than_it_is() {
    const BYTES: u64 = 3 << 20;
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    nest(&root.path().join("a"), 100);
    fs::write(root.path().join("a").join("d/".repeat(100)).join("big"), vec![1; usize::try_from(BYTES).unwrap()])
        .unwrap();
    let _renames = RenameLoop::start(root.path());
    let mut missed = 0;
    for _ in 0..300 {
        let usage = measure(root.path());
        assert!(usage.bytes >= BYTES || usage.has_missed_entries || usage.has_changed, "{usage:?}");
        missed += u32::from(usage.has_missed_entries);
    }
    println!("{missed} of 300 walks missed entries");
}

#[test]
fn a_file_moved_past_the_walk_is_detected() {
    const BYTES: u64 = 1 << 20;
    let root = tempfile::tempdir().unwrap();
    for name in ["a", "b"] {
        fs::create_dir(root.path().join(name)).unwrap();
    }
    fs::write(root.path().join("a/big"), vec![1; usize::try_from(BYTES).unwrap()]).unwrap();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            while !stop.load(Ordering::Relaxed) {
                fs::rename(root.path().join("a/big"), root.path().join("b/big")).unwrap();
                fs::rename(root.path().join("b/big"), root.path().join("a/big")).unwrap();
            }
        });
        for _ in 0..2_000 {
            let usage = measure(root.path());
            assert!(usage.bytes >= BYTES || usage.has_missed_entries || usage.has_changed, "{usage:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
#[expect(clippy::print_stdout, reason = "the duration is informative")]
fn deep_and_wide_trees_are_measured_in_time() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("d/".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    for n in 0..20_000 {
        fs::create_dir(deep.join(n.to_string())).unwrap();
    }
    let start = Instant::now();
    let usage = measure(root.path());
    let elapsed = start.elapsed();
    println!("{} directories at depth 120: {elapsed:?}, {:?} each", usage.entries, elapsed / 20_000);
    assert_eq!(usage.entries, 20_120);
    // Opening each directory by its path from the top took 10 s on the same machine.
    assert!(elapsed.as_secs() < 5, "{elapsed:?}");

    let tree = tempfile::tempdir().unwrap();
    for n in 0..1_000 {
        let module = tree.path().join(format!("node_modules/{n}/lib"));
        fs::create_dir_all(&module).unwrap();
        for file in 0..100 {
            fs::write(module.join(file.to_string()), "").unwrap();
        }
    }
    let start = Instant::now();
    let usage = measure(tree.path());
    let elapsed = start.elapsed();
    println!("{} entries of a node_modules tree: {elapsed:?}", usage.entries);
    assert_eq!((usage.entries, usage.has_missed_entries, usage.exceeds_walk_limits), (102_001, false, false));
    assert!(elapsed.as_secs() < 5, "{elapsed:?}");
}
