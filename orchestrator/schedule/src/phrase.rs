//! Phrases for schedules, such as `every weekday at 9:00 Europe/Oslo`: a small grammar of our own. Pure.
//!
//! ```text
//! phrase   = "every" duration
//!          | "every" ("second" | "minute" | "hour" | "week")
//!          | "every" days ["at" time {("," | "and") time}] [zone]
//!          | "in" duration
//!          | "at" (RFC 3339, with or without seconds | date ("T" | " ") time [zone])
//! duration = number unit {number unit}                      2h, 1h30m, 90 seconds, 2 hours
//! days     = "day" | "weekday" | "weekend" | weekday {("," | "and") weekday} | "month" ["on" ["the"] (1..31 | "last")]
//! time     = hour [":" minute [":" second]] ["am" | "pm"] | "noon" | "midnight"
//! zone     = an IANA name
//! ```
//!
//! Letters may have either case. A phrase of days is a cron expression, a duration an `every`, and the rest one time.

use chrono::{DateTime, NaiveDate, NaiveDateTime, NaiveTime, TimeDelta, Timelike, Utc};
use protocol::RoutineTrigger;

use super::{
    error::ScheduleError,
    local_time::{Instants, instants},
    times::zone_named,
};

use base::Zone;

/// Longest duration: 10 years.
const MAX_DURATION_SECONDS: u64 = 10 * 366 * 86_400;

/// Whether a text is meant as a phrase, rather than as a cron expression.
pub(crate) fn is_phrase(text: &str) -> bool {
    let first = text.split_whitespace().next().unwrap_or_default().to_ascii_lowercase();
    ["every", "in", "at"].contains(&first.as_str())
}

/// The zone of a phrase that names none.
#[derive(Clone, Copy)]
pub(crate) struct Zones {
    /// The one that is named beside the phrase.
    pub(crate) beside: Option<Zone>,
    /// The one where none is named.
    pub(crate) default: Zone,
}

impl Zones {
    /// The zone of a schedule that names none.
    pub(crate) fn unnamed(self) -> Zone {
        self.beside.unwrap_or(self.default)
    }
}

/// The trigger that a phrase means.
pub(crate) fn parse(text: &str, zones: Zones, now: DateTime<Utc>) -> Result<RoutineTrigger, ScheduleError> {
    let mut words = Words::of(text);
    let trigger = match words.next_lower().as_deref() {
        Some("every") => every(&mut words, zones)?,
        Some("in") => {
            let duration = TimeDelta::seconds(duration(&mut words)?.cast_signed());
            RoutineTrigger::At { at: now.checked_add_signed(duration).ok_or(ScheduleError::TooFar)? }
        }
        Some("at") => RoutineTrigger::At { at: at(&mut words, zones)? },
        _ => return Err(phrase_error("the schedule is not a phrase")),
    };
    match words.peek() {
        Some(word) => Err(unexpected(word)),
        None => Ok(trigger),
    }
}

fn phrase_error(message: impl Into<String>) -> ScheduleError {
    ScheduleError::Phrase { message: message.into() }
}

fn unexpected(word: &str) -> ScheduleError {
    phrase_error(format!("unexpected {:?}", word.chars().take(40).collect::<String>()))
}

/// The words of a phrase. A comma is a word.
struct Words<'t> {
    words: Vec<&'t str>,
    at: usize,
}

impl<'t> Words<'t> {
    fn of(text: &'t str) -> Self {
        let parts = text.split_whitespace().flat_map(|word| word.split_inclusive(','));
        let words = parts.flat_map(|part| match part.strip_suffix(',') {
            Some(word) => [word, ","],
            None => [part, ""],
        });
        Self { words: words.filter(|word| !word.is_empty()).collect(), at: 0 }
    }

    fn peek(&self) -> Option<&'t str> {
        self.words.get(self.at).copied()
    }

    fn peek_lower(&self) -> Option<String> {
        self.peek().map(str::to_ascii_lowercase)
    }

    fn next(&mut self) -> Option<&'t str> {
        let word = self.peek();
        self.at += usize::from(word.is_some());
        word
    }

    fn next_lower(&mut self) -> Option<String> {
        self.next().map(str::to_ascii_lowercase)
    }

    /// Takes the next word if it is one of `expected`.
    fn take(&mut self, expected: &[&str]) -> bool {
        let is_expected = self.peek_lower().is_some_and(|word| expected.contains(&word.as_str()));
        self.at += usize::from(is_expected);
        is_expected
    }
}

