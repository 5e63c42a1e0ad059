//! Which process the kernel kills first when the container's memory runs out: any but the worker.

use std::{fs, io, time::Duration};

/// The highest `oom_score_adj`.
pub(crate) const EXPENDABLE: &str = "1000";
/// A process belongs to its user only once it runs its program: until then it is as hidden as the worker is.
const TRIES: u32 = 20;
const PAUSE: Duration = Duration::from_millis(1);

/// Lets the kernel kill `pid` before the worker. Best effort: where it is refused the kernel chooses by itself.
pub(crate) async fn make_expendable(pid: i32) {
    for _ in 0..TRIES {
        match fs::write(format!("/proc/{pid}/oom_score_adj"), EXPENDABLE) {
            Err(error) if error.kind() == io::ErrorKind::PermissionDenied => tokio::time::sleep(PAUSE).await,
            // It is set, or the process has ended.
            _ => return,
        }
    }
}
