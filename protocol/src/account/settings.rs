//! A user's settings.

use std::{fmt, str::FromStr};

use serde::{Deserialize, Deserializer, Serialize, Serializer};

use crate::Effort;

/// The body and the response of `/api/settings`. A field that a request leaves out takes its default.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields, default)]
pub struct UserSettings {
    /// The model to use where a request names none; null for the operator's default.
    pub model: Option<String>,
    /// How much the model thinks where a request does not say; left out for the operator's default.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub effort: Option<Effort>,
    /// The temperature of model calls in chats, jobs and routines, 0 to 2; null for 0.3 in lightweight runs and none elsewhere.
    pub temperature: Option<f64>,
    /// IANA time zone, such as `Europe/Oslo`; null while none is set, and then UTC applies. A schedule without a zone takes it
    /// when it is made, and keeps it.
    pub timezone: Option<String>,
    /// The daily hours in which nothing that can wait disturbs the user; null for none.
    pub quiet_hours: Option<QuietHours>,
    /// Seconds between two heartbeats; 0 for none, null for the operator's default.
    pub heartbeat_every_seconds: Option<u64>,
}

impl UserSettings {
    /// The name of the zone that applies: the one that is set, else UTC.
    pub fn zone_name(&self) -> &str {
        self.timezone.as_deref().unwrap_or("UTC")
    }
}

/// Hours of every day in the user's time zone: from `from` until just before `to`, over midnight if `to` is earlier.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[cfg_attr(feature = "openapi", derive(utoipa::ToSchema))]
#[serde(deny_unknown_fields)]
pub struct QuietHours {
    /// When they begin, such as `22:00`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub from: TimeOfDay,
    /// When they end, such as `07:00`. Must differ from `from`.
    #[cfg_attr(feature = "openapi", schema(value_type = String))]
    pub to: TimeOfDay,
}

impl QuietHours {
    /// Whether a time of the day is one of these hours.
    pub fn contains(&self, time: TimeOfDay) -> bool {
        if self.from <= self.to { self.from <= time && time < self.to } else { self.from <= time || time < self.to }
    }
}

/// The text is not a time of the day.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ParseTimeOfDayError;

impl fmt::Display for ParseTimeOfDayError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str("must be a time from 00:00 to 23:59, such as 22:00")
    }
}

impl std::error::Error for ParseTimeOfDayError {}

/// A minute of the day, written as `HH:MM`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct TimeOfDay {
    hour: u8,
    minute: u8,
}

impl TimeOfDay {
    /// `None` outside 00:00 to 23:59.
    pub const fn new(hour: u8, minute: u8) -> Option<Self> {
        if hour < 24 && minute < 60 { Some(Self { hour, minute }) } else { None }
    }

    /// The hour, 0 to 23.
    pub const fn hour(self) -> u8 {
        self.hour
    }

    /// The minute, 0 to 59.
    pub const fn minute(self) -> u8 {
        self.minute
    }
}

impl fmt::Display for TimeOfDay {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{:02}:{:02}", self.hour, self.minute)
    }
}

impl FromStr for TimeOfDay {
    type Err = ParseTimeOfDayError;

    fn from_str(text: &str) -> Result<Self, ParseTimeOfDayError> {
        let &[h1, h2, b':', m1, m2] = text.as_bytes() else { return Err(ParseTimeOfDayError) };
        let number = |tens: u8, ones: u8| {
            let is_number = tens.is_ascii_digit() && ones.is_ascii_digit();
            is_number.then(|| (tens - b'0') * 10 + ones - b'0')
        };
        let time = number(h1, h2).zip(number(m1, m2)).and_then(|(hour, minute)| Self::new(hour, minute));
        time.ok_or(ParseTimeOfDayError)
    }
}

impl Serialize for TimeOfDay {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_str(self)
    }
}

impl<'de> Deserialize<'de> for TimeOfDay {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        let text = String::deserialize(deserializer)?;
        text.parse().map_err(serde::de::Error::custom)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn time(text: &str) -> TimeOfDay {
        text.parse().unwrap()
    }

    #[test]
    fn only_minutes_of_the_day_are_times() {
        for text in ["24:00", "7:00", "07:60", "07:00:00", "0700", "", "+7:00", "07.00", "ab:cd", "é:00"] {
            assert_eq!(text.parse::<TimeOfDay>(), Err(ParseTimeOfDayError), "{text}");
        }
    }

    #[test]
    fn quiet_hours_can_go_over_midnight() {
        let hours = |from, to| QuietHours { from: time(from), to: time(to) };
        for (hours, at, expected) in [
            (hours("22:00", "07:00"), "21:59", false),
            (hours("22:00", "07:00"), "22:00", true),
            (hours("22:00", "07:00"), "06:59", true),
            (hours("22:00", "07:00"), "07:00", false),
            (hours("13:00", "14:00"), "13:30", true),
            (hours("13:00", "14:00"), "14:00", false),
        ] {
            assert_eq!(hours.contains(time(at)), expected, "{at} in {hours:?}");
        }
    }

    #[test]
    fn a_field_that_is_left_out_has_its_default() {
        let settings: UserSettings = serde_json::from_str(r#"{"temperature":0.5}"#).unwrap();
        assert_eq!(settings, UserSettings { temperature: Some(0.5), ..UserSettings::default() });
        let text =
            r#"{"model":null,"temperature":null,"timezone":null,"quiet_hours":null,"heartbeat_every_seconds":null}"#;
        assert_eq!(serde_json::to_string(&UserSettings::default()).unwrap(), text);
        assert_eq!(UserSettings::default().zone_name(), "UTC");
    }

    proptest! {
        #[test]
        fn a_time_is_read_as_it_is_written(hour in 0_u8..24, minute in 0_u8..60) {
            let time = TimeOfDay::new(hour, minute).unwrap();
            prop_assert_eq!(time.to_string().parse(), Ok(time));
            let json = serde_json::to_string(&time).unwrap();
            prop_assert_eq!(serde_json::from_str::<TimeOfDay>(&json).unwrap(), time);
        }

        #[test]
        fn an_hour_is_quiet_in_one_of_a_range_and_its_opposite(a in 0_u8..24, b in 0_u8..24, at in 0_u8..24) {
            let [from, to, at] = [a, b, at].map(|hour| TimeOfDay::new(hour, 0).unwrap());
            prop_assume!(from != to);
            let (range, opposite) = (QuietHours { from, to }, QuietHours { from: to, to: from });
            prop_assert_ne!(range.contains(at), opposite.contains(at));
        }
    }
}
