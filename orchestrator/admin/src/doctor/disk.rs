//! Checks of `gantry doctor` about disk space and the enforcement of disk limits. Read-only.

use std::time::Duration;

use tokio::{net::UnixStream, time::timeout};

use cli::Check;
use config::Config;
use workspace::FreeSpace;

const MB: u64 = 1024 * 1024;
const DEFAULT_SOCKET: &str = "/var/run/docker.sock";
const CONNECT_LIMIT: Duration = Duration::from_secs(2);

/// Runs all disk checks.
pub(super) async fn checks(config: &Config) -> Vec<Check> {
    let is_root = rustix::process::geteuid().is_root();
    let sees_processes = is_root && sees_engine(config.sandbox.docker_host.as_deref()).await;
    vec![free_space(config), limit(is_root), unlinked(sees_processes)]
}

fn free_space(config: &Config) -> Check {
    const NAME: &str = "disk space";
    let free_space = FreeSpace::new(config.workspace_dir.clone(), config.disk_floor_mb);
    let space = match free_space.read() {
        Ok(space) => space,
        Err(error) => {
            return Check::failed(NAME, error.to_string(), "check the file system of GANTRY_WORKSPACE_DIR");
        }
    };
    let (free, total, floor) = (space.free_bytes / MB, space.total_bytes / MB, free_space.floor_bytes(space) / MB);
    let found =
        format!("{free} MB of {total} MB free for workspaces; below {floor} MB no job starts and uploads are refused");
    if space.free_bytes < free_space.floor_bytes(space) {
        return Check::failed(NAME, found, "free some space, or lower GANTRY_DISK_FLOOR_MB");
    }
    Check::ok(NAME, found)
}

fn limit(is_root: bool) -> Check {
    const NAME: &str = "disk limit";
    let found = "limits.disk_mb is enforced by measuring each running job's workspace every second, and at once when \
                 128 MB of free space have been used; there is no file system quota";
    if is_root {
        return Check::ok(NAME, found);
    }
    let advice = "not running as root: a job that creates a directory that other users cannot read ends with disk_limit, and \
                  its files cannot be removed; run the server as root";
    Check::note(NAME, found, advice)
}

fn unlinked(sees_processes: bool) -> Check {
    const NAME: &str = "deleted files";
    if sees_processes {
        return Check::ok(
            NAME,
            "the space of files that a job has deleted but keeps open counts towards limits.disk_mb",
        );
    }
    Check::note(
        NAME,
        "the space of files that a job has deleted but keeps open is not counted; only the minimum free space bounds them",
        "run the server as root on the engine's host, or in a container with pid: host",
    )
}

/// Whether the engine's processes are visible in this pid namespace; the processes of its containers are then visible
/// too.
async fn sees_engine(docker_host: Option<&str>) -> bool {
    let Some(socket) = docker_host.map_or(Some(DEFAULT_SOCKET), |host| host.strip_prefix("unix://")) else {
        return false;
    };
    let Ok(Ok(stream)) = timeout(CONNECT_LIMIT, UnixStream::connect(socket)).await else { return false };
    // The pid is 0 for a process in a namespace that is not visible from here.
    stream.peer_cred().ok().and_then(|peer| peer.pid()).is_some_and(|pid| pid > 0)
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;
    use base::Environment;
    use config::Sources;

    use cli::Verdict;

    #[rstest]
    #[case::fine("0", Verdict::Ok)]
    #[case::below_the_floor("67108864", Verdict::Failed)]
    fn free_space_below_the_minimum_is_a_failure(#[case] floor_mb: &str, #[case] verdict: Verdict) {
        let set = Environment::from_pairs([("HOME", "/tmp"), ("GANTRY_DISK_FLOOR_MB", floor_mb)]);
        let check = free_space(&Config::load(&set, Sources::default()).unwrap());
        assert_eq!(check.verdict, verdict, "{check:?}");
        assert!(check.found.contains(&format!("below {floor_mb} MB")));
    }

    #[tokio::test]
    async fn only_a_local_engines_processes_are_visible() {
        assert!(!sees_engine(Some("tcp://10.0.0.1:2375")).await);
        assert!(!sees_engine(Some("unix:///nowhere.sock")).await);
        let directory = tempfile::tempdir().unwrap();
        let socket = directory.path().join("s");
        let _listener = tokio::net::UnixListener::bind(&socket).unwrap();
        assert!(sees_engine(Some(&format!("unix://{}", socket.display()))).await);
    }

    #[test]
    fn missing_enforcement_is_reported_with_advice() {
        for check in [limit(false), unlinked(false)] {
            assert_eq!(check.verdict, Verdict::Note);
            assert!(check.advice.is_some_and(|advice| advice.contains("root")));
        }
        for check in [limit(true), unlinked(true)] {
            assert_eq!(check.verdict, Verdict::Ok);
        }
    }
}
