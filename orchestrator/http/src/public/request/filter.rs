//! Filters that several lists have: a part of an id, and names separated by commas such as `state=failed,stuck`, and the user.

use auth::Identity;
use chrono::{DateTime, TimeDelta, Utc};
use domain::id_part::{MIN_ID_DIGITS, id_digits};
use protocol::ErrorCode;
use store::HourFilter;

use crate::problem::ApiError;

/// The hexadecimal digits of a prefix or suffix of an id.
pub(in crate::public) fn id_part(asked: &str) -> Result<String, ApiError> {
    id_digits(asked).ok_or_else(|| {
        ApiError::field("id", format!("must be a prefix or suffix of an id with at least {MIN_ID_DIGITS} characters"))
    })
}

/// The user whose objects a list shows; `None` for all users, whom only an admin sees. `others` is what the caller asks to do, such as
/// `list the jobs of other users`.
pub(in crate::public) fn user(who: &Identity, asked: Option<String>, others: &str) -> Result<Option<String>, ApiError> {
    match asked {
        Some(user) if user != who.user && !who.role.sees_all() => {
            Err(ApiError::new(ErrorCode::Forbidden, format!("only an admin can {others}")))
        }
        None if !who.role.sees_all() => Ok(Some(who.user.clone())),
        asked => Ok(asked),
    }
}

/// How far apart the ends of counted hours may be.
const MAX_HOURS: TimeDelta = TimeDelta::days(8);
/// The hours that are counted by default.
const DEFAULT_HOURS: TimeDelta = TimeDelta::hours(24);
const SECONDS_OF_HOUR: i64 = 3_600;

/// What a histogram counts of the rows that this user may see: those of the user that is asked for, in whole hours.
pub(in crate::public) fn by_hour(
    who: &Identity,
    (asked, denied): (Option<String>, &str),
    (since, until): (Option<DateTime<Utc>>, Option<DateTime<Utc>>),
    now: DateTime<Utc>,
) -> Result<HourFilter, ApiError> {
    let (since, until) = hours(since, until, now)?;
    Ok(HourFilter { user: user(who, asked, denied)?, since, until })
}

/// The beginning of the first and the end of the last of the hours that a histogram counts.
fn hours(
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
    now: DateTime<Utc>,
) -> Result<(DateTime<Utc>, DateTime<Utc>), ApiError> {
    let until = until.unwrap_or(now);
    let out_of_range = || ApiError::field("until", "must be a time between the years 1 and 9999");
    let since = since.or_else(|| until.checked_sub_signed(DEFAULT_HOURS)).ok_or_else(out_of_range)?;
    if until < since || until - since > MAX_HOURS {
        return Err(ApiError::field("since", "must be before `until`, by at most 8 days"));
    }
    let hour = |number| DateTime::from_timestamp(number * SECONDS_OF_HOUR, 0).ok_or_else(out_of_range);
    let first = since.timestamp().div_euclid(SECONDS_OF_HOUR);
    let last = until.timestamp().div_euclid(SECONDS_OF_HOUR);
    let end = if hour(last)? < until { last + 1 } else { last };
    Ok((hour(first)?, hour(end)?))
}

/// The values of the names in a parameter, each once; none if the parameter is absent or empty.
pub(in crate::public) fn names<T: Copy + PartialEq>(
    field: &str,
    asked: Option<&str>,
    all: &[T],
    name_of: impl Fn(T) -> &'static str,
) -> Result<Vec<T>, ApiError> {
    let mut values = vec![];
    for name in asked.filter(|asked| !asked.is_empty()).into_iter().flat_map(|asked| asked.split(',')) {
        let Some(value) = all.iter().copied().find(|value| name_of(*value) == name.trim()) else {
            let known: Vec<&str> = all.iter().map(|value| name_of(*value)).collect();
            return Err(ApiError::field(field, format!("must be one of {}", known.join(", "))));
        };
        // A statement has one parameter for each, and the number of those is limited.
        if !values.contains(&value) {
            values.push(value);
        }
    }
    Ok(values)
}

#[cfg(test)]
mod tests {
    use protocol::GateState;

    use super::*;

    fn states(asked: Option<&str>) -> Result<Vec<GateState>, String> {
        names("state", asked, GateState::ALL, GateState::as_str).map_err(|error| error.detail().to_owned())
    }

    #[test]
    fn each_name_counts_once_and_an_unknown_one_is_an_error() {
        assert_eq!(states(None), Ok(vec![]));
        assert_eq!(states(Some("")), Ok(vec![]));
        let repeated = format!("denied, {}", "pending,".repeat(50_000));
        assert_eq!(states(Some(repeated.trim_end_matches(','))), Ok(vec![GateState::Denied, GateState::Pending]));
        let error = "state: must be one of pending, approved, denied, expired".to_owned();
        for unknown in ["open", "pending,open", "pending,", "Pending"] {
            assert_eq!(states(Some(unknown)), Err(error.clone()), "{unknown}");
        }
    }
}
