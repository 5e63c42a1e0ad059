use std::{
    fs,
    path::Path,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
    },
    time::Instant,
};

use super::*;
use crate::workspace::{
    Room,
    room::{Usage, usage},
};

const PLENTY: Room = Room { bytes: u64::MAX, entries: u64::MAX };

fn folder(path: &Path) -> Folder {
    Folder::open(path).unwrap()
}

fn used(path: &Path) -> Usage {
    usage(folder(path), PLENTY, &Cutoff::default()).unwrap()
}

/// Folders within folders, below whatever length a path may have.
fn nest(path: &Path, depth: usize) {
    let mut folder = rustix::fs::open(path, rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    for _ in 0..depth {
        rustix::fs::mkdirat(&folder, "d", rustix::fs::Mode::RWXU).unwrap();
        folder = rustix::fs::openat(&folder, "d", rustix::fs::OFlags::DIRECTORY, rustix::fs::Mode::empty()).unwrap();
    }
}

#[test]
fn everything_is_found_once_with_folders_before_what_is_in_them() {
    let root = tempfile::tempdir().unwrap();
    fs::create_dir_all(root.path().join("a/b")).unwrap();
    fs::create_dir_all(root.path().join("c")).unwrap();
    for file in ["x", "a/x", "a/b/x", "c/x"] {
        fs::write(root.path().join(file), "").unwrap();
    }
    let mut walk = Walk::of(folder(root.path()), 100);
    let mut seen = vec![];
    while let Some(found) = walk.next().unwrap() {
        assert_eq!(walk.path().iter().count(), found.depth);
        assert!(walk.folder().unwrap().look(&found.name).is_ok(), "the folder is that of the entry");
        seen.push(walk.path().join(&found.name));
    }
    let at = |path: &str| seen.iter().position(|seen| seen == Path::new(path)).unwrap();
    assert!(at("a") < at("a/x") && at("a") < at("a/b") && at("a/b") < at("a/b/x") && at("c") < at("c/x"));
    assert_eq!((seen.len(), walk.has_missed()), (7, false));
}

#[test]
fn a_tree_beside_it_is_followed_where_it_has_the_same_folders() {
    let (one, other) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    for path in ["a/x/deep", "b/x/deep", "only"] {
        fs::create_dir_all(one.path().join(path)).unwrap();
    }
    for path in ["a/x/deep", "b"] {
        fs::create_dir_all(other.path().join(path)).unwrap();
    }
    let (mut walk, mut beside) = (Walk::of(folder(one.path()), 100), Beside::of(folder(other.path())));
    let mut both = vec![];
    while let Some(found) = walk.next().unwrap() {
        if beside.at(&walk, &found).unwrap().is_some_and(|there| there.look(&found.name).is_ok()) {
            both.push(walk.path().join(&found.name).display().to_string());
        }
    }
    both.sort();
    assert_eq!(both, ["a", "a/x", "a/x/deep", "b"]);
}

#[test]
fn what_is_too_deep_too_much_or_too_slow_is_refused() {
    let root = tempfile::tempdir().unwrap();
    nest(root.path(), MAX_DEPTH);
    assert_eq!(used(root.path()).entries, MAX_DEPTH as u64);
    assert!(usage(folder(root.path()), Room { entries: 3, ..PLENTY }, &Cutoff::default()).unwrap().is_beyond_counting);
    let deeper = tempfile::tempdir().unwrap();
    nest(deeper.path(), MAX_DEPTH + 1);
    assert!(used(deeper.path()).is_beyond_counting);
    let wide = tempfile::tempdir().unwrap();
    for n in 0..2 * ENTRIES_PER_CHECK {
        fs::write(wide.path().join(n.to_string()), "").unwrap();
    }
    let now = Cutoff { deadline: Some(Instant::now()), cancelled: CancellationToken::new() };
    assert!(matches!(usage(folder(wide.path()), PLENTY, &now), Err(FileError::TooSlow)));
    let left = Cutoff::default();
    left.cancelled.cancel();
    assert!(matches!(usage(folder(wide.path()), PLENTY, &left), Err(FileError::TooSlow)));
}

#[test]
fn a_folder_that_was_changed_before_it_was_read_is_noticed() {
    let root = tempfile::tempdir().unwrap();
    fs::write(root.path().join("x"), "").unwrap();
    assert!(used(root.path()).has_changed, "just now");
    let until_settled = Instant::now() + std::time::Duration::from_secs(5);
    while used(root.path()).has_changed {
        assert!(Instant::now() < until_settled, "a folder that nobody touches settles");
        std::thread::yield_now();
    }
}

/// A tree whose top is renamed back and forth all the time.
struct Flipping {
    stop: Arc<AtomicBool>,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Flipping {
    fn start(root: &Path) -> Self {
        let stop = Arc::new(AtomicBool::new(false));
        let (stopped, (a, b)) = (Arc::clone(&stop), (root.join("a"), root.join("b")));
        let thread = std::thread::spawn(move || {
            while !stopped.load(Ordering::Relaxed) {
                fs::rename(&a, &b).unwrap();
                fs::rename(&b, &a).unwrap();
            }
        });
        Self { stop, thread: Some(thread) }
    }
}

impl Drop for Flipping {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.take().unwrap().join().unwrap();
    }
}

#[test]
#[expect(clippy::print_stdout, reason = "how often it was met is for people")]
fn a_tree_that_is_renamed_all_the_time_never_looks_smaller_than_it_is() {
    const BYTES: u64 = 3 << 20;
    let root = tempfile::tempdir().unwrap();
    fs::create_dir(root.path().join("a")).unwrap();
    nest(&root.path().join("a"), 100);
    fs::write(root.path().join("a").join("d/".repeat(100)).join("big"), vec![1; usize::try_from(BYTES).unwrap()])
        .unwrap();
    let _flipping = Flipping::start(root.path());
    let mut missed = 0;
    for _ in 0..300 {
        let usage = used(root.path());
        assert!(usage.bytes >= BYTES || usage.has_missed || usage.has_changed, "{usage:?}");
        missed += u32::from(usage.has_missed);
    }
    println!("{missed} of 300 walks met a folder that had moved");
}

#[test]
fn what_is_moved_past_the_walk_is_noticed() {
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
            let usage = used(root.path());
            assert!(usage.bytes >= BYTES || usage.has_missed || usage.has_changed, "{usage:?}");
        }
        stop.store(true, Ordering::Relaxed);
    });
}

