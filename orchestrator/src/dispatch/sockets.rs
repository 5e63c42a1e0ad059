//! The per-container Unix sockets: one folder with `worker.sock` and `token` per live container, and the tasks that
//! serve them.
//!
//! Never removes a folder whose container may still be mounted on it: that is the dispatcher's decision. Never knows what is
//! spoken on a socket.

use std::{
    collections::{HashMap, HashSet},
    fs, io,
    os::unix::fs::{DirBuilderExt, PermissionsExt},
    path::{Path, PathBuf},
    sync::{Arc, Mutex, PoisonError},
};

use futures_util::future::BoxFuture;
use protocol::{ContainerName, JobId};
use secrecy::{ExposeSecret, SecretString};
use tokio::net::{UnixListener, UnixSocket};
use tokio_util::{sync::CancellationToken, task::TaskTracker};

/// Which job a socket belongs to: put on every request that comes through it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct SocketJob {
    /// The job.
    pub job: JobId,
    /// The attempt.
    pub attempt: u32,
}

/// Serves a job's socket until the token is cancelled and what had been asked by then is answered.
pub type ServeSocket = Arc<dyn Fn(UnixListener, SocketJob, CancellationToken) -> BoxFuture<'static, ()> + Send + Sync>;

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

/// The sockets of this process.
pub struct Sockets {
    run_dir: PathBuf,
    token_files: TokenFiles,
    serve_socket: ServeSocket,
    serving: Mutex<HashMap<String, CancellationToken>>,
    tasks: TaskTracker,
}

impl Sockets {
    /// In `run_dir`, each served by `serve_socket`.
    pub fn new(run_dir: PathBuf, serve_socket: ServeSocket) -> Self {
        let token_files = TokenFiles::new(run_dir.clone());
        Self { run_dir, token_files, serve_socket, serving: Mutex::new(HashMap::new()), tasks: TaskTracker::new() }
    }

    /// The token files in its folders.
    pub fn token_files(&self) -> &TokenFiles {
        &self.token_files
    }

    /// The folder of a container.
    pub fn folder(&self, container: &str) -> PathBuf {
        self.run_dir.join(container)
    }

    /// Makes the folder with its token and serves the socket. What is mounted is what may be read: no chown is needed.
    pub fn open(&self, container: &str, job: SocketJob, token: &SecretString) -> io::Result<()> {
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
        self.serve(container, job)
    }

    /// Serves the socket in a folder that exists: after a restart only `worker.sock` in it is made anew.
    pub fn serve(&self, container: &str, job: SocketJob) -> io::Result<()> {
        let path = self.folder(container).join("worker.sock");
        let listener = bind(&path)?;
        let stop = CancellationToken::new();
        let old = self.lock().insert(container.to_owned(), stop.clone());
        if let Some(old) = old {
            old.cancel();
        }
        self.tasks.spawn((self.serve_socket)(listener, job, stop));
        Ok(())
    }

    /// Containers whose socket is served.
    pub fn served(&self) -> HashSet<String> {
        self.lock().keys().cloned().collect()
    }

    /// Stops serving and removes the folder: the container is gone.
    pub fn close(&self, container: &str) -> io::Result<()> {
        if let Some(stop) = self.lock().remove(container) {
            stop.cancel();
        }
        match fs::remove_dir_all(self.folder(container)) {
            Err(error) if error.kind() != io::ErrorKind::NotFound => Err(error),
            _ => Ok(()),
        }
    }

    /// Run folders on disk. What is not a folder is not ours to judge.
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
        for (_, stop) in self.lock().drain() {
            stop.cancel();
        }
        self.tasks.close();
        self.tasks.wait().await;
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, HashMap<String, CancellationToken>> {
        self.serving.lock().unwrap_or_else(PoisonError::into_inner)
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
