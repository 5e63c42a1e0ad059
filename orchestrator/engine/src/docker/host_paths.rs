//! Maps paths of the orchestrator to paths on the engine's host.
//!
//! They differ if the orchestrator itself runs in a container of that engine. Pure: never reads a file, never calls the
//! engine.

use std::path::{Path, PathBuf};

use crate::EngineError;

/// How the orchestrator's paths map to the engine's.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum HostPaths {
    /// The orchestrator sees the engine's file system.
    Same,
    /// The orchestrator runs in a container with these mounts.
    Mounted(Vec<OwnMount>),
}

/// A mount of the orchestrator's own container.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) struct OwnMount {
    /// Its path in the orchestrator's container.
    pub(super) destination: PathBuf,
    /// Its path on the engine's host; none if it has none there (a tmpfs).
    pub(super) source: Option<PathBuf>,
}

impl HostPaths {
    /// The path on the engine's host, by the innermost mount that contains it.
    pub(super) fn to_host(&self, path: &Path) -> Result<PathBuf, EngineError> {
        let mounts = match self {
            Self::Same => return Ok(path.to_owned()),
            Self::Mounted(mounts) => mounts,
        };
        let innermost = mounts
            .iter()
            .filter_map(|mount| path.strip_prefix(&mount.destination).ok().map(|rest| (mount, rest)))
            .max_by_key(|(mount, _)| mount.destination.components().count());
        match innermost {
            Some((OwnMount { source: Some(source), .. }, rest)) if rest.as_os_str().is_empty() => Ok(source.clone()),
            Some((OwnMount { source: Some(source), .. }, rest)) => Ok(source.join(rest)),
            Some(_) | None => Err(EngineError::Refused(format!(
                "{} is not on a volume or bind mount of the orchestrator's container, so the engine cannot mount it; put \
                 Gantry's data on one",
                path.display()
            ))),
        }
    }
}

/// The id of the container that this process runs in, from `/proc/self/mountinfo`: the engine mounts files such as
/// `/etc/hostname` from a directory named by the id. A host's table contains ids as well, but never at these mount
/// points.
pub(super) fn own_container_id(mountinfo: &str) -> Option<&str> {
    mountinfo.lines().find_map(|line| {
        let mut fields = line.split(' ').skip(3);
        let (root, mount_point) = (fields.next()?, fields.next()?);
        if !matches!(mount_point, "/etc/hostname" | "/etc/hosts" | "/etc/resolv.conf") {
            return None;
        }
        root.split('/').find(|part| part.len() == 64 && part.bytes().all(|byte| byte.is_ascii_hexdigit()))
    })
}

#[cfg(test)]
mod tests {
    use rstest::rstest;

    use super::*;

    const ID: &str = "0123456789abcdef0123456789abcdef0123456789abcdef0123456789abcdef";

    fn mount(destination: &str, source: Option<&str>) -> OwnMount {
        OwnMount { destination: destination.into(), source: source.map(PathBuf::from) }
    }

    #[rstest]
    #[case::within_a_volume("/data/run/x", Some("/var/lib/docker/volumes/gantry/_data/run/x"))]
    #[case::the_mount_itself("/data", Some("/var/lib/docker/volumes/gantry/_data"))]
    #[case::the_innermost_mount_wins("/data/jobs/7/workspace", Some("/srv/jobs/7/workspace"))]
    #[case::a_like_named_sibling_is_not_inside("/database/x", None)]
    #[case::in_the_image("/etc/x", None)]
    #[case::a_tmpfs_hides_the_volume_below("/data/tmp/x", None)]
    fn a_path_is_mapped_by_its_innermost_mount(#[case] path: &str, #[case] wanted: Option<&str>) {
        let paths = HostPaths::Mounted(vec![
            mount("/data", Some("/var/lib/docker/volumes/gantry/_data")),
            mount("/data/jobs", Some("/srv/jobs")),
            mount("/data/tmp", None),
            mount("/var/run/docker.sock", Some("/var/run/docker.sock")),
        ]);
        assert_eq!(paths.to_host(Path::new(path)).ok(), wanted.map(PathBuf::from));
    }

    #[test]
    fn outside_a_container_paths_are_unchanged() {
        assert_eq!(HostPaths::Same.to_host(Path::new("/any/where")), Ok(PathBuf::from("/any/where")));
    }

    #[rstest]
    #[case::docker(format!("612 590 254:1 /var/lib/docker/containers/{ID}/hostname /etc/hostname rw - ext4 /dev/x rw"), Some(ID))]
    #[case::data_root_elsewhere(format!("1 2 8:1 /d/containers/{ID}/hosts /etc/hosts rw - ext4 /dev/x rw"), Some(ID))]
    #[case::a_hosts_table(format!("40 31 0:49 / /var/lib/docker/containers/{ID}/mounts/shm rw - tmpfs shm rw"), None)]
    #[case::a_plain_host("25 30 0:23 / /sys rw shared:7 - sysfs sysfs rw".to_owned(), None)]
    #[case::empty(String::new(), None)]
    fn the_own_container_is_identified_by_its_mounts(#[case] table: String, #[case] wanted: Option<&str>) {
        assert_eq!(own_container_id(&table), wanted);
    }
}