#[test]
#[expect(clippy::print_stdout, reason = "how long it took is for people")]
fn a_folder_costs_the_same_whatever_its_depth_and_an_honest_tree_is_counted_in_time() {
    let root = tempfile::tempdir().unwrap();
    let deep = root.path().join("d/".repeat(120));
    fs::create_dir_all(&deep).unwrap();
    for n in 0..20_000 {
        fs::create_dir(deep.join(n.to_string())).unwrap();
    }
    let begun = Instant::now();
    let usage = used(root.path());
    let took = begun.elapsed();
    println!("{} folders 120 deep: {took:?}, {:?} each", usage.entries, took / 20_000);
    assert_eq!(usage.entries, 20_120);
    // From the top for each folder it took 10 s on the same machine.
    assert!(took.as_secs() < 5, "{took:?}");

    let tree = tempfile::tempdir().unwrap();
    for n in 0..1_000 {
        let module = tree.path().join(format!("node_modules/{n}/lib"));
        fs::create_dir_all(&module).unwrap();
        for file in 0..100 {
            fs::write(module.join(file.to_string()), "").unwrap();
        }
    }
    let begun = Instant::now();
    let usage = used(tree.path());
    let took = begun.elapsed();
    println!("{} entries as npm makes them: {took:?}", usage.entries);
    assert_eq!((usage.entries, usage.has_missed, usage.is_beyond_counting), (102_001, false, false));
    assert!(took.as_secs() < 5, "{took:?}");
}
