//! Failpoints: named points in the code at which a fault test makes the process kill itself with SIGKILL.
//!
//! Compiled only with the feature `failpoints` and never into an optimised build. Otherwise reaching a point has no
//! effect and `GANTRY_FAILPOINT` is an unknown variable.

use crate::Environment;

#[cfg(all(feature = "failpoints", debug_assertions))]
mod armed {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };

    use rustix::process::{Signal, getpid, kill_process};

    /// `POINT` or `POINT:N`: the process dies the Nth time it reaches the point; the first time by default.
    const VARIABLE: &str = "GANTRY_FAILPOINT";

    struct Armed {
        point: String,
        remaining: AtomicU32,
    }

    static ARMED: OnceLock<Armed> = OnceLock::new();

    pub(super) fn arm(environment: &super::Environment) {
        let Some(value) = environment.get(VARIABLE) else { return };
        let (point, count) = value.split_once(':').unwrap_or((value, "1"));
        let remaining = AtomicU32::new(count.parse().unwrap_or(1));
        // Called once, at the start of the process.
        let _ = ARMED.set(Armed { point: point.to_owned(), remaining });
    }

    pub(super) fn reach(point: &str) {
        let Some(armed) = ARMED.get().filter(|armed| armed.point == point) else { return };
        if armed.remaining.fetch_sub(1, Ordering::SeqCst) == 1 {
            // Killing oneself cannot fail; the thread must not continue before the signal arrives.
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}

/// Arms the failpoint named by the environment, if any.
pub fn arm(environment: &Environment) {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    armed::arm(environment);
    #[cfg(not(all(feature = "failpoints", debug_assertions)))]
    let _ = environment;
}

/// Marks a failpoint: kills the process if it is the armed one.
#[inline]
pub fn reach(point: &str) {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    armed::reach(point);
    #[cfg(not(all(feature = "failpoints", debug_assertions)))]
    let _ = point;
}
