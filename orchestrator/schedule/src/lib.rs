//! Schedules of routines: the texts that people write, what they mean, and the times that follow. Pure. Contents only.

mod error;
mod local_time;
mod normalize;
mod phrase;
mod times;

pub use error::ScheduleError;
pub use local_time::{Instants, instants, local_time};
pub use normalize::{canonicalize, needs_zone, normalize};
pub use phrase::parse_instant;
pub use times::{MAX_COUNTED, Schedule};
