//! The Unix sockets of workers: one run directory with `worker.sock` and `token` per live container, and the tasks that
//! serve the sockets.
//!
//! Never decides when a run directory is removed: the dispatcher does, once no container can have it mounted. Never
//! knows the protocol of a socket.

use std::{
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::Arc,
};

use futures_util::future::BoxFuture;
use protocol::ContainerName;
use secrecy::{ExposeSecret, SecretString};
use tokio::net::{UnixListener, UnixSocket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

use super::{Attempt, AttemptRegistry};

/// Serves an attempt's socket until the token is cancelled and the requests in progress are answered.
pub type ServeSocket =
    Arc<dyn Fn(UnixListener, Arc<Attempt>, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Maximum number of connections that wait to be accepted.
const BACKLOG: u32 = 64;

/// Only the orchestrator may enter the directory of all run directories.
const RUN_ROOT_MODE: u32 = 0o700;
/// The worker is another user: it may read what is mounted.
const RUN_DIR_MODE: u32 = 0o755;
const TOKEN_MODE: u32 = 0o444;
const SOCKET_MODE: u32 = 0o666;

/// The token files in the run directories. Each exists until its worker has opened its session.
#[derive(Debug, Clone)]
pub struct TokenFiles {
    run_root: PathBuf,
}

impl TokenFiles {
    /// Token files in the directories below `run_root`.
    pub fn new(run_root: PathBuf) -> Self {
        Self { run_root }
    }

    /// Removes a container's token file if it exists.
    pub fn remove(&self, container: &str) -> io::Result<()> {
        match fs::remove_file(self.run_root.join(container).join("token")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The worker sockets of this process. Which of them are served is recorded in the attempts.
pub struct WorkerListeners {
    run_root: PathBuf,
    pub(crate) token_files: TokenFiles,
    serve_socket: ServeSocket,
    attempts: Arc<AttemptRegistry>,
    tasks: TaskTracker,
}

impl WorkerListeners {
    /// Sockets in directories below `run_root`, each served by `serve_socket`.
    pub fn new(run_root: PathBuf, serve_socket: ServeSocket, attempts: Arc<AttemptRegistry>) -> Self {
        let token_files = TokenFiles::new(run_root.clone());
        Self { run_root, token_files, serve_socket, attempts, tasks: TaskTracker::new() }
    }

    /// The run directory of a container.
    pub fn run_dir(&self, container: &str) -> PathBuf {
        self.run_root.join(container)
    }

    /// Creates the run directory with its token and serves the socket. The modes let the worker read it, so no chown is
    /// needed.
    pub fn open(&self, container: &str, attempt: Arc<Attempt>, token: &SecretString) -> io::Result<()> {
        let run_dir = self.run_dir(container);
        fs::DirBuilder::new().recursive(true).mode(RUN_ROOT_MODE).create(&self.run_root)?;
        fs::DirBuilder::new().recursive(true).mode(RUN_DIR_MODE).create(&run_dir)?;
        // The process's umask may have removed bits.
        fs::set_permissions(&run_dir, fs::Permissions::from_mode(RUN_DIR_MODE))?;
        // Renamed into place, so that no worker reads a part of it.
        let temporary = run_dir.join(".token");
        fs::write(&temporary, token.expose_secret())?;
        fs::set_permissions(&temporary, fs::Permissions::from_mode(TOKEN_MODE))?;
        fs::rename(&temporary, run_dir.join("token"))?;
        self.serve(container, attempt)
    }

    /// Serves the socket in an existing run directory, in which only `worker.sock` is replaced.
    pub fn serve(&self, container: &str, attempt: Arc<Attempt>) -> io::Result<()> {
        let path = self.run_dir(container).join("worker.sock");
        let listener = bind(&path)?;
        let stop = CancellationToken::new();
        attempt.set_listener(container, stop.clone());
        self.tasks.spawn((self.serve_socket)(listener, attempt, stop));
        Ok(())
    }

    /// Stops serving the socket of a container that is gone, and removes its run directory.
    pub fn close(&self, container: &str) -> io::Result<()> {
        self.attempts.stop_listener(container);
        match fs::remove_dir_all(self.run_dir(container)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// The names of all run directories of jobs on disk.
    pub(crate) fn run_dirs(&self) -> io::Result<Vec<String>> {
        run_dirs(&self.run_root)
    }

    /// Stops serving all sockets and waits for the requests in progress. The run directories stay, since the containers
    /// may continue to run.
    pub async fn stop(&self) {
        self.attempts.stop_listeners();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

/// Binds the sockets in all run directories that an earlier process left, before anything is known of their jobs.
pub fn bind_sockets(run_root: &Path) -> io::Result<Vec<UnixListener>> {
    run_dirs(run_root)?.iter().map(|name| bind(&run_root.join(name).join("worker.sock"))).collect()
}

fn run_dirs(run_root: &Path) -> io::Result<Vec<String>> {
    let entries = match fs::read_dir(run_root) {
        Err(error) if error.kind() == io::ErrorKind::NotFound => return Ok(vec![]),
        other => other?,
    };
    let mut names = vec![];
    for entry in entries {
        let entry = entry?;
        if entry.file_type()?.is_dir()
            && let Ok(name) = entry.file_name().into_string()
            && ContainerName::has_job_prefix(&name)
        {
            names.push(name);
        }
    }
    Ok(names)
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let listener = socket.listen(BACKLOG)?;
    fs::set_permissions(path, fs::Permissions::from_mode(SOCKET_MODE))?;
    Ok(listener)
}