fn every(words: &mut Words<'_>, zones: Zones) -> Result<RoutineTrigger, ScheduleError> {
    let word = words.peek_lower().ok_or_else(|| phrase_error("\"every\" needs an interval or days"))?;
    let period = match word.as_str() {
        "second" => Some(1),
        "minute" => Some(60),
        "hour" => Some(3_600),
        "week" => Some(7 * 86_400),
        _ => None,
    };
    if let Some(every_seconds) = period {
        words.next();
        return Ok(RoutineTrigger::Every { every_seconds, anchor: None });
    }
    if word.starts_with(|first: char| first.is_ascii_digit()) {
        return Ok(RoutineTrigger::Every { every_seconds: duration(words)?, anchor: None });
    }
    let days = days(words)?;
    let times = if words.take(&["at"]) { times(words)? } else { vec![NaiveTime::MIN] };
    let zone = zone(words, zones)?;
    Ok(RoutineTrigger::Cron { schedule: expression(&days, &times)?, timezone: Some(zone.name().to_owned()) })
}

/// The zone at the end of a phrase, else the one beside it, else the default.
fn zone(words: &mut Words<'_>, zones: Zones) -> Result<Zone, ScheduleError> {
    let Some(word) = words.next() else { return Ok(zones.unnamed()) };
    let named = zone_named(word)?;
    match zones.beside {
        Some(beside) if beside != named => {
            Err(ScheduleError::TwoZones { phrase: named.name().to_owned(), timezone: beside.name().to_owned() })
        }
        _ => Ok(named),
    }
}

/// The fields of a cron expression for days of the month and of the week.
struct Days {
    of_month: String,
    of_week: String,
}

fn days(words: &mut Words<'_>) -> Result<Days, ScheduleError> {
    let of_week = |of_week: String| Days { of_month: "*".to_owned(), of_week };
    match words.peek_lower().as_deref() {
        Some("day") => words.next().map(|_| of_week("*".to_owned())),
        Some("weekday") => words.next().map(|_| of_week("MON-FRI".to_owned())),
        Some("weekend") => words.next().map(|_| of_week("SAT,SUN".to_owned())),
        Some("month") => {
            words.next();
            return day_of_month(words);
        }
        _ => None,
    }
    .map_or_else(|| list(words, weekday).map(|days| of_week(days.join(","))), Ok)
}

fn day_of_month(words: &mut Words<'_>) -> Result<Days, ScheduleError> {
    let mut of_month = "1".to_owned();
    if words.take(&["on"]) {
        words.take(&["the"]);
        let word = words.next_lower().unwrap_or_default();
        let number = ["st", "nd", "rd", "th"].iter().find_map(|suffix| word.strip_suffix(suffix)).unwrap_or(&word);
        of_month = match number.parse::<u8>() {
            Ok(day @ 1..=31) => day.to_string(),
            _ if word == "last" => "L".to_owned(),
            _ => return Err(phrase_error("\"on\" needs a day from 1 to 31, or \"last\"")),
        };
        words.take(&["day"]);
    }
    Ok(Days { of_month, of_week: "*".to_owned() })
}

