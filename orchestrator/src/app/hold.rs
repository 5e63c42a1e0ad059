//! The hold on the data folder and on that of the sockets: one orchestrator at a time, by a file lock that the kernel lets go
//! of with the process, never by a row.

use std::{
    fs::{self, File, OpenOptions, TryLockError},
    io::{self, Read, Write},
    os::unix::fs::{DirBuilderExt, OpenOptionsExt, PermissionsExt},
    path::{Path, PathBuf},
};

/// The lock; held as long as it lives.
#[derive(Debug)]
pub(super) struct Hold {
    _file: File,
    _run_dir: File,
}

/// One of the folders cannot be had.
#[derive(Debug, thiserror::Error)]
pub enum HoldError {
    /// Another orchestrator has it.
    #[error("{folder} is held by another orchestrator (process {holder}); stop it, or set {setting} to another folder")]
    Held {
        /// The folder.
        folder: PathBuf,
        /// Which sets it.
        setting: &'static str,
        /// As it wrote itself.
        holder: String,
    },
    /// It cannot be made or written.
    #[error("{folder} cannot be used; set {setting} to a folder that this user may write")]
    Io {
        /// The folder.
        folder: PathBuf,
        /// Which sets it.
        setting: &'static str,
        /// Why.
        #[source]
        source: io::Error,
    },
}

/// A folder of ours in the data folder, for its owner alone, also when it was made with more.
fn own_folder(path: &Path) -> io::Result<()> {
    fs::DirBuilder::new().recursive(true).mode(0o700).create(path)?;
    let for_others = fs::metadata(path)?.permissions().mode() & 0o077;
    if for_others > 0 { fs::set_permissions(path, fs::Permissions::from_mode(0o700)) } else { Ok(()) }
}

/// One of the two folders, and the variable that sets it.
#[derive(Clone, Copy)]
struct Place<'a> {
    folder: &'a Path,
    setting: &'static str,
}

impl Place<'_> {
    fn wrong(self, source: io::Error) -> HoldError {
        HoldError::Io { folder: self.folder.to_owned(), setting: self.setting, source }
    }

    fn make(self) -> Result<(), HoldError> {
        fs::DirBuilder::new().recursive(true).mode(0o700).create(self.folder).map_err(|error| self.wrong(error))
    }

    /// Takes the lock on a file that stands for the folder; `holder` says who has it.
    fn lock(self, mut file: File, holder: impl FnOnce(&mut File) -> String) -> Result<File, HoldError> {
        match file.try_lock() {
            Ok(()) => Ok(file),
            Err(TryLockError::WouldBlock) => {
                let holder = holder(&mut file);
                let holder = if holder.trim().is_empty() { "unknown".to_owned() } else { holder.trim().to_owned() };
                Err(HoldError::Held { folder: self.folder.to_owned(), setting: self.setting, holder })
            }
            Err(TryLockError::Error(source)) => Err(self.wrong(source)),
        }
    }
}

/// The folder of sockets, which nobody else may tidy up. It holds containers' folders and nothing else, so it is itself the lock.
fn hold_run_dir(folder: &Path) -> Result<File, HoldError> {
    let place = Place { folder, setting: "GANTRY_RUN_DIR" };
    place.make()?;
    place.lock(File::open(folder).map_err(|error| place.wrong(error))?, |_| String::new())
}

/// Whether an orchestrator seems to run on this data folder; for advice. The lock itself is not tried: that would be in the way of
/// one that starts at this moment.
pub fn is_served(folder: &Path) -> bool {
    let holder = fs::read_to_string(folder.join("gantry.lock")).unwrap_or_default();
    holder.trim().parse::<u32>().is_ok_and(|process| Path::new("/proc").join(process.to_string()).exists())
}

impl Hold {
    /// Makes the folder, if needed, and takes it. One that is there keeps its mode; what is ours in it is closed to others.
    pub(super) fn take(folder: &Path, run_dir: &Path) -> Result<Self, HoldError> {
        let place = Place { folder, setting: "GANTRY_DATA_DIR" };
        let wrong = |source| place.wrong(source);
        place.make()?;
        let file = OpenOptions::new()
            .read(true)
            .write(true)
            .create(true)
            .truncate(false)
            .mode(0o600)
            .open(folder.join("gantry.lock"))
            .map_err(wrong)?;
        let mut file = place.lock(file, |file| {
            let mut holder = String::new();
            // It may be writing itself at this moment; then it stays nameless.
            let _ = file.read_to_string(&mut holder);
            holder
        })?;
        own_folder(&folder.join("logs")).map_err(wrong)?;
        file.set_len(0).map_err(wrong)?;
        writeln!(file, "{}", std::process::id()).map_err(wrong)?;
        Ok(Self { _file: file, _run_dir: hold_run_dir(run_dir)? })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_of_the_two_folders_has_one_holder() {
        let root = tempfile::tempdir().unwrap();
        let path = |name: &str| root.path().join(name);
        let first = Hold::take(&path("a"), &path("run")).unwrap();
        let said = |data: &str, run: &str| Hold::take(&path(data), &path(run)).map(drop).unwrap_err().to_string();
        let process = std::process::id().to_string();
        let (data, run) = (said("a", "other"), said("b", "run"));
        assert!(data.contains(&process) && data.contains("set GANTRY_DATA_DIR"), "{data}");
        assert!(run.contains("set GANTRY_RUN_DIR"), "{run}");
        assert_eq!(fs::read_dir(path("run")).unwrap().count(), 0, "nothing but containers' folders is in it");
        assert!(is_served(&path("a")) && !is_served(&path("nowhere")));
        fs::create_dir(path("left")).unwrap();
        // More than any process's number.
        fs::write(path("left").join("gantry.lock"), "4294967295\n").unwrap();
        assert!(!is_served(&path("left")));
        drop(first);
        Hold::take(&path("b"), &path("run")).unwrap();
    }
}
