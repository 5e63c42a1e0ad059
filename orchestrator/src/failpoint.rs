//! Failpoints: named places at which the fault tests let the process die as `kill -9` would, not an instruction later.
//!
//! Owns the countdown and the death. Built only with the feature `failpoints` and never into an optimised build: without
//! it, reaching a point is nothing at all, and `GANTRY_FAILPOINT` a variable that nobody knows.

use crate::config::Environment;

#[cfg(all(feature = "failpoints", debug_assertions))]
mod armed {
    use std::sync::{
        OnceLock,
        atomic::{AtomicU32, Ordering},
    };

    use rustix::process::{Signal, getpid, kill_process};

    /// Names the point, and after a colon which time it is fatal; the first when that is left out.
    const VARIABLE: &str = "GANTRY_FAILPOINT";

    struct Fatal {
        point: String,
        left: AtomicU32,
    }

    static FATAL: OnceLock<Fatal> = OnceLock::new();

    pub(super) fn arm(environment: &super::Environment) {
        let Some(wanted) = environment.get(VARIABLE) else { return };
        let (point, time) = wanted.split_once(':').unwrap_or((wanted, "1"));
        let left = AtomicU32::new(time.parse().unwrap_or(1));
        // Armed once, at the start of the process.
        let _ = FATAL.set(Fatal { point: point.to_owned(), left });
    }

    pub(super) fn reach(point: &str) {
        let Some(fatal) = FATAL.get().filter(|fatal| fatal.point == point) else { return };
        if fatal.left.fetch_sub(1, Ordering::SeqCst) == 1 {
            // A process may always kill itself; until the kernel has done so nothing else may happen here.
            let _ = kill_process(getpid(), Signal::KILL);
            loop {
                std::thread::park();
            }
        }
    }
}

/// Takes the fatal point from the environment.
pub fn arm(environment: &Environment) {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    armed::arm(environment);
    #[cfg(not(all(feature = "failpoints", debug_assertions)))]
    let _ = environment;
}

/// The process is at this point; it dies here when this is the fatal one.
#[inline]
pub fn reach(point: &str) {
    #[cfg(all(feature = "failpoints", debug_assertions))]
    armed::reach(point);
    #[cfg(not(all(feature = "failpoints", debug_assertions)))]
    let _ = point;
}