/// Elements separated by commas or "and".
fn list<T>(
    words: &mut Words<'_>,
    element: impl Fn(&mut Words<'_>) -> Result<T, ScheduleError>,
) -> Result<Vec<T>, ScheduleError> {
    let mut elements = vec![element(words)?];
    while words.take(&[",", "and"]) {
        words.take(&["and"]);
        elements.push(element(words)?);
    }
    Ok(elements)
}

fn weekday(words: &mut Words<'_>) -> Result<&'static str, ScheduleError> {
    let word = words.next().unwrap_or_default();
    let name = word.to_ascii_lowercase();
    Ok(match name.strip_suffix('s').filter(|name| name.ends_with("day")).unwrap_or(&name) {
        "monday" | "mon" => "MON",
        "tuesday" | "tue" => "TUE",
        "wednesday" | "wed" => "WED",
        "thursday" | "thu" => "THU",
        "friday" | "fri" => "FRI",
        "saturday" | "sat" => "SAT",
        "sunday" | "sun" => "SUN",
        _ => {
            return Err(phrase_error(format!(
                "{:?} is not an interval, \"day\", \"weekday\", \"month\" or a day of the week",
                word.chars().take(40).collect::<String>()
            )));
        }
    })
}

fn times(words: &mut Words<'_>) -> Result<Vec<NaiveTime>, ScheduleError> {
    list(words, |words| {
        let word = words.next_lower().ok_or_else(|| phrase_error("\"at\" needs a time, such as 9:00"))?;
        let half = words.peek_lower().filter(|half| half == "am" || half == "pm");
        words.at += usize::from(half.is_some());
        let invalid = || phrase_error(format!("{:?} is not a time of day", word.chars().take(40).collect::<String>()));
        time_of_day(&(word.clone() + &half.unwrap_or_default())).ok_or_else(invalid)
    })
}

/// `9`, `9:00`, `09:00:30`, `9am`, `9:30pm`, `noon`, `midnight`.
fn time_of_day(text: &str) -> Option<NaiveTime> {
    match text {
        "noon" => return NaiveTime::from_hms_opt(12, 0, 0),
        "midnight" => return Some(NaiveTime::MIN),
        _ => {}
    }
    let half = ["am", "pm"].into_iter().find(|half| text.ends_with(half));
    let mut parts = half.map_or(text, |half| text.trim_end_matches(half)).split(':');
    let mut number = |is_required: bool| match parts.next() {
        None if !is_required => Some(0),
        part => part.filter(|part| part.len() <= 2 && part.bytes().all(|byte| byte.is_ascii_digit()))?.parse().ok(),
    };
    let (hour, minute, second) = (number(true)?, number(false)?, number(false)?);
    let hour = match half {
        None => hour,
        Some(_) if !(1..=12).contains(&hour) => return None,
        Some("am") => hour % 12,
        Some(_) => hour % 12 + 12,
    };
    if parts.next().is_some() { None } else { NaiveTime::from_hms_opt(hour, minute, second) }
}

/// One cron expression for all times, which is possible if they have the same minute and second.
fn expression(days: &Days, times: &[NaiveTime]) -> Result<String, ScheduleError> {
    let first = times.first().copied().unwrap_or_default();
    let (minute, second) = (first.minute(), first.second());
    if times.iter().any(|time| (time.minute(), time.second()) != (minute, second)) {
        let message = "the times of one schedule must have the same minutes; make a routine for each";
        return Err(phrase_error(message));
    }
    let mut hours: Vec<u32> = times.iter().map(Timelike::hour).collect();
    hours.sort_unstable();
    hours.dedup();
    let hours: Vec<String> = hours.iter().map(u32::to_string).collect();
    let seconds = if second == 0 { String::new() } else { format!("{second} ") };
    Ok(format!("{seconds}{minute} {} {} * {}", hours.join(","), days.of_month, days.of_week))
}

/// A duration in seconds: numbers, each with a unit, in one word or several.
fn duration(words: &mut Words<'_>) -> Result<u64, ScheduleError> {
    let invalid = || phrase_error("a duration is a number and a unit, such as 10m, 1h30m or 2 hours");
    let mut text = String::new();
    let is_part = |word: &str| word.starts_with(|first: char| first.is_ascii_digit()) || unit_seconds(word).is_some();
    while let Some(word) = words.peek_lower().filter(|word| is_part(word)) {
        text.push_str(&word);
        words.next();
    }
    let mut rest = text.as_str();
    let mut seconds = 0_u64;
    while !rest.is_empty() {
        let digits = rest.bytes().take_while(u8::is_ascii_digit).count();
        let letters = rest.bytes().skip(digits).take_while(u8::is_ascii_alphabetic).count();
        let (number, unit) = rest.split_at_checked(digits).ok_or_else(invalid)?;
        let (unit, further) = unit.split_at_checked(letters).ok_or_else(invalid)?;
        let number: u64 = number.parse().map_err(|_| invalid())?;
        let part = unit_seconds(unit).and_then(|unit| number.checked_mul(unit));
        seconds = part.and_then(|part| seconds.checked_add(part)).ok_or_else(invalid)?;
        rest = further;
    }
    match seconds {
        0 => Err(invalid()),
        1..=MAX_DURATION_SECONDS => Ok(seconds),
        _ => Err(phrase_error("a duration may be at most 10 years")),
    }
}

fn unit_seconds(unit: &str) -> Option<u64> {
    Some(match unit {
        "s" | "sec" | "secs" | "second" | "seconds" => 1,
        "m" | "min" | "mins" | "minute" | "minutes" => 60,
        "h" | "hr" | "hrs" | "hour" | "hours" => 3_600,
        "d" | "day" | "days" => 86_400,
        "w" | "week" | "weeks" => 7 * 86_400,
        _ => return None,
    })
}

fn at(words: &mut Words<'_>, zones: Zones) -> Result<DateTime<Utc>, ScheduleError> {
    let invalid = || phrase_error("\"at\" needs a date and a time, such as 2030-12-01T07:00:00Z");
    let first = words.next().ok_or_else(invalid)?;
    if let Some(instant) = parse_instant(first) {
        return Ok(instant);
    }
    let local = match first.split_once(['T', 't']) {
        Some((date, time)) => local_of(date, time),
        None => local_of(first, &words.next_lower().ok_or_else(invalid)?),
    };
    let local = local.ok_or_else(invalid)?;
    Ok(match instants(zone(words, zones)?, local) {
        Instants::One(instant) | Instants::Two(instant, _) | Instants::Skipped { resumes: instant } => instant,
    })
}

/// A time of RFC 3339, or one without seconds.
pub fn parse_instant(text: &str) -> Option<DateTime<Utc>> {
    let time = DateTime::parse_from_rfc3339(text);
    let time = time.or_else(|_| DateTime::parse_from_str(&text.to_ascii_uppercase(), "%Y-%m-%dT%H:%M%#z"));
    time.ok().map(|time| time.to_utc())
}

fn local_of(date: &str, time: &str) -> Option<NaiveDateTime> {
    Some(NaiveDate::parse_from_str(date, "%Y-%m-%d").ok()?.and_time(time_of_day(time)?))
}

#[cfg(test)]
mod tests;
