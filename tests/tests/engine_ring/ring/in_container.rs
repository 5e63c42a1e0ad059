//! The orchestrator in a container of the engine that it uses, with its data on a named volume, as with compose.

use std::{env, process::Command};

use protocol::InstanceId;

use super::setup::{Image, must, run};

/// Runs two tests of this binary again, in a container with this machine's files.
#[test]
fn the_host_path_of_the_orchestrators_volume_is_found() {
    let image = Image::Empty.name();
    Image::Good.name();
    let volume = format!("gantry-ring-{}", InstanceId::generate());
    must(Command::new("docker").args(["volume", "create", &volume]));

    let mut inner = Command::new("docker");
    inner.args(["run", "--rm", "--env", "TMPDIR=/data", "--env", "PATH=/usr/local/bin:/usr/bin"]);
    inner.arg("--volume").arg(format!("{}:/ring:ro", env::current_exe().unwrap().display()));
    for directory in ["/usr", "/lib", "/lib64"] {
        inner.args(["--volume", &format!("{directory}:{directory}:ro")]);
    }
    inner.args(["--volume", "/var/run/docker.sock:/var/run/docker.sock"]);
    // The second mount is for the lock of image builds.
    inner.args(["--volume", &format!("{volume}:/data"), "--volume"]);
    inner.arg(format!("{volume}:{}", env!("CARGO_TARGET_TMPDIR")));
    inner.args(["--entrypoint", "/ring", &image, "a_job_starts", "a_valid_image_is_ready"]);
    let (success, printed) = run(&mut inner);

    must(Command::new("docker").args(["volume", "rm", &volume]));
    assert!(success && printed.contains("2 passed"), "{printed}");
}
