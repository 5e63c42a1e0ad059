//! Files of a workspace that have no name left and are still open in its container: they take space that no walk sees.
//!
//! The container's processes are those that its own `/proc` lists, seen through `/proc/<pid>/root` of its first process.
//! That works on the host and with `pid: host`; elsewhere the number names another process, or none, and nothing is
//! visible. Never opens a file of the container, and counts descriptors and mappings alone: what is in flight over a
//! socket is not seen.

use std::{collections::HashSet, io, path::Path};

use rustix::{
    fd::{AsFd, OwnedFd},
    fs::{AtFlags, CWD, Dir, FileType, Mode, OFlags, Stat},
    io::Errno,
};

use crate::workspace::{Cutoff, FileError};

/// Blocks as `stat` counts them.
const BLOCK_BYTES: u64 = 512;
/// Of procfs, as `statfs` tells it.
const PROC_MAGIC: u64 = 0x9fa0;
/// Open files and mappings looked at in one measure; more is not measured. 100 processes have 256 each.
const MAX_LOOKS: u64 = 500_000;

/// Which of a process's open files are looked at.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(super) enum Depth {
    /// Those of its main thread.
    Processes,
    /// Also those of its other threads, which may have tables of their own, and its memory mappings.
    ThreadsAndMappings,
}

/// How much such files take; none when the container's processes cannot be seen from here.
pub(super) fn unlinked_bytes(
    first_process: u32,
    workspace: &Path,
    depth: Depth,
    cutoff: &Cutoff,
) -> Result<Option<u64>, FileError> {
    let Some(proc) = proc_of(first_process, workspace)? else { return Ok(None) };
    let (proc, device) = proc;
    let mut count = Count { device, seen: HashSet::new(), bytes: 0, looks_left: MAX_LOOKS, cutoff };
    for process in numbers(&proc)? {
        count.folder(&proc, &format!("{process}/fd"))?;
        if depth == Depth::ThreadsAndMappings {
            count.folder(&proc, &format!("{process}/map_files"))?;
            let Some(tasks) = opened(&proc, &format!("{process}/task"))? else { continue };
            for task in numbers(&tasks)?.into_iter().filter(|task| *task != process) {
                count.folder(&tasks, &format!("{task}/fd"))?;
            }
        }
    }
    Ok(Some(count.bytes))
}

/// The container's `/proc`, and the device that its workspace is on.
fn proc_of(first_process: u32, workspace: &Path) -> Result<Option<(OwnedFd, u64)>, FileError> {
    let root = format!("/proc/{first_process}/root");
    let own = rustix::fs::stat(workspace)?;
    // The number may be another process's by now, or of another namespace: only this container has this workspace.
    let same = |seen: &Stat| (seen.st_dev, seen.st_ino) == (own.st_dev, own.st_ino);
    if !rustix::fs::stat(format!("{root}/workspace")).is_ok_and(|seen| same(&seen)) {
        return Ok(None);
    }
    let Some(proc) = opened(CWD, &format!("{root}/proc"))? else { return Ok(None) };
    let is_proc = u64::try_from(rustix::fs::fstatfs(&proc)?.f_type) == Ok(PROC_MAGIC);
    Ok(is_proc.then_some((proc, own.st_dev)))
}

struct Count<'a> {
    device: u64,
    seen: HashSet<u64>,
    bytes: u64,
    looks_left: u64,
    cutoff: &'a Cutoff,
}

impl Count<'_> {
    /// What the links in one folder of `/proc` lead to.
    fn folder(&mut self, parent: impl AsFd, path: &str) -> Result<(), FileError> {
        self.cutoff.check()?;
        let Some(folder) = opened(parent, path)? else { return Ok(()) };
        for entry in Dir::read_from(&folder)? {
            let entry = match entry {
                Err(error) if is_gone(error) => return Ok(()),
                other => other?,
            };
            let name = entry.file_name();
            if matches!(name.to_bytes(), b"." | b"..") {
                continue;
            }
            self.looks_left = self.looks_left.checked_sub(1).ok_or(FileError::TimedOut)?;
            if self.looks_left.is_multiple_of(1_024) {
                self.cutoff.check()?;
            }
            // Follows the link to the open file itself, whatever has become of its name. Opens nothing.
            let Ok(stat) = rustix::fs::statat(&folder, name, AtFlags::empty()) else { continue };
            let is_file = FileType::from_raw_mode(stat.st_mode) == FileType::RegularFile;
            if is_file && stat.st_nlink == 0 && stat.st_dev == self.device && self.seen.insert(stat.st_ino) {
                let bytes = u64::try_from(stat.st_blocks).unwrap_or(0).saturating_mul(BLOCK_BYTES);
                self.bytes = self.bytes.saturating_add(bytes);
            }
        }
        Ok(())
    }
}

/// A folder of `/proc`; none when its process has ended, or we may not look.
fn opened(parent: impl AsFd, path: &str) -> Result<Option<OwnedFd>, FileError> {
    let flags = OFlags::RDONLY | OFlags::DIRECTORY | OFlags::CLOEXEC;
    match rustix::fs::openat(parent, path, flags, Mode::empty()) {
        Ok(folder) => Ok(Some(folder)),
        Err(error) if is_gone(error) || matches!(error, Errno::ACCESS | Errno::PERM) => Ok(None),
        Err(error) => Err(FileError::Io(io::Error::from(error))),
    }
}

const fn is_gone(error: Errno) -> bool {
    matches!(error, Errno::NOENT | Errno::SRCH | Errno::NOTDIR)
}

/// The entries whose names are numbers.
fn numbers(folder: &OwnedFd) -> Result<Vec<u32>, FileError> {
    let mut numbers = vec![];
    for entry in Dir::read_from(folder)? {
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

    /// Counts this very process, whose descriptors the test makes.
    fn own_bytes(device: u64, depth: Depth) -> u64 {
        let cutoff = Cutoff::default();
        let mut count = Count { device, seen: HashSet::new(), bytes: 0, looks_left: MAX_LOOKS, cutoff: &cutoff };
        count.folder(CWD, "/proc/self/fd").unwrap();
        if depth == Depth::ThreadsAndMappings {
            count.folder(CWD, "/proc/self/map_files").unwrap();
        }
        count.bytes
    }

    #[test]
    fn a_file_without_a_name_counts_once_however_often_it_is_open() {
        const BYTES: u64 = 5 << 20;
        let root = tempfile::tempdir().unwrap();
        let device = rustix::fs::stat(root.path()).unwrap().st_dev;
        let before = own_bytes(device, Depth::Processes);
        let path = root.path().join("big");
        let mut file = fs::File::create(&path).unwrap();
        file.write_all(&vec![1; usize::try_from(BYTES).unwrap()]).unwrap();
        assert!(own_bytes(device, Depth::Processes) < before + BYTES, "with a name it is the walk's");
        fs::remove_file(&path).unwrap();
        let _again = file.try_clone().unwrap();
        let with = own_bytes(device, Depth::Processes);
        assert!((before + BYTES..before + 2 * BYTES).contains(&with), "{before} {with}");
    }

    #[test]
    fn a_process_that_is_not_the_containers_shows_nothing() {
        let root = tempfile::tempdir().unwrap();
        for process in [std::process::id(), u32::MAX] {
            let seen = unlinked_bytes(process, root.path(), Depth::Processes, &Cutoff::default()).unwrap();
            assert_eq!(seen, None);
        }
    }
}
