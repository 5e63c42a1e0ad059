//! `gantry` as a process.

use std::{
    io::{BufRead, BufReader, Read},
    path::PathBuf,
    process::{ExitStatus, Stdio},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
    },
};

use crate::within;
use rustix::process::{Pid, Signal, kill_process};
use serde_json::Value;
use tokio::{io::AsyncWriteExt as _, process::Command, sync::watch};

/// The binary, next to the test's executable in the target directory.
pub fn gantry() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its executable");
    let built = test.ancestors().skip(1).take(3).map(|directory| directory.join("gantry")).find(|path| path.is_file());
    let Some(binary) = built else {
        panic!("gantry is not next to {}; build it first: cargo build --workspace --bin gantry", test.display());
    };
    binary
}

/// The output and exit code of a command.
#[derive(Debug)]
pub struct Ended {
    /// The exit code; `None` if a signal ended it.
    pub code: Option<i32>,
    /// Standard output, trimmed.
    pub stdout: String,
    /// Standard error, trimmed.
    pub stderr: String,
}

impl Ended {
    /// Parses the only line of standard output as JSON.
    #[track_caller]
    pub fn json(&self) -> Value {
        serde_json::from_str(&self.stdout).unwrap_or_else(|error| panic!("no JSON ({error}): {self:?}"))
    }
}

/// Runs `gantry` to its end, without the test's environment.
pub async fn run(arguments: &[&str], environment: &[(String, String)]) -> Ended {
    run_with_input(arguments, environment, "").await
}

/// Like [`run`], with this on standard input.
pub async fn run_with_input(arguments: &[&str], environment: &[(String, String)], input: impl AsRef<[u8]>) -> Ended {
    let mut command = Command::new(gantry());
    command.args(arguments).env_clear().envs(environment.iter().cloned()).current_dir("/").kill_on_drop(true);
    command.stdin(Stdio::piped()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = command.spawn().expect("gantry can be run");
    let mut stdin = child.stdin.take().expect("piped");
    // The command may end without reading all of it.
    let _ = stdin.write_all(input.as_ref()).await;
    drop(stdin);
    let output = within("a command to end", child.wait_with_output()).await.expect("a child can be waited for");
    let text = |bytes: Vec<u8>| String::from_utf8_lossy(&bytes).trim().to_owned();
    Ended { code: output.status.code(), stdout: text(output.stdout), stderr: text(output.stderr) }
}

/// A running `gantry`.
pub struct Daemon {
    child: std::process::Child,
    lines: Arc<Mutex<Vec<String>>>,
    output_bytes: Arc<AtomicU64>,
    updates: watch::Receiver<usize>,
}

impl Daemon {
    /// Starts it and captures its output.
    pub fn start(arguments: &[&str], environment: &[(String, String)]) -> Self {
        let mut command = std::process::Command::new(gantry());
        command.args(arguments).env_clear().envs(environment.iter().cloned()).current_dir("/");
        command.stdin(Stdio::null()).stdout(Stdio::piped()).stderr(Stdio::piped());
        let mut child = command.spawn().expect("gantry can be run");
        let (lines, output_bytes) = (Arc::new(Mutex::new(vec![])), Arc::new(AtomicU64::new(0)));
        let (update, updates) = watch::channel(0);
        let buffer =
            OutputBuffer { lines: Arc::clone(&lines), bytes: Arc::clone(&output_bytes), update: Arc::new(update) };
        collect_lines(child.stdout.take().expect("piped"), buffer.clone());
        collect_lines(child.stderr.take().expect("piped"), buffer);
        Self { child, lines, output_bytes, updates }
    }

    /// Waits for the first line of output that `wanted` accepts.
    pub async fn wait_for_line<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> T {
        let found = self.wait_for_line_or_end(what, wanted).await;
        found.unwrap_or_else(|| panic!("gantry ended before {what}: {:#?}", self.lines()))
    }

    /// Like [`Self::wait_for_line`]; `None` if the process ends first.
    pub async fn wait_for_line_or_end<T>(&self, what: &str, wanted: impl Fn(&str) -> Option<T>) -> Option<T> {
        let mut updates = self.updates.clone();
        within(what, async {
            loop {
                let seen = *updates.borrow_and_update();
                if let Some(found) = self.lines().iter().find_map(|line| wanted(line)) {
                    return Some(found);
                }
                // The sender is dropped when the process ends.
                if updates.changed().await.is_err() && *updates.borrow() == seen {
                    return None;
                }
            }
        })
        .await
    }

    /// The output so far.
    pub fn lines(&self) -> Vec<String> {
        self.lines.lock().expect("no reader panicked").clone()
    }

    /// The number of bytes of output so far.
    pub fn output_bytes(&self) -> u64 {
        self.output_bytes.load(Ordering::Relaxed)
    }

    /// The process id.
    pub fn pid(&self) -> u32 {
        self.child.id()
    }

    /// Sends SIGINT.
    pub fn interrupt(&self) {
        kill_process(Pid::from_child(&self.child), Signal::INT).expect("it runs");
    }

    /// Sends SIGTERM and waits for the exit.
    pub async fn terminate(&mut self) -> ExitStatus {
        kill_process(Pid::from_child(&self.child), Signal::TERM).expect("it runs");
        self.ended().await
    }

    /// Waits for the exit.
    pub async fn ended(&mut self) -> ExitStatus {
        let ended = async {
            loop {
                if let Some(status) = self.child.try_wait().expect("a child can be waited for") {
                    return status;
                }
                // The output ends with the process.
                let _ = self.updates.changed().await;
                tokio::task::yield_now().await;
            }
        };
        within("gantry to end", ended).await
    }

    /// Sends SIGKILL.
    pub fn kill(&mut self) {
        self.child.kill().expect("it runs");
        self.child.wait().expect("a child can be waited for");
    }
}

impl Drop for Daemon {
    fn drop(&mut self) {
        // The process may have exited before.
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

/// Collects a process's output.
#[derive(Clone)]
struct OutputBuffer {
    lines: Arc<Mutex<Vec<String>>>,
    bytes: Arc<AtomicU64>,
    update: Arc<watch::Sender<usize>>,
}

fn collect_lines(pipe: impl Read + Send + 'static, buffer: OutputBuffer) {
    std::thread::spawn(move || {
        for line in BufReader::new(pipe).lines().map_while(Result::ok) {
            buffer.bytes.fetch_add(line.len() as u64 + 1, Ordering::Relaxed);
            buffer.lines.lock().expect("no reader panicked").push(line);
            buffer.update.send_modify(|count| *count += 1);
        }
    });
}
