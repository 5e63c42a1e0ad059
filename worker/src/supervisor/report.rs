//! The reports of a supervisor to the worker, one line of JSON each: its command started, and how it ended.
//!
//! Supervisors run as the same user as the commands, so the worker treats their reports as untrusted: number and size
//! are bounded, and anything unexpected is an error.

use std::io;

use rustix::process::WaitStatus;
use serde::{Deserialize, Serialize};
use tokio::{io::AsyncReadExt, net::UnixStream};

/// The longest report is `{"started":{"is_subreaper":false}}`.
const MAX_LINE_BYTES: usize = 64;

/// One report.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case", deny_unknown_fields)]
pub(super) enum SupervisorReport {
    /// The command has started.
    Started {
        /// False if the kernel has no subreapers. A process that leaves both its session and its parent is then not
        /// among the supervisor's descendants.
        is_subreaper: bool,
    },
    /// The command could not be started.
    NotStarted {
        /// The error of the system call.
        errno: i32,
    },
    /// The command ended.
    Ended(ExitStatus),
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub(crate) enum ExitStatus {
    /// It exited with a code.
    Code(u8),
    /// A signal killed it.
    Signal(u8),
}

impl ExitStatus {
    /// The status of a process that was waited for; `None` if it has not ended.
    pub(super) fn of(status: WaitStatus) -> Option<Self> {
        let code = status.exit_status().map(u8::try_from).and_then(Result::ok).map(Self::Code);
        code.or_else(|| status.terminating_signal().map(u8::try_from).and_then(Result::ok).map(Self::Signal))
    }

    /// Whether it exited with code 0.
    pub(crate) const fn is_success(self) -> bool {
        matches!(self, Self::Code(0))
    }

    /// The exit code as a shell shows it: 128 and the signal for a process that was killed.
    pub(crate) fn shell_code(self) -> u16 {
        match self {
            Self::Code(code) => code.into(),
            Self::Signal(signal) => 128 + u16::from(signal),
        }
    }
}

/// The worker's end of a supervisor's reports.
#[derive(Debug)]
pub(super) struct Reports {
    stream: UnixStream,
    unread: Vec<u8>,
}

impl Reports {
    /// Reads reports from `stream`.
    pub(super) const fn new(stream: UnixStream) -> Self {
        Self { stream, unread: Vec::new() }
    }

    /// Reads the next report. Cancel safe. Fails if the supervisor ended without one or sent anything else.
    pub(super) async fn next(&mut self) -> io::Result<SupervisorReport> {
        loop {
            if let Some(end) = self.unread.iter().position(|byte| *byte == b'\n') {
                let line: Vec<u8> = self.unread.drain(..=end).collect();
                return Ok(serde_json::from_slice(&line)?);
            }
            if self.unread.len() >= MAX_LINE_BYTES {
                return Err(io::Error::new(io::ErrorKind::InvalidData, "the supervisor's report is too long"));
            }
            let mut chunk = [0; MAX_LINE_BYTES];
            match self.stream.read(&mut chunk).await? {
                0 => return Err(io::Error::new(io::ErrorKind::UnexpectedEof, "the supervisor was killed")),
                length => self.unread.extend_from_slice(&chunk[..length]),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use rstest::rstest;
    use tokio::io::AsyncWriteExt;

    use super::*;

    async fn read(bytes: &[u8]) -> Vec<Result<SupervisorReport, io::ErrorKind>> {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).await.unwrap();
        drop(theirs);
        let mut reports = Reports::new(ours);
        let mut read = Vec::new();
        loop {
            read.push(reports.next().await.map_err(|error| error.kind()));
            if read.last().is_some_and(Result::is_err) {
                return read;
            }
        }
    }

    #[tokio::test]
    async fn reports_are_read_one_by_one_until_the_supervisor_ends() {
        let started = SupervisorReport::Started { is_subreaper: false };
        let all = [started, SupervisorReport::Ended(ExitStatus::Signal(9))];
        let lines: String = all.iter().map(|report| serde_json::to_string(report).unwrap() + "\n").collect();
        assert!(lines.lines().all(|line| line.len() < MAX_LINE_BYTES), "{lines}");
        assert_eq!(read(lines.as_bytes()).await, [Ok(all[0]), Ok(all[1]), Err(io::ErrorKind::UnexpectedEof)]);
    }

    #[rstest]
    #[case::not_json(b"hello\n")]
    #[case::unknown_report(b"{\"paused\":{}}\n")]
    #[case::unknown_field(b"{\"started\":{\"is_subreaper\":true,\"more\":1}}\n")]
    #[case::code_out_of_range(b"{\"ended\":{\"code\":256}}\n")]
    #[case::negative_code(b"{\"ended\":{\"code\":-1}}\n")]
    #[case::two_reports_in_a_line(b"{\"ended\":{\"code\":0}} {\"ended\":{\"code\":0}}\n")]
    #[case::endless_line(&[b' '; 10_000])]
    #[tokio::test]
    async fn anything_else_is_an_error(#[case] bytes: &[u8]) {
        let (ours, mut theirs) = UnixStream::pair().unwrap();
        theirs.write_all(bytes).await.unwrap();
        let mut reports = Reports::new(ours);
        assert_eq!(reports.next().await.unwrap_err().kind(), io::ErrorKind::InvalidData);
        assert!(reports.unread.len() <= 2 * MAX_LINE_BYTES);
    }
}
