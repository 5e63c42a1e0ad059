//! The Unix sockets of workers: one run folder with `worker.sock` and `token` per live container, and the tasks that serve
//! them.
//!
//! Never removes a folder that a container may still have mounted: that is the dispatcher's decision. Never knows the protocol
//! of a socket.

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

/// Serves an attempt's socket until the token is cancelled and what had been asked by then is answered.
pub type ServeSocket =
    Arc<dyn Fn(UnixListener, Arc<Attempt>, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

/// Connections that wait to be accepted (contract: sandbox, Worker API).
const BACKLOG: u32 = 64;

/// The token files in the run folders. A token is there until its worker has opened its session.
#[derive(Debug, Clone)]
pub struct TokenFiles {
    run_dir: PathBuf,
}

impl TokenFiles {
    /// In the folders below `run_dir`.
    pub fn new(run_dir: PathBuf) -> Self {
        Self { run_dir }
    }

    /// Removes a container's. One that is gone already is fine.
    pub fn remove(&self, container: &str) -> io::Result<()> {
        match fs::remove_file(self.run_dir.join(container).join("token")) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }
}

/// The listeners of this process. Which are served is kept with their attempts.
pub struct WorkerListeners {
    run_dir: PathBuf,
    token_files: TokenFiles,
    serve_socket: ServeSocket,
    attempts: Arc<AttemptRegistry>,
    tasks: TaskTracker,
}

impl WorkerListeners {
    /// Sockets in `run_dir`, each served by `serve_socket`.
    pub fn new(run_dir: PathBuf, serve_socket: ServeSocket, attempts: Arc<AttemptRegistry>) -> Self {
        let token_files = TokenFiles::new(run_dir.clone());
        Self { run_dir, token_files, serve_socket, attempts, tasks: TaskTracker::new() }
    }

    /// The token files in its folders.
    pub fn token_files(&self) -> &TokenFiles {
        &self.token_files
    }

    /// The folder of a container.
    pub fn folder(&self, container: &str) -> PathBuf {
        self.run_dir.join(container)
    }

    /// Creates the folder with its token and serves the socket. What is mounted is what may be read: no chown is needed.
    pub fn open(&self, container: &str, attempt: Arc<Attempt>, token: &SecretString) -> io::Result<()> {
        let folder = self.folder(container);
        fs::DirBuilder::new().recursive(true).mode(0o700).create(&self.run_dir)?;
        fs::DirBuilder::new().recursive(true).mode(0o755).create(&folder)?;
        // The process's umask may have narrowed it.
        fs::set_permissions(&folder, fs::Permissions::from_mode(0o755))?;
        let file = folder.join("token");
        let fresh = folder.join(".token");
        fs::write(&fresh, token.expose_secret())?;
        fs::set_permissions(&fresh, fs::Permissions::from_mode(0o444))?;
        fs::rename(&fresh, &file)?;
        self.serve(container, attempt)
    }

    /// Serves the socket in a folder that exists: after a restart only `worker.sock` in it is replaced.
    pub fn serve(&self, container: &str, attempt: Arc<Attempt>) -> io::Result<()> {
        let path = self.folder(container).join("worker.sock");
        let listener = bind(&path)?;
        let stop = CancellationToken::new();
        attempt.set_listener(container.to_owned(), stop.clone());
        self.tasks.spawn((self.serve_socket)(listener, attempt, stop));
        Ok(())
    }

    /// Stops serving and removes the folder: the container is gone.
    pub fn close(&self, container: &str) -> io::Result<()> {
        self.attempts.stop_listener(container);
        match fs::remove_dir_all(self.folder(container)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Run folders on disk. Other files are left alone.
    pub fn folders(&self) -> io::Result<Vec<String>> {
        let entries = match fs::read_dir(&self.run_dir) {
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

    /// Stops serving everything and waits for what is being answered. Folders stay: workers may live on.
    pub async fn stop(&self) {
        self.attempts.stop_listeners();
        self.tasks.close();
        self.tasks.wait().await;
    }
}

fn bind(path: &Path) -> io::Result<UnixListener> {
    match fs::remove_file(path) {
        Err(error) if error.kind() != io::ErrorKind::NotFound => return Err(error),
        _ => {}
    }
    let socket = UnixSocket::new_stream()?;
    socket.bind(path)?;
    let listener = socket.listen(BACKLOG)?;
    fs::set_permissions(path, fs::Permissions::from_mode(0o666))?;
    Ok(listener)
}
