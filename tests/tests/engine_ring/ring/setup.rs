//! The setup of the engine tests: the test image, an engine client with its own instance id, and temporary directories.

use std::{
    collections::BTreeMap,
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

/// Longer than any operation of these tests.
pub(crate) const WAIT_TIMEOUT: Duration = Duration::from_secs(30);

/// The test images.
#[derive(Debug, Clone, Copy)]
pub(crate) enum Image {
    /// With the program of `inside.rs` as the worker.
    Good,
    /// Like `Good`, with a volume declared.
    WithVolume,
    /// Like `Good`, with an environment variable.
    WithVariable,
    /// Without a worker.
    Empty,
}

impl Image {
    /// The image's name. Builds the image if it is missing; the name contains a digest of its content.
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

/// Runs a command and returns whether it succeeded, and its output.
pub(crate) fn run(command: &mut Command) -> (bool, String) {
    let output = command.output().unwrap_or_else(|error| panic!("{command:?} cannot be run: {error}"));
    let text = String::from_utf8_lossy(&output.stdout).into_owned() + &String::from_utf8_lossy(&output.stderr);
    (output.status.success(), text)
}

/// Runs a command that must succeed.
pub(crate) fn must(command: &mut Command) -> String {
    let (success, text) = run(command);
    assert!(success, "{command:?} failed: {text}");
    text.trim().to_owned()
}

/// One install on the engine.
pub(crate) struct Fixture {
    pub(crate) engine: Docker,
    pub(crate) instance: InstanceId,
    pub(crate) directory: TempDir,
    image: String,
    settings: DockerSettings,
}

impl Fixture {
    pub(crate) fn new(image: Image) -> Self {
        Self::with(image, |_| {})
    }

    /// An install with other settings.
    pub(crate) fn with(image: Image, change: impl FnOnce(&mut DockerSettings)) -> Self {
        let directory = tempfile::tempdir().unwrap();
        let instance = InstanceId::generate();
        let image = image.name();
        let mut settings = DockerSettings {
            host: None,
            instance_id: instance,
            image: image.clone(),
            runtime: tests::install::stack::runtime(),
            run_dir: directory.path().join("run"),
            inet_datagrams: false,
        };
        change(&mut settings);
        fs::create_dir_all(directory.path().join("run")).unwrap();
        Self { engine: Docker::connect(settings.clone()), instance, directory, image, settings }
    }

    /// The engine client of a later process of the same install, with other settings.
    pub(crate) fn again(&self, change: impl FnOnce(&mut DockerSettings)) -> Docker {
        let mut settings = self.settings.clone();
        change(&mut settings);
        Docker::connect(settings)
    }

    /// A job whose program executes `orders`.
    pub(crate) fn job(&self, orders: &str) -> Job {
        let job_id = JobId::generate();
        let name = format!("gantry-job-{job_id}-1");
        let run_directory = self.directory.path().join("run").join(&name);
        let workspace = self.directory.path().join("jobs").join(job_id.to_string());
        fs::create_dir_all(&run_directory).unwrap();
        fs::create_dir_all(&workspace).unwrap();
        fs::write(workspace.join("do"), orders).unwrap();
        fs::write(run_directory.join("token"), "secret").unwrap();
        let socket = UnixListener::bind(run_directory.join("worker.sock")).unwrap();
        for (path, mode) in [(&workspace, 0o777), (&run_directory.join("worker.sock"), 0o666)] {
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
            run_dir: run_directory,
            workspace,
            traceparent: Some("00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01".to_owned()),
            hosts: BTreeMap::from([("a.example".to_owned(), [127, 0, 64, 1].into())]),
        };
        Job { spec, socket }
    }

    /// Follows the engine's events until the container has exited.
    pub(crate) async fn wait_for_exit(&self, name: &str) -> ContainerStatus {
        let following = async {
            loop {
                let seen = self.engine.observe(name).await.unwrap().expect("the container is there");
                if matches!(seen.status, ContainerStatus::Exited { .. }) {
                    return seen.status;
                }
                self.engine.changed().await;
            }
        };
        tokio::time::timeout(WAIT_TIMEOUT, following).await.expect("the end is noticed")
    }

    /// Asserts that nothing of this instance is left. Every test ends with it.
    pub(crate) async fn finish(self) {
        assert_eq!(self.engine.list().await, Ok(Vec::new()), "containers left");
        let left: Vec<PathBuf> = fs::read_dir(self.directory.path().join("run"))
            .unwrap()
            .map(|entry| entry.unwrap().path())
            .filter(|path| path.file_name().unwrap().to_string_lossy().starts_with("gantry-probe"))
            .collect();
        assert_eq!(left, Vec::<PathBuf>::new(), "directories left");
    }
}

impl Drop for Fixture {
    /// Cleans up after a failed test.
    fn drop(&mut self) {
        let label = format!("label=gantry.instance-id={}", self.instance);
        let (_, ids) = run(Command::new("docker").args(["ps", "-aq", "--filter", &label]));
        for id in ids.lines() {
            run(Command::new("docker").args(["rm", "-f", id]));
        }
    }
}

/// The spec of a job's container, and the orchestrator's end of its socket.
pub(crate) struct Job {
    pub(crate) spec: ContainerSpec,
    socket: UnixListener,
}

impl Job {
    pub(crate) fn name(&self) -> &str {
        &self.spec.name
    }

    /// Waits until the program in the container reports this point.
    pub(crate) async fn ready(&self) {
        tokio::time::timeout(WAIT_TIMEOUT, self.socket.accept()).await.expect("the program reports readiness").unwrap();
    }
}
