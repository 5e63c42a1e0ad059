//! Lists in the order of their ids as merges of walks over indexes: one for each state, and each way in which an id is
//! found.
//!
//! Objects whose id begins or ends with some hexadecimal digits are found by an index each: the beginning is a range of
//! ids, and the last four digits have a separate index. So such a list has two walks, and no object is in both.

use chrono::{DateTime, TimeDelta, Utc};
use sqlx::{QueryBuilder, Sqlite};
use uuid::Uuid;

/// Ids have the time of their creation, by a clock that may since have been corrected by up to this much.
pub(crate) const ID_TOLERANCE: TimeDelta = TimeDelta::days(1);
/// The latest time that an id has.
const MAX_ID_MILLIS: u128 = (1 << 48) - 1;
/// Hexadecimal digits of an id.
const ID_DIGITS: usize = 32;
/// Digits of the end that the indexes `…_by_id_end` have.
const INDEXED_DIGITS: usize = 4;

/// Which ids a walk finds.
#[derive(Clone, Copy)]
pub(crate) enum Ids<'a> {
    All,
    BeginWith(&'a str),
    /// Those that do not begin with them, too.
    EndWith(&'a str),
}

impl<'a> Ids<'a> {
    /// The walks of a list.
    pub(crate) fn walks(digits: Option<&'a str>) -> Vec<Self> {
        digits.map_or_else(|| vec![Self::All], |digits| vec![Self::BeginWith(digits), Self::EndWith(digits)])
    }

    /// The index of a walk, where only one will do: `by_end` is the table's index of the ends of ids.
    pub(crate) fn index(self, by_end: &'static str) -> Option<&'static str> {
        matches!(self, Self::EndWith(_)).then_some(by_end)
    }

    /// Appends the condition.
    pub(crate) fn push(self, query: &mut QueryBuilder<Sqlite>) {
        match self {
            Self::All => {}
            Self::BeginWith(digits) => {
                let (first, last) = range(digits);
                query.push(" AND id >= ").push_bind(first).push(" AND id <= ").push_bind(last);
            }
            Self::EndWith(digits) => {
                let (first, last) = range(digits);
                let end = digits.get(digits.len().saturating_sub(INDEXED_DIGITS)..).unwrap_or(digits);
                query.push(" AND substr(id, -2) = unhex(").push_bind(end.to_owned());
                query.push(") AND hex(id) LIKE ").push_bind(format!("%{digits}"));
                query.push(" AND id NOT BETWEEN ").push_bind(first).push(" AND ").push_bind(last);
            }
        }
    }
}

/// A list whose rows stand in indexes in the order of their ids.
#[derive(Default)]
pub(crate) struct ListWalks<'a> {
    /// `SELECT … FROM table`.
    pub(crate) select: &'a str,
    /// The only index that will do, if the planner might take another.
    pub(crate) index: Option<&'static str>,
    /// The table's index of the ends of ids.
    pub(crate) by_id_end: &'static str,
    /// The states that are listed; none for all.
    pub(crate) states: Vec<&'static str>,
    /// What ids begin or end with.
    pub(crate) id_part: Option<&'a str>,
    /// Only rows older than this one.
    pub(crate) before: Option<Uuid>,
}

impl ListWalks<'_> {
    /// Appends the statement of the first `rows`, newest first. `conditions` are appended to each walk, each with `AND`.
    pub(crate) fn push(
        &self,
        query: &mut QueryBuilder<Sqlite>,
        rows: u32,
        conditions: impl Fn(&mut QueryBuilder<Sqlite>),
    ) {
        let states = self.states.iter().copied().map(Some);
        let states: Vec<_> = if self.states.is_empty() { vec![None] } else { states.collect() };
        let ids = Ids::walks(self.id_part);
        for (number, (state, ids)) in
            states.iter().flat_map(|state| ids.iter().map(move |ids| (state, ids))).enumerate()
        {
            query.push(if number == 0 { "" } else { " UNION ALL " }).push(self.select);
            if let Some(index) = ids.index(self.by_id_end).or(self.index) {
                query.push(" INDEXED BY ").push(index);
            }
            query.push(" WHERE TRUE");
            conditions(query);
            if let Some(state) = state {
                query.push(" AND state = ").push_bind(*state);
            }
            ids.push(query);
            if let Some(before) = self.before {
                query.push(" AND id < ").push_bind(before);
            }
        }
        query.push(" ORDER BY id DESC LIMIT ").push_bind(i64::from(rows));
    }
}

/// Appends the conditions for rows that were created at or after `since` and before `until`: a range of ids, and of
/// these the times.
pub(crate) fn push_created(
    query: &mut QueryBuilder<Sqlite>,
    since: Option<DateTime<Utc>>,
    until: Option<DateTime<Utc>>,
) {
    if let Some(since) = since {
        query.push(" AND id >= ").push_bind(first_id_after(since.checked_sub_signed(ID_TOLERANCE).unwrap_or(since)));
        query.push(" AND created_at >= ").push_bind(since);
    }
    if let Some(until) = until {
        query.push(" AND id < ").push_bind(first_id_after(until.checked_add_signed(ID_TOLERANCE).unwrap_or(until)));
        query.push(" AND created_at < ").push_bind(until);
    }
}

/// The id that a row has at least, if it was created at this time or later.
pub(crate) fn first_id_after(at: DateTime<Utc>) -> Uuid {
    let millis = u128::try_from(at.timestamp_millis()).unwrap_or_default();
    Uuid::from_u128(millis.min(MAX_ID_MILLIS) << 80)
}

/// Restricts a column to names; does nothing if there are none. `condition` ends with the opening bracket of the list.
pub(crate) fn push_names(
    query: &mut QueryBuilder<Sqlite>,
    condition: &str,
    names: impl ExactSizeIterator<Item = &'static str>,
) {
    if names.len() == 0 {
        return;
    }
    query.push(condition);
    let mut list = query.separated(", ");
    for name in names {
        list.push_bind(name);
    }
    query.push(")");
}

/// The first and the last id that begin with these digits.
fn range(digits: &str) -> (Uuid, Uuid) {
    let filled = |digit: char| {
        let digits: String = digits.chars().chain(std::iter::repeat(digit)).take(ID_DIGITS).collect();
        Uuid::try_parse(&digits)
    };
    // Other than digits matches no id.
    (filled('0').unwrap_or(Uuid::max()), filled('f').unwrap_or(Uuid::nil()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn digits_are_the_beginning_of_a_range_of_ids() {
        let (first, last) = range("0193");
        assert_eq!(first.to_string(), "01930000-0000-0000-0000-000000000000");
        assert_eq!(last.to_string(), "0193ffff-ffff-ffff-ffff-ffffffffffff");
        let whole = "0193b1f05b6e7c3a9b1e2f4d5a6b7c8d";
        let (first, last) = range(whole);
        assert_eq!((first, last.simple().to_string().as_str()), (last, whole));
    }
}
