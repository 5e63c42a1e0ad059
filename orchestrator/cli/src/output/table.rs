//! Tables: columns of items, fitted to the width of the terminal.
//!
//! Owns which columns are shown and what is cut. Cells must be escaped by `text`. Never prints.

use chrono::{DateTime, TimeDelta, Utc};
use clap::Args;
use comfy_table::{CellAlignment, ColumnConstraint, ContentArrangement, Row, presets};

use super::Output;
use crate::ids::short_id;

use base::Zone;

/// Spaces between columns.
const GAP: u16 = 2;
/// A flexible column is not cut below this width: on a narrower terminal the lines wrap.
const MIN_FLEXIBLE_WIDTH: usize = 12;

/// How a list is shown.
#[derive(Debug, Clone, Default, Args)]
pub struct TableArgs {
    /// Show more columns
    #[arg(long)]
    pub wide: bool,
    /// Show whole ids and texts
    #[arg(long)]
    pub no_trunc: bool,
    /// Print only the whole ids, one per line
    #[arg(long, short, conflicts_with_all = ["wide", "no_trunc"])]
    pub quiet: bool,
}

/// What the cells of a table depend on, besides their item.
#[derive(Debug, Clone)]
pub struct View {
    /// The width of the terminal. `None`: nothing is cut.
    pub width: Option<usize>,
    /// Also show the columns of `--wide`.
    pub is_wide: bool,
    pub has_whole_ids: bool,
    pub now: DateTime<Utc>,
    /// The zone in which times are shown.
    pub zone: Zone,
    /// The user that the token names. A column of users is shown only if it has others.
    pub user: Option<String>,
}

impl View {
    /// The view of a command's output.
    pub fn new(output: &Output, args: &TableArgs, now: DateTime<Utc>, user: Option<String>) -> Self {
        Self {
            width: output.width.filter(|_| !args.no_trunc),
            is_wide: args.wide,
            has_whole_ids: args.no_trunc,
            now,
            zone: output.zone(),
            user,
        }
    }

    /// A view that cuts nothing, at the beginning of 1970 in UTC.
    #[cfg(test)]
    pub const fn unlimited() -> Self {
        let now = DateTime::UNIX_EPOCH;
        Self { width: None, is_wide: false, has_whole_ids: false, now, zone: Zone::UTC, user: None }
    }

    /// An id, in its short form unless whole ids are asked for.
    pub fn id(&self, id: &impl ToString) -> String {
        let id = id.to_string();
        if self.has_whole_ids { id } else { short_id(&id) }
    }

    /// How long ago a time is.
    pub fn age(&self, at: DateTime<Utc>) -> String {
        duration(self.now - at)
    }

    /// A time in the zone of the view.
    pub fn time(&self, at: DateTime<Utc>) -> String {
        local_time(at, self.zone)
    }
}

/// A time in a zone, to the second.
pub(crate) fn local_time(at: DateTime<Utc>, zone: Zone) -> String {
    at.with_timezone(&zone).format("%F %T %Z").to_string()
}

/// A duration in its largest unit that is at least two of it.
pub(crate) fn duration(duration: TimeDelta) -> String {
    let seconds = duration.num_seconds().max(0);
    match seconds {
        ..120 => format!("{seconds}s"),
        120..7_200 => format!("{}m", seconds / 60),
        7_200..172_800 => format!("{}h", seconds / 3_600),
        _ => format!("{}d", seconds / 86_400),
    }
}

/// A cost, or `—` if it is unknown.
pub(crate) fn cost(usd: Option<f64>) -> String {
    usd.map_or_else(|| "—".to_owned(), |usd| format!("${usd:.4}"))
}

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Kind {
    Text,
    Number,
    /// Cut when the table does not fit.
    Flexible,
    /// Left out if all items are the caller's own.
    User,
}

/// A column of a table of items `T`.
#[derive(Debug)]
pub struct Column<T> {
    name: &'static str,
    kind: Kind,
    is_wide: bool,
    is_optional: bool,
    cell: fn(&T, &View) -> String,
}

impl<T> Column<T> {
    const fn new(name: &'static str, kind: Kind, cell: fn(&T, &View) -> String) -> Self {
        Self { name, kind, is_wide: false, is_optional: false, cell }
    }

    /// Text that is never cut.
    pub const fn text(name: &'static str, cell: fn(&T, &View) -> String) -> Self {
        Self::new(name, Kind::Text, cell)
    }

    /// Aligned right.
    pub const fn number(name: &'static str, cell: fn(&T, &View) -> String) -> Self {
        Self::new(name, Kind::Number, cell)
    }

