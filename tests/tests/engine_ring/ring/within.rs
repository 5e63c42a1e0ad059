//! The orchestrator's side in a container of the engine that it uses, with its data on a named volume, as compose has it.

use std::{env, process::Command};

use protocol::InstanceId;

use super::ground::{Image, must, run};

/// This very program runs two of its stories again, in a container whose files are this machine's.
#[test]
fn a_volume_of_our_own_container_is_found_on_the_engines_host() {
    let image = Image::Empty.name();
    Image::Good.name();
    let volume = format!("gantry-ring-{}", InstanceId::generate());
    must(Command::new("docker").args(["volume", "create", &volume]));

    let mut inner = Command::new("docker");
    inner.args(["run", "--rm", "--env", "TMPDIR=/data", "--env", "PATH=/usr/local/bin:/usr/bin"]);
    inner.arg("--volume").arg(format!("{}:/ring:ro", env::current_exe().unwrap().display()));
    for folder in ["/usr", "/lib", "/lib64"] {
        inner.args(["--volume", &format!("{folder}:{folder}:ro")]);
    }
    inner.args(["--volume", "/var/run/docker.sock:/var/run/docker.sock"]);
    // The second place is for the lock under which images are made.
    inner.args(["--volume", &format!("{volume}:/data"), "--volume"]);
    inner.arg(format!("{volume}:{}", env!("CARGO_TARGET_TMPDIR")));
    inner.args(["--entrypoint", "/ring", &image, "a_job_starts", "a_good_image_is_ready"]);
    let (success, printed) = run(&mut inner);

    must(Command::new("docker").args(["volume", "rm", &volume]));
    assert!(success && printed.contains("2 passed"), "{printed}");
}
