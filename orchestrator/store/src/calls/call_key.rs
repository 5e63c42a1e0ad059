//! The names of model calls and tool calls, and positions in lists of them, so that a page begins at a row and not at a
//! count of rows.

use std::{fmt, str::FromStr};

use chrono::{DateTime, Utc};
use protocol::{CallId, Execution};

use crate::{
    StoreError,
    sqlite::{rows::RowRef, write_tx::StatementBatch},
};

/// Names a model call or a tool call.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallKey {
    /// Who makes it.
    pub execution: Execution,
    /// Unique within the execution.
    pub call_id: CallId,
}

impl CallKey {
    /// Binds its columns as the next three arguments: `work_id`, `attempt`, `call_id`.
    pub(crate) fn bind_to(&self, batch: StatementBatch) -> StatementBatch {
        let Execution { work, attempt } = self.execution;
        batch.bind(*work.as_uuid()).bind(i64::from(attempt)).bind(self.call_id.0.clone())
    }

    pub(crate) fn row_ref(&self, table: &'static str) -> RowRef {
        RowRef { table, id: *self.execution.work.as_uuid() }
    }
}

/// Where a call is in the list of its work's calls: by attempt, then by time, then by id.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct CallPosition {
    pub(crate) attempt: u32,
    pub(crate) at: DateTime<Utc>,
    pub(crate) call_id: String,
}

/// A position that cannot be read.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InvalidPosition;

impl CallPosition {
    /// The position of a row.
    pub(super) fn of(row: RowRef, attempt: i64, at: DateTime<Utc>, call_id: &str) -> Result<Self, StoreError> {
        Ok(Self { attempt: row.number("attempt", attempt)?, at, call_id: call_id.to_owned() })
    }

    /// The values of a row comparison with `(attempt, at, call_id)`. Attempts start at 0, so everything follows `None`.
    pub(crate) fn bounds(position: Option<&Self>) -> (i64, DateTime<Utc>, String) {
        position.map_or((-1, DateTime::UNIX_EPOCH, String::new()), |position| {
            (position.attempt.into(), position.at, position.call_id.clone())
        })
    }
}

impl fmt::Display for CallPosition {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} {} {}", self.attempt, self.at.to_rfc3339(), self.call_id)
    }
}

impl FromStr for CallPosition {
    type Err = InvalidPosition;

    fn from_str(text: &str) -> Result<Self, InvalidPosition> {
        let mut parts = text.splitn(3, ' ');
        let mut part = || parts.next().ok_or(InvalidPosition);
        let attempt = part()?.parse().map_err(|_| InvalidPosition)?;
        let at = DateTime::parse_from_rfc3339(part()?).map_err(|_| InvalidPosition)?.to_utc();
        Ok(Self { attempt, at, call_id: part()?.to_owned() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_position_survives_the_round_trip() {
        let at = "2026-11-22T12:00:00.123456789Z".parse().unwrap();
        let position = CallPosition { attempt: 3, at, call_id: "call with spaces".to_owned() };
        assert_eq!(position.to_string().parse(), Ok(position));
        for text in ["", "3", "3 now x", "x 2026-11-22T12:00:00Z y", "3 2026-11-22T12:00:00Z"] {
            assert_eq!(text.parse::<CallPosition>(), Err(InvalidPosition), "{text}");
        }
    }
}
