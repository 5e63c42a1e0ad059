//! Why a schedule is refused, and what to write instead.

use chrono::{DateTime, Utc};
use thiserror::Error;

/// The forms of a phrase, for messages.
pub(crate) const PHRASES: &str = "\"every 10m\", \"every 1h30m\", \"every day at 9:00\", \"every weekday at 9:00 Europe/Oslo\", \
     \"every monday,thursday at 18:30\", \"every month on 1 at 9:00\", \"in 20m\", \"at 2030-12-01T07:00:00Z\", \
     \"at 2030-12-01 07:00 Europe/Oslo\"";

/// Why a schedule is refused. The message says what is wrong and what to do.
#[derive(Debug, Clone, PartialEq, Eq, Error)]
pub enum ScheduleError {
    #[error(
        "not a cron expression: {message}; use 5 fields (minute hour day month weekday), 6 with seconds first, 7 with a year \
         last, a nickname such as @daily, or a phrase: {PHRASES}"
    )]
    Expression {
        /// What is wrong with it.
        message: String,
    },
    /// Begins like a phrase and is none.
    #[error("{message}; use one of {PHRASES}, or a cron expression")]
    Phrase {
        /// What is wrong with it.
        message: String,
    },
    #[error("unknown time zone {0:?}; use an IANA name, such as Europe/Oslo or UTC")]
    Zone(String),
    /// A phrase names another zone than `timezone`.
    #[error("the schedule names the time zone {phrase}, and timezone is {timezone}; leave one of them out")]
    TwoZones {
        /// The zone in the phrase.
        phrase: String,
        /// The zone beside it.
        timezone: String,
    },
    #[error("never fires: no time after {now} matches; check the day, month and year", now = .now.format("%Y-%m-%dT%H:%M:%SZ"))]
    NeverFires { now: DateTime<Utc> },
    #[error(
        "fires {seconds} seconds apart, and the minimum is {minimum}; choose times that are further apart \
         (the operator sets routine_min_interval_seconds)"
    )]
    TooOften {
        /// The smallest interval between two times.
        seconds: i64,
        /// What the operator allows.
        minimum: u64,
    },
    /// A period that no schedule can have.
    #[error("must be from 1 to {max_seconds} seconds")]
    Period {
        /// The longest period.
        max_seconds: u64,
    },
    /// A single time that has passed.
    #[error("{at} has passed; choose a time after {now}", at = .at.to_rfc3339(), now = .now.format("%Y-%m-%dT%H:%M:%SZ"))]
    Past { at: DateTime<Utc>, now: DateTime<Utc> },
    /// A time that cannot be stored.
    #[error("must be before the year 9999")]
    TooFar,
}

impl ScheduleError {
    /// The field of a trigger that the error is about, for a trigger with this type.
    pub fn field(&self, kind: protocol::TriggerType) -> &'static str {
        use protocol::TriggerType;
        match (self, kind) {
            (Self::Zone(_), TriggerType::Cron) => "trigger.timezone",
            (Self::TooFar, TriggerType::Every) => "trigger.anchor",
            (_, TriggerType::Every) => "trigger.every_seconds",
            (_, TriggerType::At) => "trigger.at",
            _ => "trigger.schedule",
        }
    }
}
