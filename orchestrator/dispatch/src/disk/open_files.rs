//! Deleted files of a workspace that its container still holds open: they occupy space that no walk finds.
//!
//! The container's processes are those in its `/proc`, read through `/proc/<pid>/root` of its first process. That works
//! on the host and with `pid: host`; otherwise the PID belongs to another process, or to none, and nothing is found.
//! Never opens a file of the container. Counts descriptors and mappings only: a descriptor in transit over a socket is
//! not found.

use std::{collections::HashSet, io, path::Path};

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};
use workspace::{Cutoff, FileError};

/// The unit of `st_blocks`, in bytes (stat(2)).
const BLOCK_BYTES: u64 = 512;
/// File system type of procfs (statfs(2), `PROC_SUPER_MAGIC`).
const PROC_MAGIC: u64 = 0x9fa0;
/// Maximum number of descriptors and mappings in one measurement, which times out beyond it. 100 processes may have 256
/// each.
const MAX_ENTRIES: u64 = 500_000;

/// Which open files of a process are counted.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Descriptors of its main thread.
    Processes,
    /// Also descriptors of its other threads, which may have separate tables, and its memory mappings.
    ThreadsAndMappings,
}

/// Bytes occupied by such files; none if the container's processes are not visible.
pub(super) fn unlinked_bytes(
    first_process: u32,
    workspace: &Path,
    depth: Depth,
    cutoff: &Cutoff,
) -> Result<Option<u64>, FileError> {
    let Some((proc, device)) = open_proc(first_process, workspace)? else { return Ok(None) };
    let mut count = Count { device, seen: HashSet::new(), bytes: 0, entries_left: MAX_ENTRIES, cutoff };
    for process in numbers(&proc)? {
        count.count_dir(&proc, &format!("{process}/fd"))?;
        if depth == Depth::ThreadsAndMappings {
            count.count_dir(&proc, &format!("{process}/map_files"))?;
            let Some(tasks) = open_dir(&proc, &format!("{process}/task"))? else { continue };
            for task in numbers(&tasks)?.into_iter().filter(|task| *task != process) {
                count.count_dir(&tasks, &format!("{task}/fd"))?;
            }
        }
    }
    Ok(Some(count.bytes))
}

/// Opens the container's `/proc`; with the device of its workspace.
fn open_proc(first_process: u32, workspace: &Path) -> Result<Option<(OwnedFd, u64)>, FileError> {
    let root = format!("/proc/{first_process}/root");
    let own = rustix::fs::stat(workspace)?;
    // The PID may belong to another process by now, or to another namespace: only this container has this workspace.
    let is_workspace = |seen: &Stat| (seen.st_dev, seen.st_ino) == (own.st_dev, own.st_ino);
    if !rustix::fs::stat(format!("{root}/workspace")).is_ok_and(|seen| is_workspace(&seen)) {
        return Ok(None);
    }
    let Some(proc) = open_dir(CWD, &format!("{root}/proc"))? else { return Ok(None) };
    let is_proc = u64::try_from(rustix::fs::fstatfs(&proc)?.f_type) == Ok(PROC_MAGIC);
    Ok(is_proc.then_some((proc, own.st_dev)))
}

struct Count<'a> {
    device: u64,
    seen: HashSet<u64>,
    bytes: u64,
    entries_left: u64,
    cutoff: &'a Cutoff,
}

impl Count<'_> {
    /// Counts the files that the links in a directory of `/proc` point to.
    fn count_dir(&mut self, parent: impl AsFd, path: &str) -> Result<(), FileError> {
        self.cutoff.check()?;
        let Some(dir) = open_dir(parent, path)? else { return Ok(()) };
        for entry in Dir::read_from(&dir)? {
            let entry = match entry {
                Err(error) if is_gone(error) => return Ok(()),
                other => other?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.entries_left = self.entries_left.checked_sub(1).ok_or(FileError::TimedOut)?;
            if self.entries_left.is_multiple_of(1_024) {
                self.cutoff.check()?;
            }
            // Follows the link to the open file itself, even if it was renamed or deleted. Opens nothing.
            let Ok(stat) = rustix::fs::statat(&dir, name, AtFlags::empty()) else { continue };
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_file && stat.st_nlink == 0 && stat.st_dev == self.device && self.seen.insert(stat.st_ino) {
                let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
        Ok(())
    }
}

/// Opens a directory of `/proc`; none if its process has ended, or permission is denied.
fn open_dir(parent: impl AsFd, path: &str) -> Result<Option<OwnedFd>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, path, flags, Mode::empty()) {
        Ok(dir) => Ok(Some(dir)),
        Err(error) if is_gone(error) || matches!(error, Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(error) => Err(FileError::Io(io::Error::from(error))),
    }
}

const fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::SRCH | Errno::NOTDIR)
}

/// The entries with numeric names.
fn numbers(dir: &OwnedFd) -> Result<Vec<u32>, FileError> {
    let mut numbers = vec![];
    for entry in Dir::read_from(dir)? {
        match entry {
            Ok(entry) => numbers.extend(entry.file_name().to_str().ok().and_then(|name| name.parse::<u32>().ok())),
            Err(error) if is_gone(error) => break,
            Err(error) => return Err(error.into()),
        }
    }
    Ok(numbers)
}

#[cfg(test)]
mod tests {
    use std::{fs, io::Write as _};

    use super::*;

    /// Counts the test's own process.
    fn own_bytes(device: u64, depth: Depth) -> u64 {
        let cutoff = Cutoff::default();
        let mut count = Count { device, seen: HashSet::new(), bytes: 0, entries_left: MAX_ENTRIES, cutoff: &cutoff };
        count.count_dir(CWD, "/proc/self/fd").unwrap();
        if depth == Depth::ThreadsAndMappings {
            count.count_dir(CWD, "/proc/self/map_files").unwrap();
        }
        count.bytes
    }

    #[test]
    fn a_deleted_file_counts_once_however_often_it_is_open() {
        const BYTES: u64 = 5 << 20;
        let root = tempfile::tempdir().unwrap();
        let device = rustix::fs::stat(root.path()).unwrap().st_dev;
        let before = own_bytes(device, Depth::Processes);
        let path = root.path().join("big");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![1; usize::try_from(BYTES).unwrap()]).unwrap();
        assert!(own_bytes(device, Depth::Processes) < before + BYTES, "the walk counts files with a name");
        fs::remove_file(&path).unwrap();
        let _again = file.try_clone().unwrap();
        let with = own_bytes(device, Depth::Processes);
        assert!((before + BYTES..before + 2 * BYTES).contains(&with), "{before} {with}");
    }

    #[test]
    fn a_process_outside_the_container_is_not_counted() {
        let root = tempfile::tempdir().unwrap();
        for process in [std::process::id(), u32::MAX] {
            let seen = unlinked_bytes(process, root.path(), Depth::Processes, &Cutoff::default()).unwrap();
            assert_eq!(seen, None);
        }
    }
}
