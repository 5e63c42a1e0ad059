//! The worker binary as a process on this machine, with the environment that a container would have.
//!
//! Owns finding and starting it. Does not isolate it: it works on a workspace in a temporary directory.

use std::{
    fs::{self, File},
    os::unix::process::ExitStatusExt,
    path::{Path, PathBuf},
    process::Stdio,
};

use orchestrator::engine::ContainerSpec;
use rustix::process::{Pid, Signal, kill_process, kill_process_group};
use tokio::process::{Child, Command};

/// Starts the worker.
pub(crate) fn spawn(spec: &ContainerSpec, output: &Path) -> Child {
    let home = output.with_extension("home");
    fs::create_dir_all(&home).expect("a home directory");
    let out = File::create(output).expect("a file for its output");
    let errors = out.try_clone().expect("a file for its output");
    Command::new(binary())
        .env_clear()
        .env("GANTRY_JOB_ID", spec.job_id.to_string())
        .env("GANTRY_SOCKET", spec.run_dir.join("worker.sock"))
        .env("GANTRY_TOKEN_FILE", spec.run_dir.join("token"))
        .env("GANTRY_WORKSPACE", &spec.workspace)
        .env("HOME", home)
        .env("PATH", "/usr/local/bin:/usr/bin:/bin")
        .env("LANG", "C.UTF-8")
        .envs(spec.traceparent.as_ref().map(|context| ("TRACEPARENT", context)))
        .current_dir(&spec.workspace)
        .stdin(Stdio::null())
        .stdout(out)
        .stderr(errors)
        .process_group(0)
        .kill_on_drop(true)
        .spawn()
        .expect("gantry-worker starts")
}

/// Waits for its exit and returns the exit code as an engine reports it.
pub(crate) async fn wait(mut child: Child) -> i64 {
    let status = child.wait().await.expect("a process can be waited for");
    status.code().or_else(|| status.signal().map(|signal| 128 + signal)).map_or(-1, i64::from)
}

/// Sends SIGTERM to the worker only, as an engine does.
pub(crate) fn terminate(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The process may have exited meanwhile.
        let _ = kill_process(pid, Signal::TERM);
    }
}

/// Pauses or resumes the process group.
pub(crate) fn freeze(pid: i32, is_frozen: bool) {
    if let Some(pid) = Pid::from_raw(pid) {
        // The process may have exited meanwhile.
        let _ = kill_process_group(pid, if is_frozen { Signal::STOP } else { Signal::CONT });
    }
}

/// Sends SIGKILL to the process group.
pub(crate) fn kill(pid: i32) {
    if let Some(pid) = Pid::from_raw(pid) {
        let _ = kill_process_group(pid, Signal::KILL);
    }
}

/// Next to the test's executable, in the target directory.
fn binary() -> PathBuf {
    let test = std::env::current_exe().expect("a test knows its executable");
    let built =
        test.ancestors().skip(1).take(3).map(|directory| directory.join("gantry-worker")).find(|path| path.is_file());
    let Some(binary) = built else {
        panic!("gantry-worker is not next to {}; build it first: cargo build -p worker", test.display());
    };
    binary
}
