//! What the ring stands on: the test image, an engine client of an instance of its own, and folders that go away.

use std::{
    fs,
    io::Write,
    os::unix::fs::PermissionsExt,
    path::{Path, PathBuf},
    process::{Command, Stdio},
    time::Duration,
};

use chrono::DateTime;
use orchestrator::engine::{ContainerRole, ContainerSpec, ContainerStatus, Docker, DockerSettings, Engine, Resources};
use protocol::{InstanceId, JobId};
use tempfile::TempDir;
use tokio::net::UnixListener;

/// Longer than anything here takes; a test that waits this long has failed.
pub(crate) const PATIENCE: Duration = Duration::from_secs(30);

/// Which image.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Image {
    /// The program of `inside.rs` as the worker.
    Good,
    /// The same, with a volume declared.
    WithVolume,
    /// The same, with a variable in its environment.
    WithVariable,
    /// No worker in it.
    Empty,
}

impl Image {
    /// Its name, made if the engine has it not. The name tells the content, so that a changed program is a new image.
    pub(crate) fn name(self) -> String {
        let source = include_bytes!("../inside.rs");
        let sum = source
            .iter()
            .fold(0xcbf2_9ce4_8422_2325_u64, |sum, byte| (sum ^ u64::from(*byte)).wrapping_mul(0x0000_0100_0000_01b3));
        let (kind, change) = match self {
            Self::Good => ("good", None),
            Self::WithVolume => ("volume", Some("VOLUME /data")),
            Self::WithVariable => ("variable", Some("ENV NODE_VERSION=20")),
            Self::Empty => ("empty", None),
        };
        let name = format!("gantry-ring-{kind}:{sum:016x}");
        let lock = fs::File::create(Path::new(env!("CARGO_TARGET_TMPDIR")).join("ring.lock")).unwrap();
        lock.lock().unwrap();
        if !run(Command::new("docker").args(["image", "inspect", &name])).0 {
            self.make(&name, change);
        }
        name
    }

    fn make(self, name: &str, change: Option<&str>) {
        let root = tempfile::tempdir().unwrap();
        let bin = root.path().join("usr/local/bin");
        fs::create_dir_all(&bin).unwrap();
        if !matches!(self, Self::Empty) {
            let source = Path::new(env!("CARGO_MANIFEST_DIR")).join("tests/engine_ring/inside.rs");
            let mut rustc = Command::new("rustc");
            rustc.args(["--edition", "2024", "-C", "target-feature=+crt-static", "-C", "opt-level=1", "-o"]);
            must(rustc.arg(bin.join("gantry-worker")).arg(source));
        }
        let tar = Command::new("tar").arg("-C").arg(root.path()).args(["-c", "."]).output().unwrap();
        assert!(tar.status.success());
        let mut import = Command::new("docker");
        import.arg("import");
        if let Some(change) = change {
            import.args(["--change", change]);
        }
        let mut import = import.args(["-", name]).stdin(Stdio::piped()).stdout(Stdio::null()).spawn().unwrap();
        import.stdin.take().unwrap().write_all(&tar.stdout).unwrap();
        assert!(import.wait().unwrap().success(), "docker import failed: is the engine up?");
    }
}

/// Whether it went well, and what it printed.
pub(crate) fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Runs it; a failure is the test's.
pub(crate) fn must(command: &mut Command) -> String {
    let (success, text) = run(command);
    assert!(success, "{command:?} failed: {text}");
    text.trim().to_owned()
}

/// One install on the engine.
pub(crate) struct Ring {
    pub(crate) engine: Docker,
    pub(crate) instance: InstanceId,
    pub(crate) folder: TempDir,
    image: String,
    settings: DockerSettings,
}

impl Ring {
    pub(crate) fn new(image: Image) -> Self {
        Self::with(image, |_| {})
    }

    /// With settings of the test's own.
    pub(crate) fn with(image: Image, change: impl FnOnce(&mut DockerSettings)) -> Self {
        let folder = tempfile::tempdir().unwrap();
        let instance = InstanceId::generate();
        let image = image.name();
        let mut settings = DockerSettings {
            host: None,
            instance_id: instance,
            image: image.clone(),
            runtime: tests::install::stack::runtime(),
            run_dir: folder.path().join("run"),
            inet_datagrams: false,
        };
        change(&mut settings);
        fs::create_dir_all(folder.path().join("run")).unwrap();
        Self { engine: Docker::connect(settings.clone()), instance, folder, image, settings }
    }

    /// The engine as a later process of the same install has it, with settings changed.
    pub(crate) fn again(&self, change: impl FnOnce(&mut DockerSettings)) -> Docker {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Docker::connect(settings)
    }

    /// A job of this ring that does what `orders` say.
    pub(crate) fn job(&self, orders: &str) -> Job {
        let job_id = JobId::generate();
        let name = format!("gantry-job-{job_id}-1");
        let run_folder = self.folder.path().join("run").join(&name);
        let workspace = self.folder.path().join("jobs").join(job_id.to_string());
        fs::create_dir_all(&run_folder).unwrap();
        fs::create_dir_all(&workspace).unwrap();
        fs::write(workspace.join("do"), orders).unwrap();
        fs::write(run_folder.join("token"), "secret").unwrap();
        let socket = UnixListener::bind(run_folder.join("worker.sock")).unwrap();
        for (path, mode) in [(&workspace, 0o777), (&run_folder.join("worker.sock"), 0o666)] {
            fs::set_permissions(path, fs::Permissions::from_mode(mode)).unwrap();
        }
        let spec = ContainerSpec {
            name,
            job_id,
            attempt: 1,
            owner: "ring".to_owned(),
            created_at: DateTime::from_timestamp(1_700_000_000, 0).unwrap(),
            role: ContainerRole::Job,
            image: self.image.clone(),
            resources: Resources { memory_mb: 64, cpus: 1.0, pids: 32, disk_mb: 32 },
            run_folder,
            workspace,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
        };
        Job { spec, socket }
    }

    /// Follows the engine's hints until the container has ended.
    pub(crate) async fn end_of(&self, name: &str) -> ContainerStatus {
        let following = async {
            loop {
                let seen = self.engine.observe(name).await.unwrap().expect("the container is there");
                if matches!(seen.status, ContainerStatus::Exited { .. }) {
                    return seen.status;
                }
                self.engine.changed().await;
            }
        };
        tokio::time::timeout(PATIENCE, following).await.expect("the end is noticed")
    }

    /// What every test ends with: nothing of this instance is left.
    pub(crate) async fn finish(self) {
        assert_eq!(self.engine.list().await, Ok(Vec::new()), "containers left");
        let left: Vec<PathBuf> = fs::read_dir(self.folder.path().join("run"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("gantry-probe"))
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "folders left");
    }
}

impl Drop for Ring {
    /// A test that failed leaves nothing either.
    fn drop(&mut self) {
        let label = format!("label=gantry.instance-id={}", self.instance);
        let (_, ids) = run(Command::new("docker").args(["ps", "-aq", "--filter", &label]));
        for id in ids.lines() {
            run(Command::new("docker").args(["rm", "-f", id]));
        }
    }
}

/// A job's container to be, and the orchestrator's end of its socket.
pub(crate) struct Job {
    pub(crate) spec: ContainerSpec,
    socket: UnixListener,
}

impl Job {
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// The program inside says that it has got there.
    pub(crate) async fn ready(&self) {
        tokio::time::timeout(PATIENCE, self.socket.accept()).await.expect("the program gets ready").unwrap();
    }
}
