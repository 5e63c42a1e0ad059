//! Periods of budgets, in a user's time zone. Pure.

use chrono::{DateTime, Datelike, Days, Months, NaiveDate, NaiveTime, Utc};
use protocol::BudgetPeriod;

use base::Zone;
use schedule::{Instants, instants, local_time};

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PeriodBounds {
    /// When it began: midnight of its first day, or the first instant after it if the clock skips midnight.
    pub start: DateTime<Utc>,
    /// When the next one begins.
    pub end: DateTime<Utc>,
}

/// The period that `now` is in.
pub fn period_at(period: BudgetPeriod, zone: Zone, now: DateTime<Utc>) -> PeriodBounds {
    let mut first_day = first_day(period, local_time(zone, now).date());
    let mut bounds =
        PeriodBounds { start: start_of(zone, first_day), end: start_of(zone, following(period, first_day)) };
    // A clock that is put back across midnight shows the earlier date again.
    while bounds.end <= now {
        first_day = following(period, first_day);
        bounds = PeriodBounds { start: bounds.end, end: start_of(zone, following(period, first_day)) };
    }
    bounds
}

fn first_day(period: BudgetPeriod, day: NaiveDate) -> NaiveDate {
    match period {
        BudgetPeriod::Day => Some(day),
        BudgetPeriod::Week => day.checked_sub_days(Days::new(day.weekday().num_days_from_monday().into())),
        BudgetPeriod::Month => day.with_day(1),
    }
    .unwrap_or(day)
}

fn following(period: BudgetPeriod, first_day: NaiveDate) -> NaiveDate {
    match period {
        BudgetPeriod::Day => first_day.checked_add_days(Days::new(1)),
        BudgetPeriod::Week => first_day.checked_add_days(Days::new(7)),
        BudgetPeriod::Month => first_day.checked_add_months(Months::new(1)),
    }
    .unwrap_or(NaiveDate::MAX)
}

fn start_of(zone: Zone, day: NaiveDate) -> DateTime<Utc> {
    match instants(zone, day.and_time(NaiveTime::MIN)) {
        Instants::One(instant) | Instants::Two(instant, _) | Instants::Skipped { resumes: instant } => instant,
    }
}

#[cfg(test)]
mod tests;
