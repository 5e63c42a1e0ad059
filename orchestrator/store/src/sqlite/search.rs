//! Searches: lists with a filter that no index answers, such as a text.
//!
//! A search reads rows in the order of its list, in steps, on separate connections, until its page is full or its time
//! is over. Then the page of a user's own search comes back as it is, with the position to go on from; one over all
//! users that has found nothing is refused. So no search takes long, however much is stored.

use std::time::Duration;

use tokio::time::Instant;

use crate::StoreError;

/// Connections for searches.
pub const SEARCH_READERS: u32 = 2;
/// Rows that one statement of a search reads, of which a text may have hundreds of kilobytes.
const ROWS_PER_STEP: u32 = 200;
/// How long one page of a search of a user's objects reads.
const USER_TIME_LIMIT: Duration = Duration::from_millis(20);
/// How long one page of a search over all users reads.
const ALL_USERS_TIME_LIMIT: Duration = Duration::from_millis(500);

/// One page of a search.
pub(crate) struct Search {
    pub(crate) rows_per_step: u32,
    end: Instant,
    is_of_all: bool,
    rows: usize,
}

impl Search {
    /// Begins a page of a search of the objects of a user, or of all users.
    pub(crate) fn of(user: Option<&str>) -> Self {
        let time = if user.is_some() { USER_TIME_LIMIT } else { ALL_USERS_TIME_LIMIT };
        Self::within(user, ROWS_PER_STEP, time)
    }

    /// The same with other limits.
    pub(crate) fn within(user: Option<&str>, rows_per_step: u32, time: Duration) -> Self {
        Self { rows_per_step, end: Instant::now() + time, is_of_all: user.is_none(), rows: 0 }
    }

    /// Whether the page ends after a step that has read `rows`. `found` rows of the page are known; `narrower` says
    /// which filters a refused search may add.
    pub(crate) fn ends(&mut self, rows: usize, found: usize, narrower: &'static str) -> Result<bool, StoreError> {
        self.rows += rows;
        if Instant::now() < self.end {
            return Ok(false);
        }
        if self.is_of_all && found == 0 {
            return Err(StoreError::QueryTooBroad { rows: self.rows, narrower });
        }
        Ok(true)
    }
}
