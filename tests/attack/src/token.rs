//! Copies the tokens of new jobs from the host's run directory before they are removed: a command in the container then
//! has more than any real command could have.

use std::{
    collections::HashMap,
    fs, io,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicBool, Ordering},
    },
    thread::{JoinHandle, sleep, spawn},
    time::{Duration, Instant},
};

/// A worker needs some 20 ms from its container's start to its first call.
const POLL_INTERVAL: Duration = Duration::from_millis(2);
const TIMEOUT: Duration = Duration::from_secs(30);

/// Watches a run directory until it is dropped.
pub struct TokenCopier {
    found: Arc<Mutex<HashMap<String, String>>>,
    stop: Arc<AtomicBool>,
    thread: Option<JoinHandle<()>>,
}

impl TokenCopier {
    /// Watches the directory that contains one directory for each live container.
    pub fn watch(run_dir: PathBuf) -> Self {
        let (found, stop) = (Arc::new(Mutex::new(HashMap::new())), Arc::new(AtomicBool::new(false)));
        let (kept, ended) = (Arc::clone(&found), Arc::clone(&stop));
        let thread = spawn(move || {
            while !ended.load(Ordering::Relaxed) {
                look(&run_dir, &kept);
                sleep(POLL_INTERVAL);
            }
        });
        Self { found, stop, thread: Some(thread) }
    }

    /// Waits for the token of a job and writes it with the job's id to `stolen.json` in its workspace.
    ///
    /// # Errors
    ///
    /// If no token was seen in time, or the workspace cannot be written.
    pub fn copy_to(&self, job: &str, workspace: &Path) -> io::Result<()> {
        let since = Instant::now();
        let token = loop {
            let found = self.found.lock().unwrap_or_else(PoisonError::into_inner);
            let token = found.iter().find(|(container, _)| container.contains(job)).map(|(_, token)| token.clone());
            drop(found);
            match token {
                Some(token) => break token,
                None if since.elapsed() > TIMEOUT => {
                    return Err(io::Error::new(io::ErrorKind::TimedOut, format!("no token of {job} was seen")));
                }
                None => sleep(POLL_INTERVAL),
            }
        };
        let fresh = workspace.join("stolen.part");
        fs::write(&fresh, format!("{{\"job\": \"{job}\", \"token\": \"{}\"}}", token.trim()))?;
        fs::rename(fresh, workspace.join("stolen.json"))
    }
}

impl Drop for TokenCopier {
    fn drop(&mut self) {
        self.stop.store(true, Ordering::Relaxed);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

fn look(run_dir: &Path, found: &Mutex<HashMap<String, String>>) {
    for entry in fs::read_dir(run_dir).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let mut found = found.lock().unwrap_or_else(PoisonError::into_inner);
        if !found.contains_key(&name)
            && let Ok(token) = fs::read_to_string(entry.path().join("token"))
            && !token.is_empty()
        {
            found.insert(name, token);
        }
    }
}
