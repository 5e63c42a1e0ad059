//! Names of containers. The only place that formats or parses one.

use std::{fmt, str::FromStr};

use crate::JobId;

const JOB_PREFIX: &str = "gantry-job-";
const PROBE_PREFIX: &str = "gantry-probe-";
const MCP_PREFIX: &str = "gantry-mcp-";
/// Hyphenated form of a UUID.
const UUID_CHARS: usize = 36;
/// Attempts have at most three digits.
const ATTEMPT_MAX_DIGITS: usize = 3;

/// The name of a container. It is also the name of its run directory and of its log file.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum ContainerName {
    /// `gantry-job-<id>-<attempt>`: one attempt of a job.
    Job {
        /// The job.
        job_id: JobId,
        /// Its attempt, from 1.
        attempt: u32,
    },
    /// `gantry-probe-<id>`, without hyphens in the id: the temporary container of a readiness probe.
    Probe {
        /// The id that stands in for a job's.
        id: JobId,
    },
    /// `gantry-mcp-<id>`, without hyphens in the id: an MCP server for one user.
    Mcp {
        /// The id that stands in for a job's.
        id: JobId,
    },
}

impl ContainerName {
    /// Length of the longest name of a job's container, in bytes.
    pub const MAX_JOB_NAME_BYTES: usize = JOB_PREFIX.len() + UUID_CHARS + 1 + ATTEMPT_MAX_DIGITS;

    /// The name of an attempt's container.
    pub const fn job(job_id: JobId, attempt: u32) -> Self {
        Self::Job { job_id, attempt }
    }

    /// Whether a directory of this name belongs to a job's container, even if the rest of the name cannot be parsed.
    pub fn has_job_prefix(name: &str) -> bool {
        name.starts_with(JOB_PREFIX)
    }

    /// Whether a directory of this name belongs to a probe, even if the rest of the name cannot be parsed.
    pub fn has_probe_prefix(name: &str) -> bool {
        name.starts_with(PROBE_PREFIX)
    }

    /// The job that the container belongs to.
    pub const fn job_id(&self) -> Option<JobId> {
        match self {
            Self::Job { job_id, .. } => Some(*job_id),
            Self::Probe { .. } | Self::Mcp { .. } => None,
        }
    }

    /// The name of the file with the container's output.
    pub fn log_file(&self) -> String {
        format!("{self}{LOG_SUFFIX}")
    }

    /// The container whose output is in a file of this name.
    pub fn from_log_file(file: &str) -> Option<Self> {
        file.strip_suffix(LOG_SUFFIX)?.parse().ok()
    }
}

const LOG_SUFFIX: &str = ".log";

impl fmt::Display for ContainerName {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Self::Job { job_id, attempt } => write!(f, "{JOB_PREFIX}{job_id}-{attempt}"),
            Self::Probe { id } => write!(f, "{PROBE_PREFIX}{}", id.as_uuid().simple()),
            Self::Mcp { id } => write!(f, "{MCP_PREFIX}{}", id.as_uuid().simple()),
        }
    }
}

/// The text is not the name of one of Gantry's containers.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseContainerNameError;

impl fmt::Display for ParseContainerNameError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("not a container name")
    }
}

impl std::error::Error for ParseContainerNameError {}

impl FromStr for ContainerName {
    type Err = ParseContainerNameError;

    fn from_str(name: &str) -> Result<Self, Self::Err> {
        let parsed = if let Some(rest) = name.strip_prefix(JOB_PREFIX) {
            rest.rsplit_once('-').and_then(|(job_id, attempt)| {
                Some(Self::Job { job_id: job_id.parse().ok()?, attempt: attempt.parse().ok()? })
            })
        } else {
            let id = |prefix: &str| Some(JobId::from_uuid(uuid::Uuid::parse_str(name.strip_prefix(prefix)?).ok()?));
            id(PROBE_PREFIX).map(|id| Self::Probe { id }).or_else(|| id(MCP_PREFIX).map(|id| Self::Mcp { id }))
        };
        // One spelling only: no leading zeros, no other form of the id.
        parsed.filter(|parsed| parsed.to_string() == name).ok_or(ParseContainerNameError)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const JOB: &str = "0193b1f0-5b6e-7c3a-9b1e-2f4d5a6b7c8d";

    #[test]
    fn names_round_trip() {
        let job_id: JobId = JOB.parse().unwrap();
        for name in
            [ContainerName::job(job_id, 12), ContainerName::Probe { id: job_id }, ContainerName::Mcp { id: job_id }]
        {
            assert_eq!(name.to_string().parse(), Ok(name));
            assert_eq!(ContainerName::from_log_file(&name.log_file()), Some(name));
        }
        assert_eq!(ContainerName::job(job_id, 2).to_string(), format!("gantry-job-{JOB}-2"));
        assert_eq!(ContainerName::job(job_id, 999).to_string().len(), ContainerName::MAX_JOB_NAME_BYTES);
    }

    #[test]
    fn other_texts_are_no_names() {
        let texts = [
            "",
            "gantry-job-",
            "gantry-job-x-1",
            &format!("gantry-job-{JOB}"),
            &format!("gantry-job-{JOB}-"),
            &format!("gantry-job-{JOB}-01"),
            &format!("gantry-job-{JOB}-+1"),
            &format!("gantry-job-{JOB}-1.log"),
            &format!("gantry-probe-{JOB}"),
            &format!("gantry-mcp-{JOB}"),
            "gantry-probe-0",
        ];
        for text in texts {
            assert_eq!(text.parse::<ContainerName>(), Err(ParseContainerNameError), "{text}");
        }
    }
}