    /// Text that is cut when the table does not fit.
    pub const fn flexible(name: &'static str, cell: fn(&T, &View) -> String) -> Self {
        Self::new(name, Kind::Flexible, cell)
    }

    /// The owner; the column is left out if all items are the caller's own.
    pub const fn user(cell: fn(&T, &View) -> String) -> Self {
        Self::new("user", Kind::User, cell)
    }

    /// The column is left out if the table is too wide otherwise; of several, the last one first.
    #[must_use]
    pub const fn optional(mut self) -> Self {
        self.is_optional = true;
        self
    }

    /// The column is shown with `--wide` only.
    #[must_use]
    pub const fn wide(mut self) -> Self {
        self.is_wide = true;
        self
    }
}

/// The items as a table with a header, without a newline at the end.
pub fn table<T>(columns: &[Column<T>], items: &[T], view: &View) -> String {
    let cells = |column: &Column<T>| items.iter().map(|item| (column.cell)(item, view)).collect::<Vec<_>>();
    let mut shown: Vec<(&Column<T>, Vec<String>)> = columns
        .iter()
        .filter(|column| !column.is_wide || view.is_wide)
        .map(|column| (column, cells(column)))
        .filter(|(column, cells)| {
            column.kind != Kind::User || cells.iter().any(|cell| Some(cell) != view.user.as_ref())
        })
        .collect();
    let (mut table, widest, flexible, fixed) = loop {
        let table = filled(&shown, items.len());
        let widest = table.column_max_content_widths();
        let flexible: usize = shown.iter().filter(|(column, _)| column.kind == Kind::Flexible).count();
        let fixed: usize = shown
            .iter()
            .zip(&widest)
            .map(|((column, _), width)| {
                usize::from(GAP) + if column.kind == Kind::Flexible { 0 } else { usize::from(*width) }
            })
            .sum();
        let needed = (fixed + flexible * MIN_FLEXIBLE_WIDTH).saturating_sub(usize::from(GAP));
        let is_too_wide = !view.is_wide && view.width.is_some_and(|width| needed > width);
        match shown.iter().rposition(|(column, _)| column.is_optional) {
            Some(index) if is_too_wide => drop(shown.remove(index)),
            _ => break (table, widest, flexible, fixed),
        }
    };
    for (index, (column, _)) in shown.iter().enumerate() {
        let Some(one) = table.column_mut(index) else { continue };
        let is_last = index + 1 == shown.len();
        one.set_padding((0, if is_last { 0 } else { GAP }));
        if column.kind == Kind::Number {
            one.set_cell_alignment(CellAlignment::Right);
        }
        one.set_constraint(ColumnConstraint::ContentWidth);
    }
    if let Some(width) = view.width.filter(|_| flexible > 0) {
        // The widths of what is left, divided among the flexible columns; the padding of the last column is not needed.
        let left = (width + usize::from(GAP)).saturating_sub(fixed);
        share(&mut table, &shown, &widest, left);
    }
    table.trim_fmt()
}

/// The header and the cells.
fn filled<T>(shown: &[(&Column<T>, Vec<String>)], rows: usize) -> comfy_table::Table {
    let mut table = comfy_table::Table::new();
    table.load_style(presets::NOTHING).set_truncation_indicator("…");
    table.set_header(shown.iter().map(|(column, _)| column.name));
    for index in 0..rows {
        let mut row = Row::from(shown.iter().map(|(_, cells)| &cells[index]));
        row.max_height(1);
        table.add_row(row);
    }
    table
}

/// Gives each flexible column an equal share of the width, and what one does not need to the next ones.
fn share<T>(table: &mut comfy_table::Table, shown: &[(&Column<T>, Vec<String>)], widest: &[u16], mut left: usize) {
    let mut columns: Vec<usize> = (0..shown.len()).filter(|index| shown[*index].0.kind == Kind::Flexible).collect();
    // The narrowest first, so that what they do not need goes to the others.
    columns.sort_by_key(|index| widest[*index]);
    table.set_content_arrangement(ContentArrangement::Dynamic).set_width(u16::MAX);
    for (done, index) in columns.iter().enumerate() {
        let share = (left / (columns.len() - done)).max(MIN_FLEXIBLE_WIDTH);
        let width = share.min(usize::from(widest[*index]));
        left = left.saturating_sub(width);
        let is_last = index + 1 == shown.len();
        let padding = if is_last { 0 } else { GAP };
        if let Some(column) = table.column_mut(*index) {
            let width = u16::try_from(width).unwrap_or(u16::MAX).saturating_add(padding);
            column.set_constraint(ColumnConstraint::Absolute(comfy_table::Width::Fixed(width)));
        }
    }
}

#[cfg(test)]
mod tests;
